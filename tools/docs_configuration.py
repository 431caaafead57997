"""Write the tables of docs/configuration.md from the models; with `--check` only compare."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from nemo_jobs.config_auth import Auth
from nemo_jobs.config_environment import HOST_VARIABLES
from nemo_jobs.config_model import Database, Files, Host, Jobs, Platform, Service
from nemo_jobs.config_shape import PREFIXES, Shape, shape_of
from nemo_jobs.domain.profile_base import CommonConfig
from nemo_jobs.domain.profile_configs import (
    DockerConfig,
    KubernetesJobConfig,
    OpenShellConfig,
    SubprocessConfig,
    VolcanoJobConfig,
)
from nemo_jobs.domain.profiles import PROVIDERS, ExecutorProfile

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
BEGIN, END = "<!-- generated: make format -->", "<!-- end of generated -->"
TYPES = {"str": "text", "int": "whole number", "bool": "true or false", "any": "anything"}

Model = type[BaseModel]


def main(arguments: list[str]) -> int:
    old = PAGE.read_text()
    head, _, rest = old.partition(BEGIN)
    new = f"{head}{BEGIN}\n\n{render_configuration()}\n\n{END}{rest.partition(END)[2]}"
    if "--check" in arguments:
        return int(new != old)
    PAGE.write_text(new)
    return 0


def render_configuration() -> str:
    """Every key and variable, as headings with tables."""
    prefixes = dict(PREFIXES)
    parts = [
        f"### Section `{name}`\n\n{table(keys(model), prefixes[name])}"
        for name, model in (
            ("platform", Platform),
            ("jobs", Jobs),
            ("service", Service),
            ("database", Database),
            ("files", Files),
            ("auth", Auth),
        )
    ]
    parts.append("### An entry of `jobs.executors`\n\n" + table(keys(ExecutorProfile)) + "\n\n" + backends())
    parts.append("### `config`: keys of every backend\n\n" + table(keys(CommonConfig)))
    for name, model, base in (
        ("subprocess", SubprocessConfig, CommonConfig),
        ("docker", DockerConfig, CommonConfig),
        ("kubernetes_job", KubernetesJobConfig, CommonConfig),
        ("volcano_job", VolcanoJobConfig, KubernetesJobConfig),
        ("openshell", OpenShellConfig, CommonConfig),
    ):
        more = "kubernetes_job" if base is KubernetesJobConfig else "every backend"
        rows = [row for row in keys(model) if row not in list(keys(base))]
        parts.append(f"### `config`: keys of `{name}`, besides those of {more}\n\n" + table(rows))
    parts.append("### Variables outside the sections\n\n" + host_variables())
    return "\n\n".join(parts)


Row = tuple[str, str, str, str]


def keys(model: Model, path: str = "") -> Iterator[Row]:
    """Path, type, default and meaning of each key; sections are opened."""
    for name, field in model.model_fields.items():
        shape = shape_of(field.annotation)
        inner = inner_model(name, shape)
        here = f"{path}{name}"
        if inner is None or shape.kind == "list":
            yield here, kind(field, shape), default(field), field.description or ""
        if inner is not None:
            yield from keys(inner, here + ("[]." if shape.kind == "list" else "."))


def inner_model(name: str, shape: Shape) -> Model | None:
    """The section behind a key, unless it has a table of its own."""
    if name in ("executors", "executor_defaults", "config"):
        return None
    models = shape.models if shape.kind == "section" else ()
    if shape.kind == "list":
        models = shape_of(shape.item).models
    return models[0][1] if models else None


def kind(field: FieldInfo, shape: Shape) -> str:
    text = {
        "list": "list",
        "map": "mapping",
        "section": "mapping",
        "choice": " or ".join(f"`{json.dumps(choice)}`" for choice in shape.choices),
    }.get(shape.kind) or TYPES[shape.kind]
    if shape.kind == "list" and shape_of(shape.item).kind == "str":
        text = "list of text"
    if shape.kind == "map" and shape_of(shape.item).kind == "str":
        text = "mapping of text"
    low = lowest(field.metadata) or lowest(
        [item for part in get_args(field.annotation) for item in get_args(part)]
    )
    return text + low


def lowest(metadata: list[Any]) -> str:
    """The lower bound among constraints, in words."""
    flat = [inner for item in metadata for inner in (getattr(item, "metadata", None) or [item])]
    return next((f", from {item.ge}" for item in flat if getattr(item, "ge", None) is not None), "")


def default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        made: Any = field.default_factory()  # type: ignore[call-arg]
        return "as below" if isinstance(made, BaseModel) else f"`{json.dumps(made)}`"
    return "required" if field.default is PydanticUndefined else f"`{json.dumps(field.default)}`"


def table(rows: Iterator[Row] | list[Row], prefix: str = "") -> str:
    head = ["key", "type", "default", "meaning", *(["variable"] if prefix else [])]
    lines = [head, ["---"] * len(head)]
    for path, kind_, default_, meaning in rows:
        cells = [f"`{path}`", kind_, default_, meaning]
        if prefix:
            settable = "[]" not in path
            cells.append(f"`{prefix}{path.upper().replace('.', '__')}`" if settable else "")
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def backends() -> str:
    lines = [["backend", "serves provider"], ["---", "---"]]
    lines += [[f"`{name}`", ", ".join(f"`{item}`" for item in served)] for name, served in PROVIDERS.items()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def host_variables() -> str:
    lines = [["variable", "default", "meaning"], ["---", "---", "---"]]
    for variable, name in HOST_VARIABLES.items():
        field = Host.model_fields[name]
        lines.append([f"`{variable}`", default(field), field.description or ""])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

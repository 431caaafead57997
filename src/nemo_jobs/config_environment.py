"""Settings from environment variables, laid over the tree of the file."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_jobs.config_model import ADDRESSED_SERVICES
from nemo_jobs.config_shape import PREFIXES, Shape, field_at, shape_of, variables
from nemo_jobs.config_tree import Entry

#: Variables outside any section, with the field of `host` that they set.
HOST_VARIABLES = {
    "NEMO_JOBS_IMAGE_REGISTRY": "image_registry",
    "NEMO_JOBS_IMAGE_REGISTRY_USER_NAME": "image_registry_user",
    "NEMO_JOBS_IMAGE_REGISTRY_PASSWORD": "image_registry_password",
    "NEMO_JOBS_DEFAULT_DOCKER_NETWORK": "job_container_network",
    "NEMO_JOBS_DEFAULT_DOCKER_STOP_TIMEOUT": "docker_stop_timeout",
    "NHX_JOBS_DOCKER_OWNER_ID": "docker_owner_id",
    "POD_NAMESPACE": "pod_namespace",
}
#: Variables of section `platform.docker` that have a name of their own.
DOCKER_VARIABLES = {
    "NHX_DOCKER_RESERVED_GPU_DEVICE_IDS": "reserved_gpu_device_ids",
    "NHX_DOCKER_GPU_DEVICE_COUNT": "gpu_device_count",
    "NHX_DOCKER_HOST": "host",
}
#: Variables below our prefix that mean something elsewhere: to the command line, or to tasks.
OTHER_VARIABLES = frozenset(
    f"NHX_{name}"
    for name in [
        "CONFIG_FILE_PATH",
        "CONFIG_FILE",
        "CONFIG_WARNINGS_DISABLED",
        "CURRENT_CONTEXT",
        "WORKSPACE",
        "ACCESS_TOKEN",
        "OUTPUT_FORMAT",
        "TIMESTAMP_FORMAT",
        "TRUNCATE",
        "COLOR_OUTPUT",
        "PRINCIPAL",
        "TASK_CONFIG",
        "JOB_LOGS_ENDPOINT",
    ]
)
#: Prefixes of other services of the family, of the launcher and of workload identity.
OTHER_PREFIXES = tuple(
    f"NHX_{name}_"
    for name in [
        "ENTITIES",
        "FILES",
        "MODELS",
        "SECRETS",
        "STUDIO",
        "INFERENCE",
        "GUARDRAILS",
        "EVALUATOR",
        "EVALUATION",
        "CUSTOMIZER",
        "CUSTOMIZATION",
        "AGENTS",
        "INTAKE",
        "DATASETS",
        "DATA",
        "DEPLOYMENTS",
        "PROJECTS",
        "WORKSPACES",
        "AUDIT",
        "AUDITOR",
        "TELEMETRY",
        "PLUGINS",
        "JOB_LAUNCHER",
        "WORKLOAD",
        "WORKFLOW",
    ]
)
_URL_VARIABLE = re.compile(r"NHX_([A-Z0-9]+)_URL")
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def overlay(root: Entry, environ: Mapping[str, str], problems: list[str], warnings: list[str]) -> None:
    """Set what the environment says; it wins over the file. An empty variable counts as unset."""
    found: list[tuple[tuple[str, ...], str]] = []
    for name in environ:
        if not environ[name]:
            continue
        if name in HOST_VARIABLES:
            found.append((("host", HOST_VARIABLES[name]), name))
        elif name.startswith(("NHX_", "NEMO_JOBS_")) and not _elsewhere(name):
            path = _path(name)
            if path is None:
                warnings.append(f"environment variable {name} matches no setting and is ignored{_near(name)}")
            else:
                found.append((path, name))
    # Whole objects first, so that a single key set by its own variable wins over them.
    for path, name in sorted(found, key=lambda pair: (len(pair[0]), pair[1])):
        _set(root, path, name, environ[name], problems, warnings)


def _elsewhere(name: str) -> bool:
    if name in OTHER_VARIABLES:
        return True
    # Of a section that we share with another service, our keys are ours.
    return name.startswith(OTHER_PREFIXES) and not _URL_VARIABLE.fullmatch(name) and _path(name) is None


def _path(name: str) -> tuple[str, ...] | None:
    """The path of keys that a variable's name means, as far as the first of them is known."""
    if name in DOCKER_VARIABLES:
        return ("platform", "docker", DOCKER_VARIABLES[name])
    head, *rest = name.split("__")
    if not all(rest):
        return None
    for section, prefix in reversed(PREFIXES):
        key = head.removeprefix(prefix).lower()
        if head.startswith(prefix) and _exists((section, key)):
            return (section, key, *rest)
    address = _URL_VARIABLE.fullmatch(name)
    if address and address[1].lower() in ADDRESSED_SERVICES:
        return ("platform", "service_discovery", address[1].lower())
    return None


def _exists(path: Sequence[str]) -> bool:
    try:
        field_at(path)
    except KeyError:
        return False
    return True


def _near(name: str) -> str:
    known = [variable for variable, _path_ in variables()] + list(HOST_VARIABLES)
    known += [f"NHX_{service.upper()}_URL" for service in ADDRESSED_SERVICES]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""


def _set(
    root: Entry, path: tuple[str, ...], name: str, text: str, problems: list[str], warnings: list[str]
) -> None:
    keys, shape = list(path[:2]), shape_of(field_at(path[:2]).annotation)
    for part in path[2:]:
        where = ".".join(keys)
        if shape.kind == "section" and part.lower() in shape.models[0][1].model_fields:
            keys.append(part.lower())
            shape = shape_of(shape.models[0][1].model_fields[part.lower()].annotation)
        elif shape.kind == "map" and len(keys) == len(path) - 1 and shape_of(shape.item).kind == "str":
            keys.append(part.lower() if where == "platform.service_discovery" else part)
            shape = shape_of(shape.item)
        elif shape.kind == "section":
            warnings.append(f"environment variable {name} matches no setting and is ignored{_near(name)}")
            return
        else:
            what = "a list" if shape.kind == "list" else "a single value"
            whole = name.split(f"__{part}")[0]
            text = "an object of any form" if shape.kind == "map" else what
            problems.append(
                f"environment variable {name}: {where} is {text}, and nothing below it can be set alone; "
                f"give it whole in {whole}"
            )
            return
    entry = _entry(shape, name, ".".join(keys), text, problems)
    if entry is not None:
        _put(root, keys, entry, name)


def _put(root: Entry, keys: Sequence[str], entry: Entry, name: str) -> None:
    place = root
    for key in keys[:-1]:
        if not isinstance(place.value, dict):
            return  # The file holds something else there, which is a problem of its own.
        below = place.value.get(key)
        if below is None or below.value is None:
            below = place.value[key] = Entry({}, _where(name))
        place = below
    if isinstance(place.value, dict):
        place.value[keys[-1]] = entry


def _where(name: str) -> str:
    return f"environment variable {name}"


def _entry(shape: Shape, name: str, path: str, text: str, problems: list[str]) -> Entry | None:
    where = _where(name)
    if shape.kind in ("section", "list", "map", "any"):
        try:
            value = json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            problems.append(f"{where}: {path}: must be JSON, not {shown(text)} ({error})")
            return None
        return _from_json(value, where)
    if shape.kind == "bool":
        if text.strip().lower() not in _WORDS:
            problems.append(f"{where}: {path}: must be one of true, false, 1, 0, yes, no; not {shown(text)}")
            return None
        return Entry(_WORDS[text.strip().lower()], where, text)
    if shape.kind == "int":
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
            problems.append(f"{where}: {path}: must be a whole number, not {shown(text)}")
            return None
        return Entry(int(text), where, text)
    return Entry(text, where, text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _from_json(value: Any, where: str) -> Entry:
    if isinstance(value, dict):
        return Entry({key: _from_json(item, where) for key, item in value.items()}, where)
    if isinstance(value, list):
        return Entry([_from_json(item, where) for item in value], where)
    return Entry(value, where, json.dumps(value, ensure_ascii=False))


def shown(text: str) -> str:
    """A value in a message: as written, not too long, without a password in a URL."""
    masked = re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", text)
    short = masked if len(masked) <= 80 else masked[:77] + "..."
    return short if short[:1] in ("'", '"') else f"'{short}'"

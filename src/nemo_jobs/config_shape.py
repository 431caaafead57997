"""What the models of the settings look like from outside: kinds of fields, names, variables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nemo_jobs.config_model import Settings

Model = type[BaseModel]


@dataclass(frozen=True, slots=True)
class Shape:
    """The kind of a field. `models` are its sections, with their tags where there are several."""

    kind: str  # section, list, map, choice, or the name of a plain type: str, int, bool, any
    optional: bool = False
    models: tuple[tuple[str, Model], ...] = ()
    item: Any = None
    choices: tuple[str, ...] = ()


def shape_of(annotation: Any) -> Shape:
    """The shape behind an annotation."""
    bare = _bare(annotation)
    if get_origin(bare) in (Union, UnionType):
        members = [member for member in get_args(bare) if _bare(member) is not NoneType]
        shapes = [shape_of(member) for member in members]
        optional = len(members) < len(get_args(bare))
        if len(shapes) == 1:
            only = shapes[0]
            return Shape(only.kind, optional, only.models, only.item, only.choices)
        return Shape("section", optional, tuple(model for shape in shapes for model in shape.models))
    origin, arguments = get_origin(bare), get_args(bare)
    if origin is list:
        return Shape("list", item=arguments[0])
    if origin is dict:
        return Shape("map", item=arguments[1])
    if origin is Literal:
        return Shape("choice", choices=tuple(str(choice) for choice in arguments))
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return Shape("section", models=((_tag(bare), bare),))
    return Shape(bare.__name__.lower() if isinstance(bare, type) else "any")


def _bare(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def _tag(model: Model) -> str:
    field = model.model_fields.get("backend")
    choices = get_args(_bare(field.annotation)) if field else ()
    return str(choices[0]) if choices else ""


@cache
def tags() -> tuple[str, ...]:
    """Parts of an error's location that name the member of a union, not a key."""
    executors = shape_of(field_at(("jobs", "executors")).annotation)
    return tuple(tag for tag, _model in shape_of(executors.item).models)


def field_at(path: Sequence[str]) -> FieldInfo:
    """The field at a path of keys; `KeyError` when there is none."""
    model: Model = Settings
    for part in path[:-1]:
        shape = shape_of(model.model_fields[part].annotation)
        if shape.kind != "section" or len(shape.models) != 1:
            raise KeyError(part)
        model = shape.models[0][1]
    return model.model_fields[path[-1]]


def section_at(location: Sequence[str | int]) -> Model | None:
    """The section that an error's location leads to, union tags included."""
    shape = Shape("section", models=(("", Settings),))
    for part in location:
        if shape.kind == "list" and isinstance(part, int):
            shape = shape_of(shape.item)
        elif shape.kind == "section" and len(shape.models) > 1:
            shape = Shape("section", models=tuple(pair for pair in shape.models if pair[0] == part))
        elif shape.kind == "section" and shape.models and part in shape.models[0][1].model_fields:
            shape = shape_of(shape.models[0][1].model_fields[str(part)].annotation)
        elif shape.kind == "map":
            shape = shape_of(shape.item)
        else:
            return None
    return shape.models[0][1] if shape.kind == "section" and len(shape.models) == 1 else None


def sections_below(model: Model, depth: int = 3) -> Iterator[tuple[str, Model]]:
    """The sections inside a section, with the keys that lead to them; near ones first."""
    level = [("", model)]
    for _step in range(depth):
        level = [
            (f"{path}.{name}" if path else name, inner)
            for path, outer in level
            for name, field in outer.model_fields.items()
            for _tag_, inner in _inner(shape_of(field.annotation))
        ]
        yield from level


def _inner(shape: Shape) -> tuple[tuple[str, Model], ...]:
    if shape.kind == "section":
        return shape.models
    if shape.kind == "list":
        return shape_of(shape.item).models
    return ()


#: Sections with the prefix of their variables.
PREFIXES = (
    ("jobs", "NHX_JOBS_"),
    ("service", "NHX_SERVICE_"),
    ("database", "NHX_DATABASE_"),
    ("files", "NHX_FILES_"),
    ("auth", "NHX_AUTH_"),
    ("platform", "NHX_"),
)


def variables() -> Iterator[tuple[str, str]]:
    """Every variable that sets a key, with the path of the key."""
    for section, prefix in PREFIXES:
        yield from _variables(field_at((section,)), section, prefix)


def _variables(field: FieldInfo, path: str, prefix: str) -> Iterator[tuple[str, str]]:
    for name, inner in shape_of(field.annotation).models[0][1].model_fields.items():
        variable = prefix + name.upper()
        yield variable, f"{path}.{name}"
        if shape_of(inner.annotation).kind == "section":
            yield from _variables(inner, f"{path}.{name}", variable + "__")

"""The neutral tree of a job filter: nodes, the checks that every form shares, and the echo.

A store compiles the tree to its own language; see the meaning of each operator at `Op`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from nemo_jobs.domain.labels import KEY_RULE, is_key

Json = dict[str, Any]
Scalar = str | int | float | bool | None

TEXT_FIELDS = ("id", "name", "workspace", "project", "status", "source", "entity_type")
DATE_FIELDS = ("created_at", "updated_at")
FIELDS = ("name", "workspace", "project", "status", "source", "created_at", "updated_at", "spec", "labels")
#: What `entity_type` of every job is.
ENTITY_TYPE = "platform-job"

_DEPTH_LIMIT = 20
_NODE_LIMIT = 200
_INT_LIMIT = 2**63
#: PostgreSQL's path functions take 99 parts, a pattern of SQLite has at most 50,000 bytes.
_PATH_LIMIT = 50
_PATTERN_LIMIT = 10_000
_PLAIN = re.compile(r"[^.\[\]\"]+")
_DOTTED = re.compile(r"[^.\[\]\"]+(?:\.[^.\[\]\"]+)*")
_KEY = r'\["((?:[^"\\]|\\.)*)"\]'
_BRACKETED = re.compile(rf'((?:data\.)?[^.\[\]"]+)((?:{_KEY})+)', re.DOTALL)


class FilterError(ValueError):
    """The filter can't be understood (HTTP 400)."""


class Op(StrEnum):
    """Comparisons. Apart from `$eq` null and `$nin`, an absent value meets none of them."""

    EQ = "$eq"  # equal, types included; null matches absent and null
    IN = "$in"  # equal to one of the list
    NIN = "$nin"  # present and equal to none of the list
    LIKE = "$like"  # holds the text anywhere, case ignored, nothing special in it
    STARTS = "$startsWith"  # case-sensitive
    ENDS = "$endsWith"  # case-sensitive
    LT = "$lt"
    LTE = "$lte"
    GT = "$gt"
    GTE = "$gte"
    CONTAINS = "$contains"  # an array that holds the scalar
    HAS_KEY = "$hasKey"  # an object that has the key with a value other than null


ORDER = (Op.LT, Op.LTE, Op.GT, Op.GTE)
ELEMENT = (Op.EQ, Op.IN, Op.NIN, Op.LIKE, Op.STARTS, Op.ENDS, *ORDER)
_TEXT_OPS = (Op.LIKE, Op.STARTS, Op.ENDS)
_SPEC_ONLY = (Op.CONTAINS, Op.HAS_KEY)


@dataclass(frozen=True, slots=True)
class Compare:
    """`field` (with `path` inside it) against `value`.

    `field` is a column of the job, or `spec`, or `labels` (its path is one key, or empty with
    `$hasKey`), or `data` for parts of the record that no job has (always absent). Inside
    `ElemMatch` it is empty and `path` leads from the element.
    Dates are microseconds since 1970 UTC in `value`; `shown` is what the echo shows.
    """

    field: str
    op: Op
    value: Scalar | tuple[Scalar, ...]
    path: tuple[str, ...] = ()
    shown: Any = None


@dataclass(frozen=True, slots=True)
class And:
    nodes: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Or:
    nodes: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Not:
    node: "Node"


@dataclass(frozen=True, slots=True)
class ElemMatch:
    """One element of the array at `path` in `spec` meets all of `nodes`."""

    field: str
    path: tuple[str, ...]
    nodes: tuple[Compare, ...]


Node = Compare | And | Or | Not | ElemMatch


@dataclass(frozen=True, slots=True)
class Field:
    """A field as resolved from its name."""

    name: str
    path: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return title(self.name, self.path)


def resolve(name: str) -> Field:
    """The field that `name` means: a word, a dotted path below spec or labels, or `spec["key"]`."""
    bracketed = _BRACKETED.fullmatch(name)
    if bracketed:
        keys = re.findall(_KEY, bracketed[2], re.DOTALL)
        parts = [*bracketed[1].split("."), *(re.sub(r"\\(.)", r"\1", key, flags=re.DOTALL) for key in keys)]
    elif _DOTTED.fullmatch(name):
        parts = name.split(".")
    else:
        raise FilterError(f"{name!r} is not a field; {_known()}")
    return field_of(parts)


def field_of(parts: Sequence[str]) -> Field:
    """The field that a path means; `data.` in front of a job's own field changes nothing."""
    check_text("".join(parts))
    if len(parts) > _PATH_LIMIT:
        raise FilterError(f"a path in a filter has at most {_PATH_LIMIT} parts")
    head, rest = parts[0], tuple(parts[1:])
    if head == "data":
        if not rest:
            raise FilterError("data needs a path below it, such as data.spec.x")
        own = rest[0] in ("spec", "labels") or (len(rest) == 1 and rest[0] in TEXT_FIELDS + DATE_FIELDS)
        return field_of(rest) if own else Field("data", rest)
    if head == "spec":
        return Field("spec", rest)
    if head == "labels":
        return Field("labels", _label_key(rest))
    if head in TEXT_FIELDS + DATE_FIELDS and not rest:
        return Field(head)
    raise FilterError(f"{'.'.join(parts)!r} is not a field; {_known()}")


def _label_key(parts: Sequence[str]) -> tuple[str, ...]:
    """Labels are flat: dots belong to the key."""
    key = ".".join(parts)
    if parts and not is_key(key):
        raise FilterError(f"{key!r} can't be the key of a label; a key has {KEY_RULE}")
    return (key,) if parts else ()


def compare(field: Field, op: Op, value: Any) -> Compare:
    """A checked comparison; raises `FilterError` where value and operator do not fit."""
    if field.name == "labels" and (op is Op.HAS_KEY) == bool(field.path):
        raise FilterError(
            "labels are compared one by one, as in labels.team; "
            '{"labels":{"$hasKey":"team"}} asks whether there is one'
        )
    if op in _SPEC_ONLY and field.name in TEXT_FIELDS + DATE_FIELDS + (("labels",) if field.path else ()):
        raise FilterError(f"{op} works on spec and its parts, not on {field.title}")
    if op in (Op.IN, Op.NIN):
        items = _items(field, op, value)
        values = tuple(_scalar(field, op, item) for item in items)
        return Compare(field.name, op, values, field.path, shown=items)
    return Compare(field.name, op, _scalar(field, op, value), field.path, shown=value)


def _items(field: Field, op: Op, value: Any) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    if not isinstance(value, list):
        raise FilterError(f"{op} on {field.title} takes a list, or text with commas")
    return list(value)


def _scalar(field: Field, op: Op, value: Any) -> Scalar:
    single = _single(field, op, value)
    _check_operand(field, op, single)
    if single is None:
        return None
    if field.name in DATE_FIELDS:
        if op in _TEXT_OPS:
            raise FilterError(f"{op} does not work on dates such as {field.title}")
        return date(single)
    if field.name in (*TEXT_FIELDS, "labels") and not isinstance(single, str):
        raise FilterError(f"{field.title} is text; put {value!r} in quotes")
    return single


def _single(field: Field, op: Op, value: Any) -> Scalar:
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, int) and not -_INT_LIMIT <= value < _INT_LIMIT:
        raise FilterError("a whole number is too large to compare with")
    elif isinstance(value, float) and not math.isfinite(value):
        raise FilterError("numbers must be finite")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise FilterError(f"{op} on {field.title} takes a single value")


def _check_operand(field: Field, op: Op, value: Scalar) -> None:
    if op is Op.HAS_KEY and (not isinstance(value, str) or '"' in value or not value):
        raise FilterError(f"{op} on {field.title} takes a key: text without a double quote")
    if op in _TEXT_OPS and not isinstance(value, str):
        raise FilterError(f"{op} on {field.title} takes text")
    if op is Op.LIKE and len(str(value)) > _PATTERN_LIMIT:
        raise FilterError(f"{op} on {field.title} takes at most {_PATTERN_LIMIT} characters")
    if op in (Op.STARTS, Op.ENDS) and not value:
        raise FilterError(f"{op} on {field.title} takes text that is not empty")
    if op in ORDER and (value is None or isinstance(value, bool)):
        raise FilterError(f"{op} on {field.title} takes a number, text or a date")


def check_text(text: str) -> None:
    """Refuse characters that no database can be asked about."""
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise FilterError("text in a filter must not contain a NUL character or half a surrogate pair")


def date(value: Scalar) -> int:
    """Microseconds since 1970 UTC of a date, a date with time, or Unix seconds."""
    try:
        if isinstance(value, bool) or value is None:
            raise ValueError
        if not isinstance(value, str) or re.fullmatch(r"[+-]?[0-9]{1,12}(\.[0-9]+)?", value):
            return _micros(float(value))
        # A plus sign that was not encoded in a URL arrives as a blank.
        text = re.sub(r" (\d\d:\d\d)$", r"+\1", value.strip()) if "T" in value else value.strip()
        parsed = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        hint = "write 2027-03-01, 2027-03-01T09:00:00Z (no zone means UTC) or Unix seconds"
        raise FilterError(f"{value!r} is not a date; {hint}") from None
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    gap = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (gap.days * 86_400 + gap.seconds) * 1_000_000 + gap.microseconds


def _micros(seconds: float) -> int:
    micros = round(seconds * 1_000_000)
    if abs(micros) >= _INT_LIMIT:
        raise OverflowError
    return micros


def check_size(node: Node) -> None:
    """Refuse trees that no person writes and no database likes."""
    level: list[Node] = [node]
    count = 0
    for _depth in range(_DEPTH_LIMIT):
        count += sum(_weight(item) for item in level)
        level = [below for item in level for below in _below(item)]
        if not level:
            break
    if level or count > _NODE_LIMIT:
        raise FilterError(f"the filter is too large: at most {_NODE_LIMIT} terms, nested {_DEPTH_LIMIT} deep")


def _weight(node: Node) -> int:
    return 1 + len(node.value) // 10 if isinstance(node, Compare) and isinstance(node.value, tuple) else 1


def _below(node: Node) -> Sequence[Node]:
    match node:
        case And(nodes) | Or(nodes):
            return nodes
        case ElemMatch(nodes=nodes):
            return nodes
        case Not(inner):
            return (inner,)
        case Compare():
            return ()


def echo(node: Node) -> Json:
    """The tree as JSON, in the form that answers show and that reads back as the same tree."""
    match node:
        case And(nodes):
            return {"$and": [echo(item) for item in nodes]}
        case Or(nodes):
            return {"$or": [echo(item) for item in nodes]}
        case Not(inner):
            return {"$not": echo(inner)}
        case ElemMatch(field=field, path=path, nodes=nodes):
            return {title(field, path): {"$elemMatch": _echo_element(nodes)}}
        case Compare(field=field, op=op, path=path, shown=shown):
            return {title(field, path): {op.value: shown}}


def element_path(key: str) -> tuple[str, ...]:
    """The path inside an array's element that a key of `$elemMatch` means."""
    check_text(key)
    path = tuple(key.split("."))
    if len(path) > _PATH_LIMIT:
        raise FilterError(f"a path in a filter has at most {_PATH_LIMIT} parts")
    return path


def _echo_element(nodes: Sequence[Compare]) -> Json:
    shown: Json = {}
    for node in nodes:
        if node.path:
            shown.setdefault(".".join(node.path), {})[node.op.value] = node.shown
        else:
            shown[node.op.value] = node.shown
    return shown


def title(name: str, path: Sequence[str]) -> str:
    """How answers spell a field."""
    head = "data.spec" if name == "spec" else name
    if all(_PLAIN.fullmatch(part) for part in path):
        return ".".join((head, *path))
    return head + "".join('["' + re.sub(r'(["\\])', r"\\\1", part) + '"]' for part in path)


def _known() -> str:
    return (
        f"fields: {', '.join(FIELDS)} (spec with a path, such as spec.input.kind, labels with a key, "
        "such as labels.team), id, entity_type, data.*"
    )

"""Labels of a job: `custom_fields.labels`, a flat map of text that lists can be filtered by."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

LIMIT = 64
KEY_RULE = "1 to 128 letters, digits and - _ . / of ASCII, the first and the last one a letter or a digit"
VALUE_LIMIT = 255
VALUE_RULE = f"text of at most {VALUE_LIMIT} printable characters; it may be empty"

_KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")


def check_labels(fields: dict[str, Any] | None) -> dict[str, Any] | None:
    """`custom_fields` with labels that can be stored, or an error that names the label."""
    if fields is not None and "labels" in fields:
        problem = _problem(fields["labels"])
        if problem is not None:
            raise PydanticCustomError("labels", "custom_fields.labels: {problem}", {"problem": problem})
    return fields


def labels_of(fields: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """The labels in checked `custom_fields`, by key."""
    return tuple(sorted((fields.get("labels") or {}).items())) if fields else ()


def is_key(text: str) -> bool:
    """Whether a label can have this key."""
    return _KEY.fullmatch(text) is not None


def _problem(labels: Any) -> str | None:
    if labels is None:
        return None
    if not isinstance(labels, dict):
        return 'labels are an object whose values are text, such as {"team": "vision"}'
    if len(labels) > LIMIT:
        return f"a job has at most {LIMIT} labels; these are {len(labels)}"
    for key, value in labels.items():
        if not is_key(key):
            return f"{_short(key)} can't be a key; a key has {KEY_RULE}"
        if not isinstance(value, str):
            return f"the value of {key!r} is {_short(value)}; it must be text, so put it in quotes"
        if len(value) > VALUE_LIMIT or not (value.isprintable() or not value):
            return f"the value of {key!r} is {_short(value)}; a value is {VALUE_RULE}"
    return None


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:79] + "…"

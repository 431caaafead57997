"""Job filters in their three forms, read into one tree.

JSON `{"name":{"$like":"moth"}}`, text `name~"moth"`, and brackets `filter[name][like]=moth`.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from nemo_jobs.domain.filter_text import parse_text
from nemo_jobs.domain.filter_tree import (
    ELEMENT,
    ENTITY_TYPE,
    FIELDS,
    ORDER,
    And,
    Compare,
    ElemMatch,
    Field,
    FilterError,
    Node,
    Not,
    Op,
    Or,
    Scalar,
    check_size,
    compare,
    echo,
    element_path,
    field_of,
    resolve,
)

#: Operators that also work without the dollar sign.
_BARE = {word: f"${word}" for word in ("eq", "like", "in", "nin", "not", "exists", "gt", "gte", "lt", "lte")}
_LOGICAL = ("$and", "$or", "$not")
_BRACKETS = re.compile(r'filter\[([^\[\]"]+(?:\["(?:[^"\\]|\\.)+"\])?)\](?:\[([^\[\]]+)\])?')
_LENGTH_LIMIT = 65_536


def parse_filter(query: Sequence[tuple[str, str]]) -> Node | None:
    """The filter in a request's query, whatever its form; several are joined by AND.

    None when there is none. Raises `FilterError` with a sentence for people.
    """
    if sum(len(value) for _key, value in query) > _LENGTH_LIMIT:
        raise FilterError(f"the filter is too long: at most {_LENGTH_LIMIT} characters")
    nodes = [_parse_value(value) for key, value in query if key == "filter"]
    nodes += _parse_brackets([(key, value) for key, value in query if key.startswith("filter[")])
    if not nodes:
        return None
    node = _all(nodes)
    check_size(node)
    return node


def _parse_value(value: str) -> Node:
    text = value.strip()
    if not text:
        raise FilterError("the filter is empty")
    if text.startswith("{"):
        return parse_object(load_json(text))
    return parse_text(value)


def load_json(text: str) -> Any:
    """JSON of a filter, with our error."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise FilterError("the filter is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise FilterError(f"filter, at position {error.pos + 1}: not JSON: {error.msg}") from None
    except ValueError as error:
        raise FilterError(f"the filter is not JSON: {error}") from None


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON value")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object; join the two with $and")
    return found


def _all(nodes: Sequence[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else And(tuple(nodes))


def parse_object(value: Any, depth: int = 0) -> Node:
    """The tree of a filter in JSON form."""
    _check_depth(depth)
    if not isinstance(value, dict):
        raise FilterError('a filter is a JSON object, such as {"status":"error"}')
    if not value:
        raise FilterError("the filter is empty")
    logical = _logical(value)
    if logical is not None:
        return _join(*logical, lambda item: parse_object(item, depth + 1))
    return _all([_conditions(resolve(key), item, depth + 1) for key, item in value.items()])


def _check_depth(depth: int) -> None:
    if depth > 40:
        raise FilterError("the filter is nested too deeply")


def _logical(value: dict[str, Any]) -> tuple[str, Any] | None:
    """The logical operator and its operand, where `value` is one."""
    for key in value:
        if key in _LOGICAL or key == "not":
            if len(value) > 1:
                raise FilterError(f"{key} must be the only key of its object; found: {', '.join(value)}")
            return ("$not" if key == "not" else key), value[key]
    return None


def _join(operator: str, value: Any, parse: Callable[[Any], Node]) -> Node:
    if operator == "$not":
        return Not(parse(value))
    if not isinstance(value, list) or not value:
        raise FilterError(f"{operator} takes a list of objects that is not empty")
    nodes = tuple(parse(item) for item in value)
    return And(nodes) if operator == "$and" else Or(nodes)


def _conditions(field: Field, value: Any, depth: int) -> Node:
    """What one field must meet: a value, operators, or logical operators over them."""
    _check_depth(depth)
    if isinstance(value, list):
        return compare(field, Op.IN, value)
    if not isinstance(value, dict):
        return compare(field, Op.EQ, value)
    if not value:
        raise FilterError(f"the condition on {field.title} is empty")
    logical = _logical(value)
    if logical is not None:
        return _join(*logical, lambda item: _conditions(field, item, depth + 1))
    if field.name in ("spec", "data", "labels") and not any(_operator(key) for key in value):
        return _all([_conditions(_below(field, key), item, depth + 1) for key, item in value.items()])
    return _all([_operation(field, key, item) for key, item in value.items()])


def _below(field: Field, key: str) -> Field:
    if key.startswith("$"):
        raise FilterError(_unknown_operator(key))
    return field_of((field.name, *field.path, *key.split(".")))


def _operator(key: str) -> str | None:
    """The operator that a key means, with its dollar sign."""
    if key in _BARE:
        return _BARE[key]
    return key if key in (*Op, "$elemMatch", "$exists") else None


def _operation(field: Field, key: str, value: Any) -> Node:
    operator = _operator(key)
    if operator is None:
        raise FilterError(_unknown_operator(key))
    if operator == "$exists":
        raise FilterError("$exists is not available on this list; compare with null instead")
    if operator == "$elemMatch":
        return _elements(field, value)
    return compare(field, Op(operator), value)


def _unknown_operator(key: str) -> str:
    known = ", ".join((*Op, "$elemMatch", *_LOGICAL))
    return f"{key!r} is not an operator; operators: {known}"


def _elements(field: Field, value: Any) -> ElemMatch:
    if field.name not in ("spec", "data"):
        raise FilterError(f"$elemMatch works on spec and its parts, not on {field.title}")
    if not isinstance(value, dict) or not value:
        raise FilterError(f"$elemMatch on {field.title} takes an object with conditions")
    nodes: list[Compare] = []
    for key, item in value.items():
        if _operator(key) or key.startswith("$"):
            nodes.append(_element(Field("", ()), key, item))
        elif isinstance(item, dict):
            nodes += [_element(Field("", element_path(key)), op, below) for op, below in item.items()]
        else:
            op = Op.IN if isinstance(item, list) else Op.EQ
            nodes.append(compare(Field("", element_path(key)), op, item))
    if not nodes:
        raise FilterError(f"$elemMatch on {field.title} takes an object with conditions")
    return ElemMatch(field.name, field.path, tuple(nodes))


def _element(field: Field, key: str, value: Any) -> Compare:
    operator = _operator(key)
    if operator is None or operator not in ELEMENT:
        raise FilterError(f"{key!r} is not allowed in $elemMatch; allowed: {', '.join(ELEMENT)}")
    return compare(field, Op(operator), value)


def _parse_brackets(pairs: Sequence[tuple[str, str]]) -> list[Node]:
    gathered: dict[tuple[str, str], list[str]] = {}
    for key, value in pairs:
        match = _BRACKETS.fullmatch(key)
        if match is None:
            raise FilterError(
                f"{key!r} is not a filter; write filter[field]=value or filter[field][operator]=value"
            )
        gathered.setdefault((match[1], match[2] or ""), []).append(value)
    return [_bracket(resolve(name), word, values) for (name, word), values in gathered.items()]


def _bracket(field: Field, word: str, values: list[str]) -> Node:
    operator = _operator(word)
    if operator == "$not" or word == "$not":
        return Not(_bracket(field, "", values))
    if operator in (*ORDER, Op.LIKE, Op.STARTS, Op.ENDS, Op.CONTAINS, Op.HAS_KEY):
        if len(values) > 1:
            raise FilterError(f"{word} on {field.title} takes a single value")
        number = operator in (*ORDER, Op.CONTAINS) and field.name == "spec"
        return compare(field, Op(operator), _number(values[0]) if number else values[0])
    value = _bracket_value(values)
    if operator in ("$in", "$nin"):
        return compare(field, Op(operator), value if isinstance(value, list) else [value])
    if operator == "$eq" or (not word and not isinstance(value, dict)):
        return _equal(field, value)
    return _conditions(field, {word: value} if word else value, 0)


def _bracket_value(values: list[str]) -> Any:
    """Text of the query as a value: nothing is null, commas and repeats make a list."""
    if len(values) == 1 and values[0][:1] in ("{", "["):
        return load_json(values[0])
    items = [part for value in values for part in value.split(",")]
    return (items[0] or None) if len(items) == 1 else items


def _equal(field: Field, value: Any) -> Node:
    """Equality where all that is known is text: below spec it may be meant as a number."""
    if isinstance(value, list):
        return compare(field, Op.IN, value)
    number = _number(value) if field.name == "spec" else value
    return compare(field, Op.EQ, value) if number is value else compare(field, Op.IN, [value, number])


def _number(value: Any) -> Any:
    words = {"true": True, "false": False}
    if isinstance(value, str):
        if value in words:
            return words[value]
        if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?", value):
            return float(value) if "." in value else int(value)
    return value


__all__ = [
    "ENTITY_TYPE",
    "FIELDS",
    "ORDER",
    "And",
    "Compare",
    "ElemMatch",
    "FilterError",
    "Node",
    "Not",
    "Op",
    "Or",
    "Scalar",
    "echo",
    "parse_filter",
]

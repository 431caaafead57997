"""OTLP logs as JSON. Unknown keys are ignored; numbers of 64 bits may be text."""

import json
from collections.abc import Iterator
from typing import Any

from nemo_jobs.otlp.payload import MAX_ENTRIES, MAX_RESOURCES, BadPayload, TooLarge
from nemo_jobs.otlp.records import Masks, Piece, Record, Value, pieces, source_of
from nemo_jobs.otlp.values import anything

_MAX_DEPTH = 32


def decode(data: bytes, now: int, masks: Masks) -> Iterator[Piece]:
    """The records of a request. Raises BadPayload or TooLarge, and what `masks` raises."""
    resources = _list(_object(_parsed(data), "the body"), "resourceLogs")
    if len(resources) > MAX_RESOURCES:
        raise TooLarge(f"the request has more than {MAX_RESOURCES} resources; send smaller batches")
    found = [_object(item, "an entry of resourceLogs") for item in resources]
    scopes = [[_object(scope, "a scope") for scope in _list(item, "scopeLogs")] for item in found]
    if sum(len(_list(scope, "logRecords")) + 1 for some in scopes for scope in some) > MAX_ENTRIES:
        raise TooLarge(f"the request has more than {MAX_ENTRIES} records; send smaller batches")
    for item, some in zip(found, scopes, strict=True):
        told = item.get("resource")
        resource = {} if told is None else _object(told, "a resource")
        source = source_of(_attributes(resource))
        hide = None if source is None else masks(source)
        yield from pieces(source, _records(some), now, hide)


def _parsed(data: bytes) -> Any:
    try:
        # With the hook the interpreter gets a turn at each object, and so do other threads. Without it
        # they all stand still, the event loop too, until the whole body is read.
        return json.loads(data.decode(), object_hook=_as_it_is)
    except (ValueError, RecursionError) as error:
        raise BadPayload(f"the body is no OTLP JSON: {error}") from None


def _as_it_is(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _records(scopes: list[dict[str, Any]]) -> Iterator[Record]:
    for scope in scopes:
        for item in _list(scope, "logRecords"):
            record = _object(item, "a record")
            at = _number(record, "timeUnixNano", 2**64) or _number(record, "observedTimeUnixNano", 2**64)
            severity = _number(record, "severityNumber", 25)
            level = record.get("severityText") or ""
            if not isinstance(level, str):
                raise BadPayload("the body is no OTLP JSON: a severityText is not text")
            yield Record(at, severity, _clean(level), _value(record.get("body")), _attributes(record))


def _attributes(item: dict[str, Any], key: str = "attributes", depth: int = 0) -> dict[str, Value]:
    pairs = [_object(pair, "an attribute") for pair in _list(item, key)]
    if not all(isinstance(pair.get("key"), str) for pair in pairs):
        raise BadPayload("the body is no OTLP JSON: an attribute has no key")
    return {_clean(pair["key"]): _value(pair.get("value"), depth) for pair in pairs}


def _value(value: Any, depth: int = 0) -> Value:
    """What an object with one of the keys stringValue, intValue, … says."""
    if value is None:
        return None
    if depth > _MAX_DEPTH:
        raise BadPayload("a value of the body is nested too deeply")
    said = _object(value, "a value")
    if "stringValue" in said:
        return _clean(str(said["stringValue"]))
    if "intValue" in said:
        return _integer(said["intValue"], "intValue")
    for key in ("boolValue", "doubleValue", "bytesValue"):
        if key in said:
            inner = said[key]
            return anything(inner if isinstance(inner, int | float) else _clean(str(inner)))
    if "arrayValue" in said:
        inner = _object(said["arrayValue"], "an arrayValue")
        return [_value(item, depth + 1) for item in _list(inner, "values")]
    if "kvlistValue" in said:
        return _attributes(_object(said["kvlistValue"], "a kvlistValue"), "values", depth + 1)
    return None


def _number(record: dict[str, Any], key: str, limit: int) -> int:
    value = _integer(record.get(key) or 0, key)
    if not 0 <= value < limit:
        raise BadPayload(f"the body is no OTLP JSON: {key} is out of range")
    return value


def _integer(value: Any, key: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise BadPayload(f"the body is no OTLP JSON: {key} is no whole number") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadPayload(f"the body is no OTLP JSON: {what} is no object")
    return value


def _list(value: dict[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise BadPayload(f"the body is no OTLP JSON: {key} is no list")
    return found


def _clean(text: str) -> str:
    """Half a surrogate pair, which JSON can say and UTF-8 can't, becomes what can't be read."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")

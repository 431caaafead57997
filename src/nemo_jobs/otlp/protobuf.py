"""OTLP logs as protobuf.

The library builds a whole message in memory, which may be fifty times its bytes. So the outer
levels are walked here, where everything is counted, and only slices of records are given to it.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from nemo_jobs.otlp.payload import MAX_ENTRIES, MAX_RECORD, MAX_RESOURCES, MAX_VALUES, BadPayload, TooLarge
from nemo_jobs.otlp.records import Piece, Record, Value, pieces, source_of
from nemo_jobs.otlp.values import anything

#: Bytes of records that are decoded in one go, about.
SLICE = 256 << 10
#: The field of a request with its resources, and those of a resource and a scope.
_RESOURCE_LOGS, _RESOURCE, _SCOPE_LOGS, _LOG_RECORDS = 1, 1, 2, 2
_BYTES = 2  # the wire type of what has a length


def decode(data: bytes, now: int) -> Iterator[Piece]:
    """The records of a request. Raises BadPayload or TooLarge, maybe after some pieces."""
    count = _Count()
    for number, kind, _, start, end in _fields(data, 0, len(data)):
        if number == _RESOURCE_LOGS and kind == _BYTES:
            count.resource()
            source = source_of(_resource(data, start, end, count))
            yield from pieces(source, _records(data, start, end, count), now)


class _Count:
    """How much a request holds so far."""

    def __init__(self) -> None:
        self.entries = self.resources = self.values = 0

    def resource(self) -> None:
        self.resources += 1
        if self.resources > MAX_RESOURCES:
            raise TooLarge(f"the request has more than {MAX_RESOURCES} resources; send smaller batches")

    def entry(self) -> None:
        self.entries += 1
        if self.entries > MAX_ENTRIES:
            raise TooLarge(f"the request has more than {MAX_ENTRIES} records; send smaller batches")

    def members(self, number: int) -> None:
        self.values += number
        if self.values > MAX_VALUES:
            raise TooLarge(f"the request has more than {MAX_VALUES} attributes; send smaller batches")


def _resource(data: bytes, start: int, end: int, count: _Count) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for number, kind, _, at, stop in _fields(data, start, end):
        if number == _RESOURCE and kind == _BYTES:
            _check_length(stop - at)
            found |= _attributes(_parsed(Resource, data[at:stop]).attributes, count)
    return found


def _records(data: bytes, start: int, end: int, count: _Count) -> Iterator[Record]:
    for number, kind, _, at, stop in _fields(data, start, end):
        if number == _SCOPE_LOGS and kind == _BYTES:
            count.entry()
            for low, high in _slices(data, at, stop, count):
                for found in _parsed(ScopeLogs, data[low:high]).log_records:
                    yield _record(found, count)


def _slices(data: bytes, start: int, end: int, count: _Count) -> Iterator[tuple[int, int]]:
    """Ranges of a scope with neighbouring records in them and nothing else."""
    low = high = start
    for number, kind, begin, at, stop in _fields(data, start, end):
        if number == _LOG_RECORDS and kind == _BYTES:
            count.entry()
            _check_length(stop - at)
            if begin == high and stop - low <= SLICE:
                high = stop
                continue
            if low < high:
                yield low, high
            low, high = begin, stop
    if low < high:
        yield low, high


def _record(found: Any, count: _Count) -> Record:
    body = found.body
    given = found.attributes
    return Record(
        found.time_unix_nano or found.observed_time_unix_nano,
        found.severity_number,
        found.severity_text,
        body.string_value or _value(body, count),
        _attributes(given, count) if given else {},
    )


def _attributes(pairs: Any, count: _Count) -> dict[str, Value]:
    count.members(len(pairs))
    return {pair.key: pair.value.string_value or _value(pair.value, count) for pair in pairs}


def _value(value: Any, count: _Count) -> Value:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    inner = getattr(value, kind)
    if kind == "array_value":
        count.members(len(inner.values))
        return [_value(item, count) for item in inner.values]
    if kind == "kvlist_value":
        return _attributes(inner.values, count)
    return anything(inner)


def _parsed(message: Any, data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise BadPayload(f"the body is no OTLP protobuf: {error}") from None


def _check_length(length: int) -> None:
    if length > MAX_RECORD:
        raise TooLarge(f"a record or resource is larger than {MAX_RECORD >> 20} MiB")


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Number, wire type, first byte, first byte of the value, and end of each field."""
    while at < end:
        begin = at
        key = data[at]
        at += 1
        if key >= 0x80:  # numbers of up to 15, which are all that count here, fit into a byte
            key, at = _varint(data, begin, end)
        kind = key & 7
        if kind == _BYTES:
            length, at = _varint(data, at, end)
            stop = at + length
        elif kind == 0:
            stop = _varint(data, at, end)[1]
        elif kind in (1, 5):
            stop = at + (8 if kind == 1 else 4)
        else:
            raise BadPayload("the body is no OTLP protobuf: it has a field of an unknown type")
        if stop > end:
            raise BadPayload("the protobuf body is cut short")
        yield key >> 3, kind, begin, at, stop
        at = stop


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise BadPayload("the protobuf body is cut short or broken")

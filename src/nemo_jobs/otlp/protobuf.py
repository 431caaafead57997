"""OTLP logs as protobuf.

The library builds a whole message in memory, which may be fifty times its bytes. So the outer
levels are walked here, where everything is counted, and only single records are given to it; most
of those not even whole, see `_Reader`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from nemo_jobs.otlp.payload import MAX_ENTRIES, MAX_RECORD, MAX_RESOURCES, MAX_VALUES, BadPayload, TooLarge
from nemo_jobs.otlp.records import (
    FULL,
    FULL_RECORDS,
    MAX_LINE,
    Hide,
    Masks,
    Piece,
    Record,
    Tail,
    Value,
    settled,
    source_of,
    stream_of,
    tail_of,
)
from nemo_jobs.otlp.values import anything

#: The field of a request with its resources, and those of a resource and a scope.
_RESOURCE_LOGS, _RESOURCE, _SCOPE_LOGS, _LOG_RECORDS = 1, 1, 2, 2
_BYTES = 2  # the wire type of what has a length
#: The first bytes of a record's fields: time, severity as number and as text, body, time of
#: observation; and that of a body that is text.
_TIME, _SEVERITY, _LEVEL, _BODY, _OBSERVED, _TEXT = 0x09, 0x10, 0x1A, 0x2A, 0x59, 0x0A
#: What records of one request have in common is remembered for so many kinds of records, of so
#: many bytes at most.
_KINDS, _KIND_BYTES = 256, 2048


def decode(data: bytes, now: int, masks: Masks) -> Iterator[Piece]:
    """The records of a request. Raises BadPayload or TooLarge, maybe after some pieces, and what
    `masks` raises."""
    count = _Count()
    for number, kind, start, end in _fields(data, 0, len(data)):
        if number == _RESOURCE_LOGS and kind == _BYTES:
            count.resource()
            source = source_of(_resource(data, start, end, count))
            reader = _Reader(data, count, now, None if source is None else masks(source))
            piece = Piece(source)
            for at, stop in _records(data, start, end, count):
                reader.read(at, stop, piece)
                if piece.records >= FULL_RECORDS or piece.size >= FULL:
                    yield piece
                    piece = Piece(source)
            if piece.records:
                yield piece


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


class _Kind(NamedTuple):
    """What records have in common beside time and text, and how many values that is."""

    stream: str | None  # None: the text decides
    tail: Tail
    values: int


class _Reader:
    """The records of one resource, put into pieces.

    Lines of one program differ in time and text alone. So a record in the order in which
    exporters write it (time, severity, text, and the rest) is cut there, and its other bytes are
    read by the library once for all records that share them. Any other record is read whole."""

    def __init__(self, data: bytes, count: _Count, now: int, hide: Hide) -> None:
        self._data, self._count, self._now, self._hide = data, count, now, hide
        self._kinds: dict[bytes, _Kind | None] = {}

    def read(self, start: int, end: int, piece: Piece) -> None:
        """Put the record that lies in [start, end) into the piece."""
        if piece.source is None or not self._read_line(start, end, piece):
            piece.add(_record(_parsed(LogRecord, self._data[start:end]), self._count), self._now, self._hide)

    def _read_line(self, start: int, end: int, piece: Piece) -> bool:
        """The same for a record with one line of plain text, if it is one."""
        data, begin = self._data, start + 9
        if end - start < 13 or data[start] != _TIME:
            return False
        at = begin + 2 if data[begin] == _SEVERITY and data[begin + 1] < 0x80 else begin
        if data[at] == _LEVEL and data[at + 1] < 0x80:
            at += 2 + data[at + 1]
        if at + 4 > end or data[at] != _BODY:
            return False
        # Most lines are short, and so are the numbers that say how long they are.
        size, inner = (data[at + 1], at + 2) if data[at + 1] < 0x80 else _varint(data, at + 1, end)
        after = inner + size
        if not size or after > end or data[inner] != _TEXT:
            return False
        short = inner + 1 < after and data[inner + 1] < 0x80
        size, low = (data[inner + 1], inner + 2) if short else _varint(data, inner + 1, after)
        text = data[low:after]
        if low + size != after or not text.isascii() or b"\n" in text or b"\r" in text or size > MAX_LINE:
            return False
        kind = self._kind(data[begin:at], data[after:end])
        told = int.from_bytes(data[start + 1 : begin], "little")
        if kind is None or not told:
            return False
        self._count.members(kind.values)
        stream = kind.stream
        if stream != "stdout":
            text, stream = settled(text, stream)
        if self._hide is not None:
            text = self._hide(text)
        piece.put(text + b"\n", 1, told, stream, kind.tail)
        return True

    def _kind(self, before: bytes, behind: bytes) -> _Kind | None:
        """What the bytes around the text say; None if that is not for all texts the same."""
        if behind[-9:-8] == bytes((_OBSERVED,)):
            behind = behind[:-9]  # the time of observation, which is not needed beside the other one
        told = before + behind
        kinds = self._kinds
        if told in kinds:
            return kinds[told]
        if len(told) > _KIND_BYTES:
            return None
        if len(kinds) >= _KINDS:
            kinds.clear()
        kinds[told] = found = self._new_kind(told)
        return found

    def _new_kind(self, told: bytes) -> _Kind | None:
        try:
            record = LogRecord.FromString(told)
        except DecodeError:
            return None  # so it is cut in the wrong place, or broken
        if record.time_unix_nano or record.HasField("body"):
            return None
        count = _Count()
        _, severity, level, _, attributes = _record(record, count)
        tail = tail_of(severity, level, attributes, self._hide)
        return _Kind(stream_of(attributes, severity), tail, count.values)


def _resource(data: bytes, start: int, end: int, count: _Count) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for number, kind, at, stop in _fields(data, start, end):
        if number == _RESOURCE and kind == _BYTES:
            _check_length(stop - at)
            found |= _attributes(_parsed(Resource, data[at:stop]).attributes, count)
    return found


def _records(data: bytes, start: int, end: int, count: _Count) -> Iterator[tuple[int, int]]:
    """Where the records of a resource lie."""
    for number, kind, at, stop in _fields(data, start, end):
        if number == _SCOPE_LOGS and kind == _BYTES:
            count.entry()
            for inner, inner_kind, low, high in _fields(data, at, stop):
                if inner == _LOG_RECORDS and inner_kind == _BYTES:
                    count.entry()
                    _check_length(high - low)
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


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, first byte of the value, and end of each field."""
    while at < end:
        key = data[at]
        if key < 0x80:  # numbers of up to 15, which are all that count here, fit into a byte
            at += 1
        else:
            key, at = _varint(data, at, end)
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
        yield key >> 3, kind, at, stop
        at = stop


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        if byte < 0x80:
            return byte << shift | value, at
        value |= (byte & 0x7F) << shift
        shift += 7
    raise BadPayload("the protobuf body is cut short or broken")

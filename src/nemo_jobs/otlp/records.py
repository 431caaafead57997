"""From records to lines.

* The line feeds of a body make several lines of one record; the rules for carriage returns and
  long lines are those of all output.
* A record went to stderr when its attribute `stream` says so. Without that attribute one of level
  ERROR or above did, unless the text begins with the level in brackets: then the program chose it.
* A record without a time gets that at which it was observed; without that one, the time of arrival.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_LINE = 1 << 20
#: A piece is given on at this many bytes or records.
FULL = 256 << 10
FULL_RECORDS = 1_000
#: The number from which on a severity is an error.
ERROR = 17
_LEVEL = re.compile(r"\[(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\]", re.IGNORECASE)
_PREFIX = "[stderr] "
_STREAMS = ("stdout", "stderr")

Value = Any
#: Nanoseconds behind the microsecond, severity as number and as text, attributes.
Facts = tuple[int, int, str, Mapping[str, Value]]
Run = tuple[int, int, str, Facts]  # lines, microseconds since 1970, stream


class Source(NamedTuple):
    """Which task a resource is, as it says itself."""

    job: str
    attempt: str
    step: str
    task: str


class Record(NamedTuple):
    at: int  # nanoseconds since 1970; 0: not told
    severity: int
    level: str
    body: Value
    attributes: dict[str, Value]


@dataclass(slots=True)
class Piece:
    """Records of one source that came together. Without a source they can't be stored."""

    source: Source | None
    records: int = 0
    runs: list[Run] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    size: int = 0  # bytes of lines and attributes


_NAMES = ("job", "job_attempt", "job_step", "job_task")


def source_of(attributes: Mapping[str, Value]) -> Source | None:
    """The source that the attributes of a resource name; None when one of them is missing."""
    found = [attributes.get(name) for name in _NAMES]
    if not all(isinstance(value, str) and value for value in found):
        return None
    return Source(*(str(value) for value in found))


def pieces(source: Source | None, records: Iterable[Record], now: int) -> Iterator[Piece]:
    """The records in pieces of bounded size; `now` is in nanoseconds."""
    piece = Piece(source)
    for number, record in enumerate(records, 1):
        if source is not None:
            _add(piece, record, now)
        piece.records += 1
        if piece.size >= FULL or number % FULL_RECORDS == 0:
            yield piece
            piece = Piece(source)
    if piece.records:
        yield piece


def _add(piece: Piece, record: Record, now: int) -> None:
    told, severity, level, body, attributes = record
    text = body if isinstance(body, str) else _text(body)
    stream = attributes.get("stream") if attributes else None
    if stream in _STREAMS:
        del attributes["stream"]  # it is kept beside the line
        if stream == "stderr" and text.startswith(_PREFIX):
            text = text[len(_PREFIX) :]
    else:
        stream = "stderr" if severity >= ERROR and not _LEVEL.match(text) else "stdout"
    data, count = _lines(text)
    at, nanoseconds = divmod(told or now, 1000)
    piece.runs.append((count, at, stream, (nanoseconds, severity, level, attributes)))
    piece.lines.append(data)
    piece.size += len(data) + (len(json.dumps(attributes)) if attributes else 0)


def _lines(text: str) -> tuple[bytes, int]:
    data = text.encode("utf-8", "surrogatepass")  # half a pair is shown as what can't be read
    if b"\r" not in data and len(data) <= MAX_LINE:
        if not data.endswith(b"\n"):
            data += b"\n"
        return data, data.count(b"\n")
    made: list[bytes] = []
    for line in data.removesuffix(b"\n").split(b"\n"):
        made += _cut(_shown(line.rstrip(b"\r")))
    return b"\n".join(made) + b"\n", len(made)


def _shown(line: bytes) -> bytes:
    """Of redraws the last one that shows something."""
    if b"\r" not in line:
        return line
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")


def _cut(line: bytes) -> Iterator[bytes]:
    while len(line) > MAX_LINE:
        end = next((at for at in range(MAX_LINE, MAX_LINE - 4, -1) if line[at] & 0xC0 != 0x80), MAX_LINE)
        yield line[:end]
        line = line[end:]
    yield line


def _text(body: Value) -> str:
    return "" if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":"))

"""From records to lines.

* The line feeds of a body make several lines of one record; the rules for carriage returns and
  long lines are those of all output.
* A record went to stderr when its attribute `stream` says so. Without that attribute one of level
  ERROR or above did, unless the text begins with the level in brackets: then the program chose it.
* A record without a time gets that at which it was observed; without that one, the time of arrival.
* Values of secrets are hidden in lines, levels and attributes, where the task was given some.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_LINE = 1 << 20
#: A piece is given on at this many bytes or records.
FULL = 256 << 10
FULL_RECORDS = 1_000
#: The number from which on a severity is an error.
ERROR = 17
_LEVEL = re.compile(rb"\[(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\]", re.IGNORECASE)
_PREFIX = b"[stderr] "
_STREAMS = ("stdout", "stderr")

Value = Any
#: What hides values of secrets in text; None where there are none.
Hide = Callable[[bytes], bytes] | None
#: What a source's records have to be hidden with.
Masks = Callable[["Source"], Hide]


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


class Tail(NamedTuple):
    """What records have in common, as the head of a chunk says it: its JSON behind the nanoseconds
    of each, and how many bytes of attributes that counts as."""

    shown: str
    size: int


@dataclass(slots=True)
class Piece:
    """Records of one source that came together. Without a source they can't be stored.

    `heads` says of each record how many lines it has, their time and stream, and its facts, in the
    form of `store.chunks`; `at` and `stream` are those of the first one."""

    source: Source | None
    records: int = 0
    count: int = 0  # lines
    at: int = 0
    stream: str = ""
    heads: list[str] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    size: int = 0  # bytes of lines and attributes

    def put(self, data: bytes, count: int, told: int, stream: str, tail: Tail) -> None:
        """Add a record as `count` lines, each ended by a line feed; `told` is in nanoseconds."""
        at, nanoseconds = divmod(told, 1000)
        if not self.records:
            self.at, self.stream = at, stream
        self.records += 1
        self.count += count
        self.heads.append(f'[{count},{at},"{stream}",[{nanoseconds}{tail.shown}')
        self.lines.append(data)
        self.size += len(data) + tail.size

    def add(self, record: Record, now: int, hide: Hide) -> None:
        """Add any record; one of no source is only counted. `now` is in nanoseconds."""
        if self.source is None:
            self.records += 1
            return
        told, severity, level, body, attributes = record
        # Half of a surrogate pair is stored as it is, and shown as what can't be read.
        text = (body if isinstance(body, str) else _text(body)).encode("utf-8", "surrogatepass")
        text, stream = settled(text, stream_of(attributes, severity))
        data, count = _lines(text if hide is None else hide(text))
        self.put(data, count, told or now, stream, tail_of(severity, level, attributes, hide))


_NAMES = ("job", "job_attempt", "job_step", "job_task")


def source_of(attributes: Mapping[str, Value]) -> Source | None:
    """The source that the attributes of a resource name; None when one of them is missing."""
    found = [attributes.get(name) for name in _NAMES]
    if not all(isinstance(value, str) and value for value in found):
        return None
    return Source(*(str(value) for value in found))


def pieces(source: Source | None, records: Iterable[Record], now: int, hide: Hide) -> Iterator[Piece]:
    """The records in pieces of bounded size; `now` is in nanoseconds."""
    piece = Piece(source)
    for record in records:
        piece.add(record, now, hide)
        if piece.records >= FULL_RECORDS or piece.size >= FULL:
            yield piece
            piece = Piece(source)
    if piece.records:
        yield piece


def stream_of(attributes: Mapping[str, Value], severity: int) -> str | None:
    """The stream of a record; None when its text decides."""
    told = attributes.get("stream")
    if told in _STREAMS:
        return str(told)
    return None if severity >= ERROR else "stdout"


def settled(text: bytes, stream: str | None) -> tuple[bytes, str]:
    """The text without what only names its stream, and its stream for sure."""
    if stream is None:
        return text, "stdout" if _LEVEL.match(text) else "stderr"
    if stream == "stderr" and text.startswith(_PREFIX):
        text = text[len(_PREFIX) :]
    return text, stream


def tail_of(severity: int, level: str, attributes: Mapping[str, Value], hide: Hide) -> Tail:
    """What the head of a chunk says of such records. The stream is kept beside the lines, and so
    not among the attributes."""
    kept: Value = attributes
    if attributes.get("stream") in _STREAMS:
        kept = {name: value for name, value in attributes.items() if name != "stream"}
    if hide is not None:
        kept, level = _hidden(kept, hide), _hidden(level, hide)
    shown = json.dumps(kept, separators=(",", ":")) if kept else "{}"
    return Tail(f",{severity},{json.dumps(level)},{shown}]]", len(shown) if kept else 0)


def _hidden(value: Value, hide: Callable[[bytes], bytes]) -> Value:
    if isinstance(value, str):
        return hide(value.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
    if isinstance(value, Mapping):
        return {_hidden(name, hide): _hidden(inner, hide) for name, inner in value.items()}
    return [_hidden(inner, hide) for inner in value] if isinstance(value, list) else value


def _lines(data: bytes) -> tuple[bytes, int]:
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

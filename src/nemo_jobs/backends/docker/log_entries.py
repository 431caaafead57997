"""Entries of an engine's log: how they come, where reading stands, and how full the file is. Pure.

An entry is a line, or a piece of one: its stream, its time stamp (RFC 3339, 9 decimals, always 30
bytes) and its bytes as written, with the line feed if there was one.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.errors import EngineAway

#: (stream, time stamp, bytes); stream is 1 for stdout and 2 for stderr.
Entry = tuple[int, bytes, bytes]

NAMES = {1: "stdout", 2: "stderr"}

_HEAD, _STAMP = 8, 30
_NEIGHBOURS = 1000  # entries among which others of a long line's time stamp are looked for
_MOST_FRAME = 16 << 20
_ERROR = 3

# What the json-file driver writes for one entry besides the bytes, with the shortest time.
_AROUND = len('{"log":"","stream":"stdout","time":"2026-01-01T00:00:00Z"}\n')
_DECIMALS = len(".123456789")
_TWO = b'"\\\n\r'  # written as two bytes
_SIX = bytes({*range(0x20), *b"<>&"} - {*_TWO})  # written as six
_BAD, _SEPARATORS = "\ufffd".encode(), ("\u2028".encode(), "\u2029".encode())


class Frames:
    """Takes the frames of output with time stamps apart. `failure` is what the engine said when it
    broke off; nothing comes after that."""

    def __init__(self) -> None:
        self._rest = b""
        self.failure = ""

    def feed(self, data: bytes) -> list[Entry]:
        """The whole entries so far. Raises EngineAway when the bytes aren't such frames."""
        if self._rest:
            data = self._rest + data
        entries: list[Entry] = []
        add, at, size = entries.append, 0, len(data)
        while at + _HEAD <= size:
            text = at + _HEAD
            end = text + int.from_bytes(data[at + 4 : text])
            if end > size:
                self._check(data, at)
                break
            stream, begin = data[at], text + _STAMP
            if stream not in NAMES or begin >= end or data[begin] != 0x20:
                self._check(data, at)
                self.failure = data[text:end].decode(errors="replace")[:300].strip() or "it gave no reason"
                break
            add((stream, data[text:begin], data[begin + 1 : end]))
            at = end
        self._rest = b"" if self.failure else data[at:] if at else data
        return entries

    @staticmethod
    def _check(data: bytes, at: int) -> None:
        length = int.from_bytes(data[at + 4 : at + _HEAD])
        if data[at] > _ERROR or data[at + 1 : at + 4] != b"\0\0\0" or length > _MOST_FRAME:
            raise EngineAway("the engine's output isn't in frames as expected")
        if data[at] in NAMES and len(data) >= at + _HEAD + length:
            raise EngineAway("the engine's output comes without time stamps")


@dataclass(slots=True)
class Position:
    """Behind which entry reading stands.

    `seen` is for each stream the time stamp of its last entry and how many entries of that stream
    bear it; `last` is the stream of the last entry of all. A number of 0 stands for all of them.
    """

    seen: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    last: int = 0

    @classmethod
    def from_json(cls, value: Json | None) -> "Position":
        if not value or not value.get("last"):
            return cls()
        seen = {int(s): (str(stamp).encode(), int(n)) for s, (stamp, n) in value["seen"].items()}
        return cls(seen, int(value["last"]))

    def to_json(self) -> Json:
        return {"last": self.last, "seen": {str(s): [t.decode(), n] for s, (t, n) in self.seen.items()}}

    def __bool__(self) -> bool:
        return bool(self.last)

    def move(self, entries: "list[Entry]") -> None:
        """Go behind entries of one stream."""
        stream, stamp, _ = entries[-1]
        number = 1
        for at in range(len(entries) - 2, -1, -1):
            if entries[at][1] != stamp:
                break
            number += 1
        else:
            before, so_far = self.seen.get(stream, (b"", 0))
            number += so_far if before == stamp else 0
        self.seen[stream] = stamp, number
        self.last = stream

    def behind(self, entry: Entry) -> bool:
        """Whether an entry lies surely before this position, by the time stamps of its stream."""
        stamp, _ = self.seen.get(entry[0], (b"", 0))
        return entry[1] < stamp

    def at(self, entry: Entry) -> bool:
        """Whether the position is right behind an entry like this."""
        return entry[0] == self.last and entry[1] == self.seen[self.last][0]


class Seeker:
    """Finds a position in entries that begin before it."""

    def __init__(self, position: Position) -> None:
        self._stream = position.last
        self._stamp, self._number = position.seen[position.last]
        self._met = 0
        self.found = False

    def skip(self, entries: "list[Entry]") -> "list[Entry]":
        """What of the entries lies behind the position."""
        if self.found:
            return entries
        for at, (stream, stamp, _) in enumerate(entries):
            same = stream == self._stream and stamp == self._stamp
            if same:
                self._met += 1
            if same and self._met == self._number:
                self.found = True
                return entries[at + 1 :]
            if self._number == 0 and self._met and stream == self._stream and not same:
                self.found = True
                return entries[at:]
        return []

    def at_end(self) -> bool:
        """Nothing more comes: whether the position is there."""
        self.found = self.found or (self._number == 0 and self._met > 0)
        return self.found


@dataclass(slots=True)
class Tally:
    """Entries that were read one after another: the first one, and how many. As many of the log's last
    entries must begin with the same one; else some could not be read, or more came."""

    first: Entry | None = None
    count: int = 0
    certain: bool = True  # the first one can be told from all others

    def add(self, entries: "list[Entry]") -> None:
        if self.first is None:
            self.first = entries[0]
            self.certain = all(each[:2] != entries[0][:2] for each in entries[1:])
        elif self.certain and self.count < _NEIGHBOURS:
            self.certain = all(each[:2] != self.first[:2] for each in entries)
        self.count += len(entries)

    def agrees(self, first: Entry | None) -> bool:
        """Whether `first`, of as many last entries, is the first one that was read."""
        if first is None or self.first is None:
            return first is self.first
        return first[:2] == self.first[:2]


@dataclass(slots=True)
class Fill:
    """How full the engine's present log file is: it begins a new one before the entry that comes when
    the file has `limit` bytes or more. None: never.

    Not everything that is written can be known from what is read (a bad byte and U+FFFD look the
    same), so there are two counts, one of the most and one of the least, each with its own ends of
    files; `ahead` is by how many ends the first is before the second. `high` -1: nothing is known.
    """

    limit: int | None
    extra: int = 0  # bytes of attributes in each entry
    high: int = 0
    low: int = 0
    ahead: int = 0
    ends: int = 0  # how often a file may have ended since this was made

    @property
    def state(self) -> list[int]:
        return [self.high, self.low, self.ahead]

    @state.setter
    def state(self, value: "list[int]") -> None:
        self.high, self.low, self.ahead = value

    @property
    def sure(self) -> bool:
        """The next entry comes into the same file as the last one did."""
        return self.limit is None or (0 <= self.high < self.limit and self.ahead == 0)

    def add(self, entries: "list[Entry]") -> None:
        """Count entries that were written."""
        if self.limit is None or self.high < 0:
            return
        least, most = self._cost(entries)
        if self.high + most < self.limit and self.low + least < self.limit:
            self.high, self.low = self.high + most, self.low + least
            return
        for entry in entries:
            self._step(*self._cost([entry]), self.limit)

    def room(self, entries: "list[Entry]") -> int:
        """How many of the entries are sure to be in the present file, as far as that is known."""
        if self.limit is None:
            return len(entries)
        if not self.sure:
            return 0
        high = self.high
        if high + self._cost(entries)[1] < self.limit:
            return len(entries)
        for at, entry in enumerate(entries):
            if high >= self.limit:
                return at
            high += self._cost([entry])[1]
        return len(entries)

    def _step(self, least: int, most: int, limit: int) -> None:
        if self.high >= limit:
            self.high, self.ahead, self.ends = 0, self.ahead + 1, self.ends + 1
        if self.low >= limit:
            self.low, self.ahead = 0, self.ahead - 1
        self.high, self.low = self.high + most, self.low + least

    def _cost(self, entries: "list[Entry]") -> tuple[int, int]:
        """Between how many bytes and how many the driver writes for entries."""
        data = b"".join([data for _, _, data in entries])
        zeros = sum([_zeros(stamp) for _, stamp, _ in entries if stamp[28] == 0x30])
        least = len(entries) * (_AROUND + _DECIMALS + self.extra) - zeros + len(data)
        least += len(data) - len(data.translate(None, _TWO))
        least += 5 * (len(data) - len(data.translate(None, _SIX)))
        least += 3 * sum(data.count(each) for each in _SEPARATORS)
        return least, least + 3 * data.count(_BAD)


def _zeros(stamp: bytes) -> int:
    """How many bytes of a time stamp the driver leaves out: zeros at its end, and the point."""
    return len(stamp) - 1 - len(stamp[:-1].rstrip(b"0").rstrip(b"."))


def runs(entries: "list[Entry]") -> "Iterable[list[Entry]]":
    """The entries in order, as lists of one stream each."""
    begin = 0
    for at in range(1, len(entries) + 1):
        if at == len(entries) or entries[at][0] != entries[begin][0]:
            yield entries[begin:at]
            begin = at


def limits(container: Json) -> tuple[int | None, int]:
    """Of an inspected container: the bytes of one log file (None: no limit) and those of the
    attributes in each entry."""
    config = container.get("HostConfig", {}).get("LogConfig", {}).get("Config") or {}
    return _bytes(config.get("max-size", "")), _attributes(config, container.get("Config", {}))


def _bytes(text: str) -> int | None:
    """A size as the engine understands it: units are of 1000."""
    number = text.strip().rstrip("bBiI")
    unit = 1000 ** (" kmgtp".index(number[-1:].lower()) if number[-1:].lower() in tuple("kmgtp") else 0)
    try:
        size = int(float(number.rstrip("kmgtpKMGTP")) * unit)
    except ValueError:
        return None
    return size if size > 0 else None


def _attributes(config: "dict[str, Any]", container: "dict[str, Any]") -> int:
    """Bytes of the labels and variables that go into each entry."""
    labels = container.get("Labels") or {}
    wanted = {name.strip() for name in config.get("labels", "").split(",")}
    found = {name: value for name, value in labels.items() if name in wanted}
    if config.get("tag"):
        found["tag"] = config["tag"]
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return len(f'"attrs":{text},'.encode()) if found else 0

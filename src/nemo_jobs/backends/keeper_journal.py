"""The keeper's journal: what was started and how it ended, surviving every kill.

One line a fact, `<kind> <key> <json>`, appended with one write: a line is there or not. The facts
of a key add up from its first line to its last. Only the keeper writes; anyone may read. Standard
library only: the keeper runs this too.
"""

import json
import os
from collections.abc import Collection, Iterator
from typing import Any

Json = dict[str, Any]

STARTING = b"S"  # before the spawn: everything needed to find the process again
RUNNING = b"R"  # after the spawn: pid and start time
ENDED = b"E"  # how it ended
VOID = b"V"  # it was proven that the program never ran: may be started again
FORGOTTEN = b"F"  # removed

NAME = "journal"

_as_json = json.JSONEncoder(separators=(",", ":")).encode


def lines(path: str) -> Iterator[tuple[bytes, str, bytes]]:
    """(kind, key, json text) of each whole line; nothing when there is no journal.

    Facts are flat, so that a line torn by a full disk does not end in a brace.
    """
    try:
        file = open(path, "rb", buffering=1 << 18)  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return
    with file:
        for line in file:
            parts = line.split(b" ", 2)
            if len(parts) == 3 and line.endswith(b"}\n"):
                yield parts[0], parts[1].decode(), parts[2]


def fold(path: str, keys: Collection[str] | None = None) -> dict[str, Json]:
    """The facts of every key (or of those asked for) that is not void or forgotten."""
    found: dict[str, Json] = {}
    for kind, key, text in lines(path):
        if keys is not None and key not in keys:
            continue
        if kind in (VOID, FORGOTTEN):
            found.pop(key, None)
        else:
            found.setdefault(key, {}).update(json.loads(text))
    return found


def unfinished(path: str) -> dict[str, Json]:
    """The facts of the keys whose end is not recorded."""
    open_keys: dict[str, list[bytes]] = {}
    for kind, key, text in lines(path):
        if kind in (STARTING, RUNNING):
            open_keys.setdefault(key, []).append(text)
        else:
            open_keys.pop(key, None)
    return {key: _added_up(texts) for key, texts in open_keys.items()}


def _added_up(texts: list[bytes]) -> Json:
    facts: Json = {}
    for text in texts:
        facts |= json.loads(text)
    return facts


class Journal:
    """The writing side; one at a time, under the keeper's lock."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, NAME)
        self._file = self._open()
        self._size = os.fstat(self._file).st_size
        self._forgotten_bytes = 0
        self._largest: int = 0
        if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
            self._write(b"\n")

    def append(self, kind: bytes, key: str, facts: Json) -> None:
        """Record one fact. On an error of the disk (OSError) nothing was recorded."""
        line = b"%b %b %b\n" % (kind, key.encode(), _as_json(facts).encode())
        self._write(line)
        if kind == STARTING:
            self._largest = max(self._largest, len(line))
        elif kind in (FORGOTTEN, VOID):
            self._forgotten_bytes += 2 * self._largest + len(line)

    def recall(self, key: str) -> Json | None:
        """What is known of `key`; reads the file, for the rare case only."""
        return fold(self.path, (key,)).get(key)

    def worth_compacting(self) -> bool:
        return self._size > 1 << 20 and 2 * self._forgotten_bytes > self._size

    def compact(self) -> None:
        """Drop the lines of forgotten keys; a crash leaves the old file or the new one."""
        gone = {key for kind, key, _ in lines(self.path) if kind in (FORGOTTEN, VOID)}
        # A void key may have been started again: its later lines count.
        gone -= set(fold(self.path, gone)) if gone else set()
        new = self.path + ".new"
        with open(new, "wb", buffering=1 << 18) as file:
            for kind, key, text in lines(self.path):
                if key not in gone:
                    file.write(b"%b %b %b" % (kind, key.encode(), text))
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, self.path)
        os.close(self._file)
        self._file = self._open()
        self._size = os.fstat(self._file).st_size
        self._forgotten_bytes = 0

    def close(self) -> None:
        os.close(self._file)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.path, flags, 0o600)

    def _write(self, line: bytes) -> None:
        written = os.write(self._file, line)
        if written != len(line):  # a full disk: take the half line back
            os.ftruncate(self._file, self._size)
            raise OSError(28, "no space for the keeper's journal", self.path)
        self._size += written

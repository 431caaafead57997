"""Reading the output files of tasks while they grow.

One inotify watch on the directory of all outputs wakes the readers of the files that grew; a
kernel without a free watch leaves them to look every few milliseconds, more rarely when nothing
comes.
"""

import asyncio
import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from nemo_jobs.backends.api import Handle, Json, LogPiece
from nemo_jobs.backends.subprocess_files import STREAMS, wipe
from nemo_jobs.domain.clock import Clock

BLOCK = 1 << 20
_MODIFY = 0x2
_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_PAUSE = 0.002  # seconds between two reads of events: a flood of small writes costs no more
_LONG_WAIT = 2.0
_FIRST_LOOK, _LAST_LOOK = 0.01, 0.25  # without inotify


class Waker:
    """Something may have happened to one task: its output grew or it ended."""

    def __init__(self, watched: bool) -> None:
        self._event = asyncio.Event()
        self._watched = watched
        self._look = _FIRST_LOOK

    def wake(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self) -> None:
        """Until woken, or until it is time to look anyway."""
        seconds = _LONG_WAIT if self._watched else self._look
        self._look = min(2 * self._look, _LAST_LOOK)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
                self._look = _FIRST_LOOK


class OutputWatcher:
    """Wakes the readers of output files, by one watch a directory."""

    def __init__(self) -> None:
        self._file = -1
        self._libc: ctypes.CDLL | None = None
        self._directories: dict[str, int] = {}
        self._wakers: dict[tuple[int, bytes], set[Waker]] = {}

    @contextlib.contextmanager
    def watching(self, out: str) -> Iterator[Waker]:
        """A waker for the two files whose names begin with `out`."""
        watch = self._watch(os.path.dirname(out))
        waker = Waker(watched=watch >= 0)
        name = os.path.basename(out).encode()
        names = [(watch, name + suffix.encode()) for suffix in STREAMS.values()]
        for each in names:
            self._wakers.setdefault(each, set()).add(waker)
        try:
            yield waker
        finally:
            for each in names:
                self._wakers[each].discard(waker)
                if not self._wakers[each]:
                    del self._wakers[each]

    def close(self) -> None:
        if self._file >= 0:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)
            self._file = -1
        self._directories.clear()

    def _watch(self, directory: str) -> int:
        if directory not in self._directories:
            if self._file < 0:
                self._libc = ctypes.CDLL(None, use_errno=True)
                self._file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
                if self._file >= 0:
                    asyncio.get_running_loop().add_reader(self._file, self._readable)
            if self._file < 0 or self._libc is None:
                return -1
            watch = self._libc.inotify_add_watch(self._file, os.fsencode(directory), _MODIFY)
            if watch < 0:
                return -1
            self._directories[directory] = watch
        return self._directories[directory]

    def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._file)
        loop.call_later(_PAUSE, self._listen)
        try:
            data = os.read(self._file, 64 << 10)
        except BlockingIOError:
            return
        position = 0
        while position < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = data[position : position + length].rstrip(b"\0")
            position += length
            if mask & _OVERFLOW:
                for wakers in self._wakers.values():
                    for waker in wakers:
                        waker.wake()
            for waker in self._wakers.get((watch, name), ()):
                waker.wake()

    def _listen(self) -> None:
        if self._file >= 0:
            asyncio.get_running_loop().add_reader(self._file, self._readable)


@dataclass(slots=True)
class _Open:
    """One file that is read; -1 until it exists."""

    stream: str
    path: str
    position: int
    file: int = -1


class OutputReader:
    """Both streams of one task from a cursor on. Close it after use."""

    def __init__(self, task: str, out: str, cursor: Json | None, clock: Clock) -> None:
        self._task = task
        self._clock = clock
        begin = cursor or {}
        self._files = [
            _Open(stream, out + suffix, int(begin.get(suffix[1:], 0))) for stream, suffix in STREAMS.items()
        ]

    def read(self) -> Iterator[LogPiece]:
        """At most one block of each stream; nothing when both are read to their present end."""
        for file in self._files:
            data, missing = self._next(file)
            if data or missing:
                cursor = {each.path[-3:]: each.position for each in self._files}
                yield LogPiece(0, self._task, file.stream, self._clock.now(), data, cursor, missing)

    def close(self) -> None:
        for file in self._files:
            if file.file >= 0:
                os.close(file.file)
                file.file = -1

    def _next(self, file: _Open) -> tuple[bytes, int]:
        """The next bytes, and how many before them are gone."""
        if file.file < 0 and not _open(file):
            return b"", 0
        there = os.fstat(file.file)
        if there.st_size < file.position:
            file.position = 0  # cut by the program itself: what is there now is new
        available = there.st_size - file.position
        if available <= 0:
            return b"", 0
        missing = 0
        if there.st_blocks * 512 < available:
            missing = _hole(file.file, file.position, there.st_size)
            file.position += missing
        data = os.pread(file.file, min(BLOCK, there.st_size - file.position), file.position)
        file.position += len(data)
        return data, missing


def _open(file: _Open) -> bool:
    """Open what has something to be read: most short jobs leave one file empty, or both."""
    try:
        there = os.lstat(file.path)
        if there.st_size == file.position and stat.S_ISREG(there.st_mode):
            return False
        file.file = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    return True


def _hole(file: int, position: int, size: int) -> int:
    """How many bytes from `position` on were given back."""
    try:
        return os.lseek(file, position, os.SEEK_DATA) - position
    except OSError:
        return size - position  # nothing but a hole up to the end


class WipesOutput:
    """Dropping what tasks wrote once it is stored."""

    async def wipe_output(self, handle: Handle) -> None:
        await asyncio.to_thread(wipe, handle.data["out"])

"""The output of a container, byte by byte and each byte once, from the log that the engine keeps.

What the engine does (20.10, driver json-file), found by trying, and what is done about it:

* It stores lines, each with a time stamp of nanoseconds. A line of more than 16 KiB is stored in
  pieces of 16384 bytes that all bear the time of the first one and are joined by putting them
  together. What has no line feed yet is stored at 16 KiB, or at the end, and can't be read before.
* In one stream time stamps don't run back, except when the host's clock is set; across the two
  they do, by microseconds between lines, by any time between pieces of long lines. `since`
  (nanoseconds, the given one included) drops what was stored later with an earlier time. So
  reading goes on by `tail=N`, which counts entries in the order of storage, costs the engine little,
  and is checked: the entry that was read last must be in it.
* Each bad byte is stored as U+FFFD, and so are the parts of a character of several bytes that lies
  across two pieces of a long line. NUL, carriage returns and blank lines are kept.
* An answer without `follow` is what was stored when it was asked for, whole, whatever happens to
  the files meanwhile. One with `follow` is whole as long as the log file is the one that it began
  with: when the engine begins a new file, lines come twice or never. So it is left before the
  file can be full (`Fill` counts what the driver writes), and a plain reading follows.
* A reader can be slower than the container: what was in files that were deleted is lost, and told.
* An entry that was written in part (no space, a killed engine) ends every answer that comes to it,
  without a word, or makes it leave out what it had taken from the file, without a word too. What
  lies behind is read by a shorter tail, and that something is missing is told.
* While the engine is away a container (live-restore) writes into its pipe, 64 KiB at most, and the
  engine reads that when it comes back; but what is in the pipe when the container ends is lost.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime

from nemo_jobs.backends.api import Json, LogPiece
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.log_entries import NAMES, Entry, Fill, Position, Seeker, Tally, limits, runs
from nemo_jobs.backends.docker.log_screen import Glances, OpenLines
from nemo_jobs.backends.docker.log_windows import FIRST, LAST, SEEK, STEP, Stream, Windows

#: `LogPiece.truncated` where it can't be known how many bytes are missing.
SOME = -1

_MANY = 1000  # entries that came in one reading: more have come meanwhile
_QUIET = 2.0  # seconds without output after the end, until the answer is given up
_ANEW = 600.0  # seconds of silence until it is asked for anew: a connection may be dead unnoticed
_SMALL = 64 << 10  # bytes of log that fit into any file: until then nothing needs to be known of it
_LOOK = (0.25, 5.0)  # seconds between readings while following isn't safe


async def logs(
    engine: DockerEngine,
    container: str,
    task: str,
    cursor: Json | None,
    ended: asyncio.Event,
    *,
    since: int = 0,
    doubtful: Callable[[], Awaitable[bool]] | None = None,
) -> AsyncGenerator[LogPiece, None]:
    """Output behind `cursor` (None: all of it) as it is stored, until `ended` is set and all is read.
    What was stored before `since` (microseconds of the engine's clock) is an earlier run's.

    `ended` says that the container runs no more, or is gone. Of one that was removed comes what was
    read before; a last piece without bytes tells when there may have been more, and so it does when
    at the end it is `doubtful` whether the engine was there to store all. Raises EngineAway and
    EngineError; the cursor of the last piece leads on from there.
    """
    reader = _Reader(engine, container, task, cursor, ended, since)
    try:
        async for piece in reader.pieces():
            yield piece
        if doubtful is not None and await doubtful():
            yield reader.gap()
    except EngineError as error:
        if not (error.missing or error.conflict):
            raise
        if not reader.whole:
            yield reader.gap()
    finally:
        await reader.aclose()


class _Reader:
    """Reads one log; `whole`: all that the container ever wrote was read, as far as that can be seen."""

    def __init__(
        self,
        engine: DockerEngine,
        container: str,
        task: str,
        cursor: Json | None,
        ended: asyncio.Event,
        since: int,
    ) -> None:
        self._since = f"{datetime.fromtimestamp(since / 1e6, UTC):%Y-%m-%dT%H:%M:%S.%f}000Z".encode()
        self._engine, self._container, self._task, self._ended = engine, container, task, ended
        self._position = Position.from_json(cursor)
        self._fill = Fill(None)
        state = (cursor or {}).get("fill")
        self._anchored = bool(state) or not self._position
        self._fill.state = state or [0, 0, 0]
        self._asked = False
        self._uncounted: list[Entry] = []  # while it isn't known how large files may become
        self._taken = 0  # entries given on in the present reading
        self._fresh = not self._position and not since  # the log begins with what is read here
        self._tally = Tally()
        self._missing = False  # something was lost before the next piece
        self._found = False
        self._windows = Windows(engine, container)
        self._lines = OpenLines((cursor or {}).get("open"))
        self.whole = False

    async def aclose(self) -> None:
        """Close what is open, when pieces are not read to their end."""
        await self._windows.aclose()

    async def pieces(self) -> AsyncIterator[LogPiece]:
        """Follow while that is safe; read what is there before, between and after."""
        follow, pause, look = not self._position, 1.0, _LOOK[0]
        if not follow:
            await self._ask()
        while True:
            over = self._ended.is_set()
            if over and self.whole and await self._complete():
                return
            if follow and not over:
                async for piece in self._following():
                    yield piece
                follow = False
                if self.whole:  # it ended by itself: so has the container, as we shall hear
                    await self._wait(pause)
                    pause = min(2 * pause, 10.0)
                continue
            async for piece in self._present():
                yield piece
            if over or (self.whole and not self._taken):
                async for piece in self._behind_damage():
                    yield piece
            self.whole = over
            if over:
                return
            follow = self._taken < _MANY and self._sure
            if self._taken:
                look = _LOOK[0]
            elif not follow:
                await self._wait(look)
                look = min(2 * look, _LOOK[1])

    def gap(self) -> LogPiece:
        """A piece that only says that something is missing."""
        now = int(datetime.now().timestamp() * 1e6)
        return LogPiece(0, self._task, NAMES[1], now, b"", self._cursor(), SOME)

    # Readings

    async def _following(self) -> AsyncIterator[LogPiece]:
        """Output as it comes, while the log file is surely the same one. `whole` is set when it came
        to its end."""
        self.whole, self._taken = False, 0
        begun = asyncio.get_running_loop().time()
        stream = await self._windows.reaching(self._position, follow=True)
        watch = asyncio.create_task(self._close_in_time(stream))
        glances = Glances(self._engine if self._engine.local else None, self._container)
        try:
            await self._seek(stream, seconds=SEEK)
            while self._found and (entries := await glances.next(stream)) != []:
                room = await self._room(entries or [])
                given = self._given(entries[:room]) if entries else self._drawn(glances.pictures())
                for piece in given:
                    yield piece
                if room < len(entries or []) or not self._sure:
                    return
            self.whole = self._found and not stream.closed
        except EngineAway:
            if not stream.closed and asyncio.get_running_loop().time() < begun + 1.0:
                raise  # else it may be only this connection that broke: the next reading will tell
        finally:
            watch.cancel()
            await glances.aclose()
            await self._windows.close(stream)

    async def _present(self) -> AsyncIterator[LogPiece]:
        """What is in the log now and was not read yet."""
        self._taken = 0
        for windows in (True, False) if self._anchored else (False, True):
            whole = not windows or self._few
            stream = self._windows.open() if whole else await self._windows.reaching(self._position)
            try:
                await self._seek(stream, anchor=not windows and not self._anchored)
                while self._found and (entries := await stream.next()):
                    for piece in self._given(entries):
                        yield piece
            finally:
                await self._windows.close(stream)
            if self._found:
                self._missing = self._missing or stream.broken
                return
        # The engine has deleted what was read last: all that it has is new.
        self._position, self._missing, self._tally = Position(), True, Tally()
        self._fill.state, self._fill.ends, self._anchored = [0, 0, 0], 0, True
        async for piece in self._present():
            yield piece

    async def _seek(self, stream: Stream, *, seconds: float | None = None, anchor: bool = False) -> None:
        """Read as far as the position; `_found` tells whether it is there. It must be found within
        `seconds`, when nothing else comes. With `anchor` the log is read from the beginning of a
        file, and what is before the position is counted too."""
        self._found = not self._position
        seeker = None if self._found else Seeker(self._position)
        if anchor:
            self._fill.state = [0, 0, 0]
        while seeker is not None and not self._found:
            try:
                async with asyncio.timeout(seconds):
                    entries = await stream.next()
            except TimeoutError:
                return
            rest = seeker.skip(entries)
            if anchor:
                self._fill.add(entries[: len(entries) - len(rest)])
            stream.again(rest)
            self._found = seeker.found or (not entries and seeker.at_end())
            if not entries:
                break
        if self._found and not self._anchored:
            self._anchored = True
            self._fill.high = self._fill.high if anchor else -1

    def _of_this_run(self, entries: list[Entry]) -> list[Entry]:
        """Of the first entries of a log those that aren't an earlier run's."""
        earlier = next((at for at, each in enumerate(entries) if each[1] >= self._since), len(entries))
        if earlier:
            self._count(entries[:earlier])
        return entries[earlier:]

    async def _behind_damage(self) -> AsyncIterator[LogPiece]:
        """What lies behind an entry that the engine can't read."""
        complete = await self._complete()
        last = await self._windows.first(1) if self._position and not complete else None
        if last is not None and not self._position.at(last):
            async for piece in self._present():
                yield piece
            if not self._taken:  # it is there and can't be come to
                async for piece in self._shorter(last):
                    yield piece
        elif complete is False:
            self._missing = True  # somewhere before: the engine says nothing when it leaves entries out
        if self._missing:
            yield self.gap()
            self._missing, self._tally, self._fresh = False, Tally(), False

    async def _complete(self) -> bool | None:
        """Whether the entries that were read are all that there are; None when that can't be told."""
        tally = self._tally
        if not tally.certain or self._fill.ends or self._fill.high < 0 or not (tally.count or self._fresh):
            return None
        return tally.agrees(await self._windows.first(max(1, tally.count)))

    async def _shorter(self, last: Entry) -> AsyncIterator[LogPiece]:
        """The longest tail that can be read as far as the last entry."""
        readable, damaged = 1, 0
        while not damaged or damaged - readable > max(1, readable >> 12):
            tail = (readable + damaged) // 2 if damaged else readable * STEP
            if await self._windows.readable(tail, last):
                readable = tail
            else:
                damaged = tail
            if tail > LAST:
                break
        self._missing, self._fill.high = True, -1
        stream = self._windows.open(readable)
        try:
            while entries := await stream.next():
                for piece in self._given(entries):
                    yield piece
        finally:
            await self._windows.close(stream)

    # What was read

    def _given(self, entries: list[Entry]) -> Iterator[LogPiece]:
        """Entries as pieces; reading stands behind them then."""
        if not self._position:
            entries = self._of_this_run(entries)
        if not entries:
            return
        self._taken += len(entries)
        self._tally.add(entries)
        for run in runs(entries):
            self._position.move(run)
            self._count(run)
            at = int(datetime.fromisoformat(run[0][1][:26].decode() + "+00:00").timestamp() * 1e6)
            truncated, self._missing = SOME if self._missing else 0, False
            data = self._lines.passed(run[0][0], b"".join([data for _, _, data in run]))
            yield LogPiece(0, self._task, NAMES[run[0][0]], at, data, self._cursor(), truncated)

    def _drawn(self, pictures: list[tuple[int, bytes]]) -> Iterator[LogPiece]:
        """Pictures of unfinished lines as pieces; reading stands where it stood."""
        for stream, picture in pictures:
            if data := self._lines.draw(stream, picture):
                now = int(datetime.now().timestamp() * 1e6)
                yield LogPiece(0, self._task, NAMES[stream], now, data, self._cursor())

    def _cursor(self) -> Json:
        cursor = self._position.to_json()
        if self._asked and self._anchored:
            cursor["fill"] = self._fill.state
        if lines := self._lines.to_json():
            cursor["open"] = lines
        return cursor

    # How full the file is

    @property
    def _few(self) -> bool:
        return self._fresh and self._tally.count <= FIRST

    @property
    def _sure(self) -> bool:
        return not self._asked or self._fill.sure

    def _count(self, entries: list[Entry]) -> None:
        if self._asked:
            self._fill.add(entries)
        else:
            self._uncounted += entries

    async def _room(self, entries: list[Entry]) -> int:
        """How many entries are surely in the file that was there when following began."""
        if not self._asked:
            held = [*self._uncounted, *entries]
            if sum(500 + 6 * len(data) for _, _, data in held) < _SMALL:
                return len(entries)
            await self._ask()
        return self._fill.room(entries)

    async def _ask(self) -> None:
        """Learn how large the files of this log may become."""
        container = await self._engine.inspect(self._container)
        if container is None:
            raise EngineError(404, f"no such container: {self._container}")
        self._fill.limit, self._fill.extra = limits(container)
        self._asked = True
        self._fill.add(self._uncounted)
        self._uncounted = []

    # Waiting

    async def _wait(self, seconds: float) -> None:
        """Until the container has ended, or as long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    async def _close_in_time(self, stream: Stream) -> None:
        """Close a call whose end doesn't come, or that has been silent for long. Each piece that comes
        moves the time on."""
        now = asyncio.get_running_loop().time
        while not self._ended.is_set() and now() < stream.heard + _ANEW:
            await self._wait(stream.heard + _ANEW - now())
        since = now()
        while (left := max(stream.heard, since) + _QUIET - now()) > 0 and self._ended.is_set():  # noqa: ASYNC110
            await asyncio.sleep(left)
        await stream.aclose()

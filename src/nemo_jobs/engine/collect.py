"""Output of one workload: read from the backend, cut into lines, stored in batches.

One `Collector` a held step. A reader task pulls pieces (at most `MAX_PENDING` bytes ahead of the
store); a writer task stores what has gathered: soon after the first byte, at growing intervals
while output keeps coming, at once when a batch is full. The position in the output is stored in
the same transaction as the lines, so a restart repeats and drops nothing.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from nemo_jobs.backends.api import Backend, Handle, LogPiece, Trims
from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Json
from nemo_jobs.engine.hidden import Cloak
from nemo_jobs.engine.lines import LineSplitter
from nemo_jobs.store.chunks import pack
from nemo_jobs.store.steps import Chunk, LogBatch
from nemo_jobs.vault.masking import MaskedStream

log = logging.getLogger(__name__)

FULL = 1 << 20
MAX_PENDING = 4 << 20
#: Seconds from the first byte to its storage; the pause grows while output keeps coming, little
#: for a trickle, more for a stream.
FIRST_FLUSH = 0.005
TRICKLE_FLUSH = 0.02
STREAM_FLUSH = 0.5
TRICKLE = 64 << 10
#: Lines that share a time stamp arrived within this many microseconds.
TOGETHER = 50_000
SNAPSHOT_EVERY = 1.0

#: How long a backend that can't be asked for the rest of ended work's output is waited for, and how
#: long reading that may take in all, in seconds.
AWAY_SECONDS, DRAIN_MOST = 600.0, 1800.0

#: Stores a batch and tells how many bytes the job's log holds then; None: the lease is gone.
Store = Callable[[LogBatch], Awaitable[int | None]]


class Patience:
    """How long the rest of the output is waited for: anew with each piece of it."""

    def __init__(self, timeout: asyncio.Timeout, seconds: float) -> None:
        self._timeout, self._seconds = timeout, seconds
        self._loop = asyncio.get_running_loop()
        began = self._loop.time()
        self._away, self._end = began + AWAY_SECONDS, began + DRAIN_MOST

    def renew(self) -> None:
        """Something came."""
        now = self._loop.time()
        self._away = now + AWAY_SECONDS
        self._until(min(self._end, now + self._seconds))

    def stop(self) -> None:
        """What came has to be stored before more can come."""
        self._until(None)

    def wait_for_backend(self, delay: float) -> None:
        """It can't be asked; it is asked again after `delay`."""
        self._until(min(self._away, self._end, self._loop.time() + delay + self._seconds))

    def _until(self, when: float | None) -> None:
        if not self._timeout.expired():
            self._timeout.reschedule(when)


class Collector:
    """Collects the output of one workload until it has ended or the lease is lost."""

    def __init__(
        self,
        backend: Backend,
        handle: Handle,
        cursor: Json | None,
        store: Store,
        clock: Clock,
        limit: int,
        cloak: Cloak | None = None,
    ) -> None:
        self._backend, self._handle, self._store = backend, handle, store
        self._clock, self._limit, self._cloak = clock, limit, cloak
        # A position in the output of another run of the step means nothing here.
        cursor = cursor if cursor and cursor.get("key") == handle.key else {}
        self._position: Json | None = cursor.get("at")
        self._full: bool = cursor.get("full", False)
        self._splitters: dict[tuple[str, str], LineSplitter] = {}
        self._masked: dict[tuple[str, str], MaskedStream] = {}
        # Of output that is withheld not even its unfinished lines are shown.
        for item in () if cloak and cloak.withheld else cursor.get("streams", ()):
            self._restore(item["task"], item["stream"], item["state"])
        self._chunks: list[tuple[str, str, int, int, list[bytes]]] = []
        self._pending = self._taken = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._moved = False
        self._storing = asyncio.Lock()  # held while a batch is between here and the database
        self._patience: Patience | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        #: Why the output can't be read now, or was not read to its end.
        self.failure: str | None = None

    def start(self) -> None:
        """Read while the work runs. Of work that has ended already, `drain` alone reads all."""
        self._reader = asyncio.create_task(self._read())

    async def drain(self, seconds: float) -> LogBatch | None:
        """Wait until all output is read and give what is not stored yet, to be stored with the end.

        When nothing comes for `seconds` the rest is given up and a marker line says so; a backend that
        can't be asked is waited for longer.
        """
        why = f"nothing more of its output came for {seconds:g} s after the end"
        try:
            async with asyncio.timeout(seconds) as patience:
                self._patience = Patience(patience, seconds)
                await (asyncio.shield(self._reader) if self._reader else self._read())
        except TimeoutError:
            self.failure = f"{why}: {self.failure}" if self.failure else why
            self._mark("", f"this log may be incomplete: {self.failure}")
        finally:
            self._patience = None
        async with self._storing:
            await self.aclose()
        for (task, stream), masked in self._masked.items():
            self._add(task, stream, *self._splitter(task, stream).feed(masked.finish()))
        for (task, stream), splitter in self._splitters.items():
            self._add(task, stream, *splitter.finish())
        return self._take() if self._moved or self._chunks else None

    async def aclose(self) -> None:
        """End both tasks; what is not stored stays with the backend."""
        for task in (self._reader, self._writer):
            if task is not None:
                task.cancel()
        await asyncio.gather(
            *(t for t in (self._reader, self._writer) if t is not None), return_exceptions=True
        )

    async def _read(self) -> None:
        delay = 0.5
        while True:
            try:
                async for piece in self._backend.logs(self._handle, self._position):
                    self.failure = None
                    await self._accept(piece)
                self.failure = None
                return
            except Exception as error:
                # A reader that fails touches only its own task; it goes on from the cursor.
                log.warning("reading the output of %s failed, trying again: %s", self._handle.key, error)
                self.failure = str(error)
                if self._patience is not None:
                    self._patience.wait_for_backend(delay)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 10.0)

    async def _accept(self, piece: LogPiece) -> None:
        if piece.truncated and not self._full:
            self._mark(piece.task, _lost(piece.truncated))
        if self._cloak and self._cloak.withheld and not self._full:
            self._full = True
            self._mark(piece.task, f"this output is withheld: {self._cloak.withheld}")
        if not self._full:
            data = piece.data if self._cloak is None else await self._shown(self._cloak, piece)
            lines, count = self._splitter(piece.task, piece.stream).feed(data)
            self._add(piece.task, piece.stream, lines, count)
        self._position, self._moved = piece.cursor, True
        self._arrived.set()
        if self._writer is None and (self._reader is not None or self._pending >= FULL):
            self._writer = asyncio.create_task(self._write())
        if self._pending >= MAX_PENDING:
            self._room.clear()
            if self._patience is not None:
                self._patience.stop()  # it is not the backend that is slow
            await self._room.wait()
        if self._patience is not None:
            self._patience.renew()

    async def _shown(self, cloak: Cloak, piece: LogPiece) -> bytes:
        """What of the output may be shown by now, without the values of secrets."""
        name = piece.task, piece.stream
        if name not in self._masked:
            self._masked[name] = cloak.stream()
        return await cloak.feed(self._masked[name], piece.data)

    def _state(self, task: str, stream: str) -> Json | None:
        """What is read and not stored yet; closed, where it may hold a part of a secret."""
        state = self._splitter(task, stream).state()
        masked = self._masked.get((task, stream))
        if self._cloak is None or masked is None:
            return state
        if state is None and not masked.held:
            return None
        return self._cloak.close({"lines": state, "masked": masked.state()})

    def _restore(self, task: str, stream: str, state: Json) -> None:
        splitter = self._splitter(task, stream)
        if self._cloak is not None:
            opened = self._cloak.open(state)
            self._masked[task, stream] = masked = self._cloak.stream()
            masked.restore(opened.get("masked"))
            state = opened.get("lines") or {}
        if state:
            splitter.restore(state)

    def _splitter(self, task: str, stream: str) -> LineSplitter:
        return self._splitters.setdefault((task, stream), LineSplitter())

    def _add(self, task: str, stream: str, lines: bytes, count: int) -> None:
        if not count:
            return
        self._pending += len(lines)
        now = self._clock.now()
        last = self._chunks[-1] if self._chunks else None
        if last and last[:2] == (task, stream) and now - last[2] < TOGETHER and len(last[4]) < 8:
            self._chunks[-1] = (task, stream, last[2], last[3] + count, [*last[4], lines])
        else:
            self._chunks.append((task, stream, now, count, [lines]))

    def _mark(self, task: str, text: str) -> None:
        name = task or next((t for t, _ in self._splitters), "")
        self._add(name, "stdout", f"[nemo-jobs] {text}\n".encode(), 1)

    def _take(self) -> LogBatch:
        chunks = tuple(
            Chunk(task, stream, at, n, b"".join(parts)) for task, stream, at, n, parts in self._chunks
        )
        self._chunks, self._pending, self._moved, self._taken = [], 0, False, self._pending
        self._room.set()
        streams = [
            {"task": task, "stream": stream, "state": state}
            for task, stream in self._splitters
            if (state := self._state(task, stream)) is not None
        ]
        return LogBatch(
            chunks, {"key": self._handle.key, "at": self._position, "streams": streams, "full": self._full}
        )

    async def _write(self) -> None:
        interval, flushed = FIRST_FLUSH, float("-inf")
        async for idle in self._ticks():
            if idle:
                self._snapshot()
            elif self._pending < FULL:
                quiet = self._clock.monotonic() - flushed > 2 * FIRST_FLUSH
                interval = FIRST_FLUSH if quiet else interval
                await asyncio.sleep(interval)
                interval = min(interval * 2, TRICKLE_FLUSH if self._pending < TRICKLE else STREAM_FLUSH)
            async with self._storing:
                if (self._moved or self._chunks) and not await self._flush():
                    return
            flushed = self._clock.monotonic()

    async def _ticks(self) -> AsyncIterator[bool]:
        """False when something arrived, True once a second while nothing does."""
        last = 0.0
        while True:
            redrawing = any(splitter.redrawing for splitter in self._splitters.values())
            try:
                # Not wait_for: on Python 3.11 it may swallow a cancellation that comes with the event.
                async with asyncio.timeout(SNAPSHOT_EVERY if redrawing else 60.0):
                    await self._arrived.wait()
                self._arrived.clear()
                now = self._clock.monotonic()
                if redrawing and now - last >= SNAPSHOT_EVERY:
                    last = now
                    self._snapshot()
                yield False
            except TimeoutError:
                last = self._clock.monotonic()
                yield True

    def _snapshot(self) -> None:
        for (task, stream), splitter in self._splitters.items():
            shown = splitter.snapshot()
            self._add(task, stream, shown, 1 if shown else 0)

    async def _flush(self) -> bool:
        batch, weight = self._take(), self._taken
        if weight >= TRICKLE:
            batch = await asyncio.to_thread(pack, batch)  # compression must not hold up the loop
        size = await self._store(batch)
        if size is None:
            if self._reader is not None:
                self._reader.cancel()
            return False
        if isinstance(self._backend, Trims) and self._position is not None and batch.cursor["at"] is not None:
            await self._backend.trim(self._handle, batch.cursor["at"])
        if size >= self._limit and not self._full:
            self._full = True
            task = batch.chunks[-1].task if batch.chunks else ""
            self._mark(task, f"log limit of {self._limit} bytes reached; later output is discarded")
            self._splitters.clear()  # nothing comes behind the marker, unfinished lines included
            self._masked.clear()
        return True


def _lost(count: int) -> str:
    if count < 0:
        return "output may have been lost before this line, nobody knows how much"
    return f"{count} bytes of output were lost before this line"

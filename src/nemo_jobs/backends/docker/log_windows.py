"""Asking an engine for a log: all of it, or its last entries back to where reading stands."""

import asyncio

from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.log_entries import Entry, Frames, Position

#: How many of the last entries are tried first, by how much more the next time, and when all are.
FIRST, STEP, LAST = 8, 8, 1 << 24
#: Seconds for what is there to come, of an answer that goes on.
SEEK = 10.0


class Stream:
    """One call for output."""

    def __init__(self, engine: DockerEngine, container: str, tail: str, *, follow: bool) -> None:
        self._bytes = engine.logs(container, tail=tail, follow=follow)
        self._frames = Frames()
        self._ready: list[list[Entry]] = []
        self.heard = asyncio.get_running_loop().time()
        self.closed = False  # by us

    async def next(self) -> list[Entry]:
        """Some more entries; none at the end."""
        if self._ready:
            return self._ready.pop()
        while not self._frames.failure:
            try:
                data = await self._bytes.__anext__()
            except StopAsyncIteration:
                return []
            self.heard = asyncio.get_running_loop().time()
            if entries := self._frames.feed(data):
                return entries
        return []

    def again(self, entries: list[Entry]) -> None:
        """Give entries back, to be the next ones."""
        if entries:
            self._ready.append(entries)

    @property
    def broken(self) -> bool:
        """The engine said that it can't read on."""
        return bool(self._frames.failure)

    async def aclose(self) -> None:
        self.closed = True
        await self._bytes.aclose()


class Windows:
    """Opens calls for one container's output; all are closed by `aclose`."""

    def __init__(self, engine: DockerEngine, container: str) -> None:
        self._engine, self._container = engine, container
        self._open: list[Stream] = []

    async def aclose(self) -> None:
        for stream in self._open:
            await stream.aclose()

    async def close(self, stream: Stream) -> None:
        await stream.aclose()
        self._open.remove(stream)

    def open(self, tail: int = 0, *, follow: bool = False) -> Stream:
        """The last entries; 0: all of them."""
        stream = Stream(self._engine, self._container, str(tail or "all"), follow=follow)
        self._open.append(stream)
        return stream

    async def reaching(self, position: Position, *, follow: bool = False) -> Stream:
        """A call that begins before the position, not long before where that can be."""
        if not position:
            return self.open(0, follow=follow)
        tail = FIRST
        for _ in range(4):
            stream = self.open(tail, follow=follow)
            try:
                async with asyncio.timeout(SEEK if follow else None):
                    entries = await stream.next()
            except TimeoutError:
                entries = []
            if entries and position.behind(entries[0]):
                stream.again(entries)
                return stream
            await self.close(stream)
            tail = await self._reach(position, tail, next(iter(entries), None))
            if not tail:
                break
        return self.open(0, follow=follow)

    async def _reach(self, position: Position, short: int, oldest: Entry | None) -> int:
        """How many of the last entries begin before the position; 0 when none do. `short` are too few:
        they begin with `oldest`."""
        reach = STEP * short
        while (first := await self.first(reach)) and not position.behind(first):
            if first == oldest or reach > LAST:
                return 0
            oldest, short, reach = first, reach, reach * STEP
        if first is None:
            return 0
        while reach - short > max(1024, short // 8):
            middle = (short + reach) // 2
            first = await self.first(middle)
            if first and position.behind(first):
                reach = middle
            else:
                short = middle
        return reach + reach // 16 + FIRST  # more may come meanwhile

    async def first(self, tail: int) -> Entry | None:
        """The first one of the last entries."""
        stream = self.open(tail)
        try:
            return next(iter(await stream.next()), None)
        finally:
            await self.close(stream)

    async def readable(self, tail: int, entry: Entry) -> bool:
        """Whether all of the last entries can be read, up to this one."""
        stream, count, there = self.open(tail), 0, False
        try:
            while entries := await stream.next():
                count += len(entries)
                there = there or any(each[:2] == entry[:2] for each in entries)
            return there and count == tail
        finally:
            await self.close(stream)

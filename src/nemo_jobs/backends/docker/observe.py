"""Looking at an engine: its events as they come, lists where those had a gap, nothing over and over."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from nemo_jobs.backends.api import Json, Unavailable
from nemo_jobs.backends.docker import labels
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.table import Seen, Table
from nemo_jobs.backends.hints import Hints
from nemo_jobs.domain.clock import Clock

log = logging.getLogger(__name__)

#: Seconds between two lists while events come: the safety net under events that were dropped.
RELIST_SECONDS = 30.0
#: How long a container that somebody else made end may be started again, as `docker restart` does, in
#: seconds; only then its end counts.
DOUBT_SECONDS = 1.5
#: The longest pause between two tries to reach an engine, in seconds.
MOST_PAUSE = 5.0
#: Seconds of events that are asked for again after a gap.
_OVERLAP = 5.0
_CALLS_AT_ONCE = 8
_MINE = [f"{name}={value}" for name, value in labels.OURS.items()]
FILTERS = {"label": [*_MINE, labels.KEY]}
_EVENT_FILTERS = {"type": ["container"], **FILTERS}
#: What makes a container's answer another one. That it is created or started is told by who did it.
_HINTS = frozenset({"die", "pause", "unpause", "destroy"})


class Watcher:
    """The containers of one engine, kept up to date while somebody has started it."""

    def __init__(self, engine: DockerEngine, clock: Clock, asked: Callable[[str], bool]) -> None:
        """`asked` says whether the service asked a run to end."""
        self._engine, self._clock, self._asked = engine, clock, asked
        self.table = Table()
        #: When the engine was away and came back as another process: (from, to) in microseconds, the
        #: latest last.
        self.gaps: deque[tuple[int, int]] = deque(maxlen=16)
        #: Why nothing is known now; empty while all is.
        self.problem = "it was not asked yet"
        self._task: asyncio.Task[None] | None = None
        self._relist: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._left = 0  # when it was listened to last, in microseconds
        self._judged = False  # whether it was found out what the engine did since then
        self._last = 0  # of the newest event, in nanoseconds
        self._limit = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._hints = Hints()
        self._ends: dict[str, dict[asyncio.Event, int]] = {}

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="docker-events")

    async def aclose(self) -> None:
        for task in (self._task, self._relist):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._task = None
        self._hints.close()

    def changes(self) -> AsyncIterator[str]:
        """Keys whose answer may be another one."""
        return self._hints.changes()

    def hint(self, key: str) -> None:
        self._hints.tell(key)

    @contextlib.contextmanager
    def end_of(self, container: str, since: int = 0) -> Iterator[asyncio.Event]:
        """An event that is set when the container runs no more, having been started after `since`, or
        isn't there."""
        event = asyncio.Event()
        waiting = self._ends.setdefault(container, {})
        waiting[event] = since
        self._tell_end(container)
        try:
            yield event
        finally:
            del waiting[event]
            if not waiting and self._ends.get(container) is waiting:
                del self._ends[container]

    def _tell_end(self, container: str) -> None:
        waiting = self._ends.get(container)
        seen = self.table.get(container) if waiting else None
        for event, since in (waiting or {}).items():
            if seen is None or seen.gone or (seen.ended and seen.started_at >= since):
                event.set()

    async def ready(self) -> None:
        """Return when the table is true. Raises Unavailable."""
        if not self.problem:
            return
        self._again.set()
        try:
            await self._listed()
        except (EngineAway, EngineError) as error:
            raise Unavailable(str(error)) from error

    async def look(self, container: str) -> Seen | None:
        """Ask for one container; None when it isn't there. Raises Unavailable."""
        try:
            async with self._limit:
                answer = await self._engine.inspect(container)
        except (EngineAway, EngineError) as error:
            raise Unavailable(str(error)) from error
        if answer is None:
            self.table.lose(container)
            self._tell_end(container)
            return self.table.get(container)
        seen = self.table.inspected(answer)
        self._tell_end(container)
        return seen

    async def _run(self) -> None:
        pause = 0.1
        while True:
            try:
                await self._follow()
            except (EngineAway, EngineError) as error:
                self._lost(str(error))
            except Exception as error:
                log.exception("events of the Docker engine can't be followed")
                self._lost(f"its events can't be followed: {error}")
            self._again.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._again.wait()
            await asyncio.sleep(0.05)
            pause = min(2 * pause, MOST_PAUSE) if self.problem else 0.1

    async def _follow(self) -> None:
        now = await self._engine.time()
        since = min(self._last / 1e9, now) if self._last else now
        async with self._engine.events(_EVENT_FILTERS, since=f"{since - _OVERLAP:.0f}") as events:
            await self._listed()
            self._last = max(self._last, int(now * 1e9))
            self._returned()
            nurse = asyncio.create_task(self._relist_at_times())
            try:
                async for event in events:
                    self._event(event)
            finally:
                nurse.cancel()
        raise EngineAway("the engine ended its events")

    async def _remembers(self) -> bool:
        """Whether the engine still tells of events that it told of before: it forgets them with its
        process, while a connection that broke off changes nothing."""
        until = f"{await self._engine.time():.0f}"
        async with self._engine.events({}, since="1", until=until) as events:
            async for event in events:
                return int(event.get("timeNano") or 0) <= self._last
        return False

    def _event(self, event: Json) -> None:
        self._last = max(self._last, int(event.get("timeNano") or 0))
        seen = self.table.event(event)
        if seen is None or event.get("Action") not in _HINTS:
            return
        if event["Action"] == "die" and seen.signal and not self._asked(seen.run.key):
            seen.doubtful = True
            asyncio.get_running_loop().call_later(DOUBT_SECONDS, self._believe, seen, seen.changed)
        self._changed(seen)

    def _believe(self, seen: Seen, changed: int) -> None:
        """Nobody has started it again."""
        if seen.doubtful and seen.changed == changed:
            seen.doubtful = False
            self._changed(seen)

    def _changed(self, seen: Seen) -> None:
        self._tell_end(seen.id)
        if key := seen.run.key:  # helpers have none
            self.hint(key)

    async def _relist_at_times(self) -> None:
        while True:
            await asyncio.sleep(RELIST_SECONDS)
            if any(not seen.ended for seen in self.table.here()):
                with contextlib.suppress(EngineAway, EngineError):
                    await self._listed()

    async def _listed(self) -> None:
        """Ask for the list; whoever asks meanwhile shares the answer."""
        if self._relist is None or self._relist.done():
            self._relist = asyncio.create_task(self._list())
            self._relist.add_done_callback(_heard)
        await asyncio.shield(self._relist)

    async def _list(self) -> None:
        if self.problem and self._left and not self._judged:
            if not await self._remembers():  # told before anybody hears of the ends that it brought
                self.gaps.append((self._left, self._clock.now()))
            self._judged = True
        before = frozenset(seen.id for seen in self.table.here())
        items = await self._engine.containers(FILTERS)
        for seen in self.table.listed(items, before):
            self._changed(seen)

    def _lost(self, why: str) -> None:
        if not self.problem:
            log.warning("the Docker engine at %s can't be listened to: %s", self._engine.address, why)
        if not self.problem or self._judged:
            self._left, self._judged = self._clock.now(), False
        first, self.problem = not self.problem, why
        if first:
            self._hint_running()

    def _hint_running(self) -> None:
        """That nothing is known of them, or again something, is another answer as well."""
        for seen in self.table.here():
            if not seen.ended and (key := seen.run.key):
                self.hint(key)

    def _returned(self) -> None:
        if self.problem:
            self.problem = ""
            self._hint_running()


def _heard(task: asyncio.Task[None]) -> None:
    """Nobody may be waiting any more: an error that no one takes is no news."""
    if not task.cancelled():
        task.exception()

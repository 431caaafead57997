"""What containers use: CPU time and peak memory, measured when they end, without asking over and over.

The engine says what a container uses only while it runs, and a measurement takes it up to a second. So:

* On this host the kernel is asked: its control groups count exactly and outlive the container's last
  process by the milliseconds until the engine removes them. The end of that process is an event
  (a pidfd) that wakes a thread which does nothing else, and then the counts are read: exact also for
  containers that ran for milliseconds only. Should the thread come too late, what it saw last counts,
  which is less than `EVERY` seconds old.
* Elsewhere, or where the groups can't be seen, the engine is asked now and then, for one container
  at a time and each more rarely the longer it runs: what is told at the end is the last that was
  seen. Of a container that ended before its first turn nothing is known.
"""

import asyncio
import contextlib
import heapq
import logging
import os
import select
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from nemo_jobs.backends.api import ENDED, Json, Observation
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.cgroups import Accounts, Cgroups, Usage
from nemo_jobs.backends.docker.errors import EngineAway, EngineError

log = logging.getLogger(__name__)

#: Seconds between two questions to the engine, whatever the number of containers.
APART = 2.0
#: Seconds until a container is measured the first time; each time it takes twice as long until the next.
FIRST, MOST = 4.0, 600.0
#: Seconds between two looks at the counts of this host.
EVERY = 2.0


@dataclass(slots=True)
class _Run:
    """One run of a container."""

    key: str
    usage: Usage
    over: bool = False
    pidfd: int = -1


@dataclass(order=True, slots=True)
class _Turn:
    """When a container is measured the next time."""

    due: float
    pause: float
    container: str = field(compare=False)
    run: _Run = field(compare=False)
    measure: Callable[[], Awaitable[Usage | None]] = field(compare=False)


class Usages:
    """What the containers of one engine use. Without `cgroups` only the engine is asked."""

    def __init__(self, engine: DockerEngine, cgroups: Cgroups | None) -> None:
        self._engine, self._cgroups = engine, cgroups
        self._runs: dict[str, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: list[_Turn] = []
        self._turn: asyncio.Task[None] | None = None
        self._deaths: Deaths | None = None

    def began(self, container: str, key: str) -> None:
        """The container runs, for the run `key`: measure it. Again is fine."""
        run = self._runs.get(container)
        if run is not None and run.key == key:
            return
        self.forget(container)
        run = self._runs[container] = _Run(key, Usage())
        task = asyncio.create_task(self._begin(container, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def of(self, container: str, key: str) -> Usage:
        """What that run has used, as far as is known: at its end, or when it was measured last."""
        run = self._runs.get(container)
        return run.usage if run is not None and run.key == key else Usage()

    def forget(self, container: str) -> None:
        """Nobody will ask for it any more."""
        if (run := self._runs.pop(container, None)) is not None:
            self._end(run)

    async def aclose(self) -> None:
        tasks = [*self._tasks, *([self._turn] if self._turn is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for container in list(self._runs):
            self.forget(container)
        if self._deaths is not None:
            self._deaths.close()

    async def _begin(self, container: str, run: _Run) -> None:
        found = await asyncio.to_thread(self._accounts, container)
        if run.over:
            return
        if found is None:
            self._take_turns(container, run, lambda: self._asked(container))
            return
        accounts, pid = found
        self._watch(accounts, pid, run)
        if not accounts.keeps_peak and not run.over:
            self._take_turns(container, run, lambda: asyncio.to_thread(accounts.read))

    def _accounts(self, container: str) -> tuple[Accounts, int | None] | None:
        """Where the kernel counts for it, and its process; None when that isn't on this host."""
        accounts = self._cgroups.find(container) if self._cgroups is not None else None
        if accounts is None or self._cgroups is None:
            return None
        return accounts, accounts.first_process(self._cgroups.root)

    def _watch(self, accounts: Accounts, pid: int | None, run: _Run) -> None:
        """Read the counts now, and when the process ends."""
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                run.pidfd = os.pidfd_open(pid)
        run.usage = accounts.read()
        if run.pidfd < 0:
            self._end(run)
            return

        loop = asyncio.get_running_loop()

        first, run.usage = run.usage, Usage()  # of a beginning alone nothing is told

        def look() -> None:
            run.usage = run.usage.most(accounts.read())

        def ended() -> None:
            last = accounts.read()
            if last.cpu_seconds is not None:
                run.usage = run.usage.most(last).most(first)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._end, run)

        if self._deaths is None:
            self._deaths = Deaths()
        self._deaths.watch(run.pidfd, ended, look)

    def _end(self, run: _Run) -> None:
        run.over = True
        if run.pidfd >= 0:
            if self._deaths is not None:
                self._deaths.forget(run.pidfd)
            os.close(run.pidfd)
            run.pidfd = -1

    # Asking now and then

    def _take_turns(self, container: str, run: _Run, measure: Callable[[], Awaitable[Usage | None]]) -> None:
        heapq.heappush(self._turns, _Turn(_now() + FIRST, FIRST, container, run, measure))
        if self._turn is None or self._turn.done():
            self._turn = asyncio.create_task(self._measure_by_turns())

    async def _measure_by_turns(self) -> None:
        """One after another, `APART` seconds apart, until none is left."""
        while self._turns:
            turn = self._turns[0]
            if turn.due > _now() and not turn.run.over:
                await asyncio.sleep(min(turn.due - _now(), APART))
                continue
            heapq.heappop(self._turns)
            if turn.run.over or self._runs.get(turn.container) is not turn.run:
                continue
            if (usage := await self._measured(turn)) is not None:
                turn.run.usage = turn.run.usage.most(usage)
                turn.pause = min(2 * turn.pause, MOST)
                turn.due = _now() + turn.pause
                heapq.heappush(self._turns, turn)
            await asyncio.sleep(APART)

    async def _measured(self, turn: _Turn) -> Usage | None:
        try:
            return await turn.measure()
        except (EngineAway, EngineError) as error:
            log.debug("container %s can't be measured now: %s", turn.container, error)
            return Usage()

    async def _asked(self, container: str) -> Usage | None:
        """What the engine says; None when the container has ended."""
        answer = await self._engine.stats(container)
        usage = Usage() if answer is None else measured(answer)
        return None if usage.cpu_seconds is None else usage


class Deaths:
    """Calls back when processes end, at once and in a thread of its own: the event loop may be busy for
    longer than there is something to read."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._poll = select.epoll()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._stop, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="docker-usage", daemon=True)
        self._thread.start()

    def watch(self, pidfd: int, ended: Callable[[], None], look: Callable[[], None]) -> None:
        """`ended` is called at the end, and `look` from time to time until then."""
        self._calls[pidfd] = ended, look
        self._poll.register(pidfd, select.EPOLLIN | select.EPOLLONESHOT)

    def forget(self, pidfd: int) -> None:
        if self._calls.pop(pidfd, None) is not None:
            self._poll.unregister(pidfd)

    def close(self) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join(1.0)
        self._poll.close()
        os.close(self._stop)

    def _run(self) -> None:
        looked = time.monotonic()
        while True:
            for file, _ in self._poll.poll(EVERY):
                if file == self._stop:
                    return
                if (found := self._calls.get(file)) is not None:
                    self._call(found[0])
            if time.monotonic() >= looked + EVERY:
                looked = time.monotonic()
                for _, look in list(self._calls.values()):
                    self._call(look)

    @staticmethod
    def _call(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.exception("what a container used can't be read")


def measured(stats: Json) -> Usage:
    """From the engine's statistics. Those of a container that has ended are all zero: nothing."""
    nanos = ((stats.get("cpu_stats") or {}).get("cpu_usage") or {}).get("total_usage") or 0
    memory = stats.get("memory_stats") or {}
    now = int(memory.get("usage") or 0) - int((memory.get("stats") or {}).get("inactive_file") or 0)
    peak = int(memory.get("max_usage") or 0) or max(now, 0)  # control groups 2 have no peak there
    return Usage(nanos / 1e9, peak or None) if nanos else Usage()


def with_usage(observation: Observation, usage: Usage) -> Observation:
    """The observation of a container that has ended, with what it used."""
    if observation.phase not in ENDED or usage == Usage():
        return observation
    tasks = tuple(
        replace(task, cpu_seconds=usage.cpu_seconds, peak_memory_bytes=usage.peak_memory_bytes)
        for task in observation.tasks
    )
    return replace(observation, tasks=tasks)


def _now() -> float:
    return asyncio.get_running_loop().time()

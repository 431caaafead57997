"""Containers that were asked to end: SIGTERM now, SIGKILL when their time is up, nobody waits for it."""

import asyncio
import contextlib
import logging

from nemo_jobs.backends.api import Handle, Unavailable
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.facts import is_before
from nemo_jobs.backends.docker.observe import Watcher
from nemo_jobs.backends.docker.table import Seen

log = logging.getLogger(__name__)

_AGAIN = 2.0  # seconds between tries to kill what an engine doesn't kill
#: Ends that this service asked for are remembered for so many runs.
_MOST_ASKED = 10_000


class Stops:
    """What this service has asked to end."""

    def __init__(self, engine: DockerEngine, watcher: Watcher) -> None:
        self._engine, self._watcher = engine, watcher
        self._asked: dict[str, None] = {}
        self._killing: dict[str, tuple[float, asyncio.Task[None]]] = {}

    def asked(self, key: str) -> bool:
        """Whether the run was asked to end before it had ended by itself."""
        return key in self._asked

    def forget(self, key: str) -> None:
        self._asked.pop(key, None)
        if key in self._killing:
            self._killing.pop(key)[1].cancel()

    async def aclose(self) -> None:
        tasks = [task for _, task in self._killing.values()]
        self._killing.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self, handle: Handle, grace: float) -> None:
        """Ask for the end, and see to it that it comes. Raises Unavailable."""
        container = handle.data["container"]
        try:
            seen = self._watcher.table.get(container) or await self._watcher.look(container)
            if seen is None or seen.gone or seen.run.key != handle.key:
                return
            if is_before(handle, seen):
                self._note(handle.key)  # there is nothing to be ended
            if seen.ended:
                return
            if seen.state == "created":
                await self._never_started(handle, seen)
                return
            deadline = asyncio.get_running_loop().time() + grace
            before = self._killing.get(handle.key)
            if before is None and not await self._ask(handle, seen):
                return
        except EngineAway as error:
            raise Unavailable(str(error)) from error
        except EngineError as error:
            raise Unavailable(f"the engine can't stop {handle.key}: {error}") from error
        if before is not None:
            if before[0] <= deadline:
                return  # it is killed sooner anyway
            before[1].cancel()
        task = asyncio.create_task(self._kill_at(handle, deadline))
        self._killing[handle.key] = (deadline, task)

    async def _ask(self, handle: Handle, seen: Seen) -> bool:
        """Send SIGTERM; False when it had ended."""
        if seen.state == "paused":
            await self._engine.unpause(seen.id)
        # Noted first: its end may be told before the answer comes.
        self._note(handle.key)
        sent = False
        try:
            sent = await self._engine.kill(seen.id, "SIGTERM")
        except EngineAway as error:
            sent = error.sent
            raise
        finally:
            if not sent:
                self._asked.pop(handle.key, None)
        return sent

    async def _never_started(self, handle: Handle, seen: Seen) -> None:
        """Nothing can be asked to end that was not started: it is taken away."""
        self._note(handle.key)
        await self._engine.remove(seen.id, force=True)

    def _note(self, key: str) -> None:
        self._asked[key] = None
        while len(self._asked) > _MOST_ASKED:
            del self._asked[next(iter(self._asked))]

    async def _kill_at(self, handle: Handle, deadline: float) -> None:
        """Kill it at the deadline if it has not ended by then. Its container may be started again
        after the end of this run: that is none of this one's business."""
        key, container = handle.key, handle.data["container"]
        try:
            with self._watcher.end_of(container, handle.data["since"]) as ended:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await ended.wait()
                while not ended.is_set() and self._runs(container, key):
                    try:
                        await self._engine.kill(container, "SIGKILL")
                    except (EngineAway, EngineError) as error:
                        log.warning("%s can't be killed yet: %s", key, error)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_AGAIN):
                            await ended.wait()
        finally:
            if (mine := self._killing.get(key)) is not None and mine[1] is asyncio.current_task():
                del self._killing[key]

    def _runs(self, container: str, key: str) -> bool:
        seen = self._watcher.table.get(container)
        return seen is not None and not seen.ended and not seen.gone and seen.run.key == key

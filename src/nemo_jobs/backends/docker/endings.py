"""Telling the readers of output when their container runs no more."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator


class Endings:
    """Turns hints that something changed into events, one for each reader; one task for all."""

    def __init__(self, changes: Callable[[], AsyncIterator[str]]) -> None:
        self._changes = changes
        self._waiting: dict[str, dict[asyncio.Event, Callable[[], bool]]] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watching(self, key: str, over: Callable[[], bool]) -> Iterator[asyncio.Event]:
        """An event that is set as soon as `over` says so, which is asked now and at each hint for `key`."""
        event = asyncio.Event()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen())
        self._waiting.setdefault(key, {})[event] = over
        self._look(event, over)
        try:
            yield event
        finally:
            waiting = self._waiting[key]
            del waiting[event]
            if not waiting:
                del self._waiting[key]

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _listen(self) -> None:
        # What was hinted at until now went unheard: look once more as soon as hints are listened to.
        asyncio.get_running_loop().call_soon(self._look_at_all)
        async for key in self._changes():
            for event, over in list(self._waiting.get(key, {}).items()):
                self._look(event, over)

    def _look_at_all(self) -> None:
        for waiting in self._waiting.values():
            for event, over in waiting.items():
                self._look(event, over)

    @staticmethod
    def _look(event: asyncio.Event, over: Callable[[], bool]) -> None:
        if over():
            event.set()

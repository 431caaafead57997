"""Hints of a backend: keys whose observation may be another one now."""

import asyncio
from collections.abc import AsyncIterator


class Hints:
    """Any number of listeners, each of whom hears of a key once, however often it was told meanwhile."""

    def __init__(self) -> None:
        self._listeners: set[_Waiting] = set()

    def tell(self, key: str) -> None:
        for waiting in self._listeners:
            waiting.put(key)

    def close(self) -> None:
        """End what `changes` gives to those who listen now."""
        for waiting in self._listeners:
            waiting.put(None)

    async def changes(self) -> AsyncIterator[str]:
        """Keys as they are told."""
        waiting = _Waiting()
        self._listeners.add(waiting)
        try:
            while not waiting.closed:
                for key in await waiting.take():
                    yield key
        finally:
            self._listeners.discard(waiting)


class _Waiting:
    """The keys that one listener has not heard of yet."""

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}
        self.closed = False
        self._some = asyncio.Event()

    def put(self, key: str | None) -> None:
        if key is None:
            self.closed = True
        else:
            self._keys[key] = None
        self._some.set()

    async def take(self) -> list[str]:
        await self._some.wait()
        self._some.clear()
        keys = list(self._keys)
        self._keys.clear()
        return keys

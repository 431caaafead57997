"""A bounded number of connections, kept open between calls."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterable
from enum import Enum

from nemo_jobs.backends.docker.connection import Connection
from nemo_jobs.backends.docker.errors import EngineAway
from nemo_jobs.backends.docker.transport import Dialer

_KEPT = 16  # connections without a call
_KEPT_SECONDS = 50.0  # less than what proxies between us and the engine allow
_DIALS = 4  # new connections made at the same time


class Kind(Enum):
    """What a connection is needed for; each kind has its own places, so that none locks another out."""

    CALL = 16  # looks
    WORK = 24  # what the engine may do long: create, start, remove
    TRANSFER = 32  # archives
    FOLLOW = 1024  # output, events, pulls, stops: open as long as the work
    GLANCE = 256  # output that isn't stored yet: nice to see, and nothing is lost without


class Exchange:
    """One call under way: the head of its answer is here, its body comes by `read`."""

    def __init__(self, pool: "Pool", kind: Kind, connection: Connection) -> None:
        self._pool, self._kind, self._connection = pool, kind, connection
        self.status, self.headers = connection.status, connection.headers
        self._open, self._read_all = True, False
        self._loop = asyncio.get_running_loop()

    async def read(self) -> bytes:
        """The next piece of the body; empty at its end. Raises EngineAway."""
        if not self._open:
            raise EngineAway("the answer isn't read any more: it was closed", sent=True)
        piece = await self._connection.read()
        self._read_all = not piece
        return piece

    def close(self) -> None:
        """Give the connection back, or close it when the answer wasn't read to its end."""
        if self._open:
            self._open = False
            self._pool.give(self._kind, self._connection, self._read_all)

    def __del__(self) -> None:
        if self._open:  # its reader was dropped, perhaps found by a collection in another thread
            with contextlib.suppress(RuntimeError):  # the loop has ended, and all connections with it
                self._loop.call_soon_threadsafe(self._pool.give, self._kind, self._connection, False)


class Pool:
    """The connections to one engine."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        few = {kind: min(kind.value, dialer.most_calls) for kind in Kind} | {Kind.FOLLOW: Kind.FOLLOW.value}
        self._places = {kind: asyncio.Semaphore(most) for kind, most in few.items()}
        self._dials = asyncio.Semaphore(_DIALS)
        self._idle: list[Connection] = []  # the one used last at the end
        self._used: set[Connection] = set()
        self._closed = False

    @property
    def open_connections(self) -> int:
        """How many there are, with and without a call."""
        return len(self._used) + sum(connection.usable for connection in self._idle)

    async def begin(
        self, kind: Kind, head: bytes, body: bytes | AsyncIterable[bytes], *, again: bool
    ) -> Exchange:
        """Send a call and return with the head of its answer; waits for a place. `again`: it may be sent
        twice, when a kept connection turns out to be dead. Raises EngineAway."""
        await self._places[kind].acquire()
        try:
            return Exchange(self, kind, await self._ask(head, body, again))
        except BaseException:
            self._places[kind].release()
            raise

    def give(self, kind: Kind, connection: Connection, keep: bool) -> None:
        """The end of a call."""
        self._places[kind].release()
        self._used.discard(connection)
        if keep and connection.usable and not self._closed and len(self._idle) < _KEPT:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.abort()

    def aclose(self) -> None:
        """Close every connection; calls under way fail."""
        self._closed = True
        for connection in (*self._idle, *self._used):
            connection.abort()
        self._idle.clear()

    async def _ask(self, head: bytes, body: bytes | AsyncIterable[bytes], again: bool) -> Connection:
        kept = self._kept() if again else None
        if kept is not None:
            try:
                return await self._asked(kept, head, body)
            except EngineAway:
                if kept.answered or self._closed:
                    raise
            # The engine let go of it just now, and so it did of the others.
            self._drop_idle()
        return await self._asked(await self._dialled(), head, body)

    async def _asked(
        self, connection: Connection, head: bytes, body: bytes | AsyncIterable[bytes]
    ) -> Connection:
        self._used.add(connection)
        try:
            await connection.ask(head, body)
        except BaseException:
            self._used.discard(connection)
            connection.abort()
            raise
        return connection

    def _kept(self) -> Connection | None:
        if self._idle and self._idle[0].idle_since < time.monotonic() - _KEPT_SECONDS:
            self._idle.pop(0).abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since >= time.monotonic() - _KEPT_SECONDS:
                return connection
            connection.abort()
        return None

    async def _dialled(self) -> Connection:
        self._check()
        async with self._dials:
            connection = await self._dialer.dial()
        try:
            self._check()  # it may have been closed meanwhile
        except EngineAway:
            connection.abort()
            raise
        return connection

    def _check(self) -> None:
        if self._closed:
            raise EngineAway("the connection to the engine was closed")

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

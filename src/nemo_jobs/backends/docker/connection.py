"""One connection to the engine: HTTP/1.1, one call at a time."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import cast

from nemo_jobs.backends.docker.answer import Answer
from nemo_jobs.backends.docker.errors import EngineAway, one_line

_MOST_HEAD = 64 << 10  # bytes of an answer's head, and of what lies between pieces of its body
_MOST_HELD = 1 << 20  # bytes of a body that wait to be read; then the engine waits
_WRITE = 128 << 10
_MOVING = 60.0  # seconds until a body that is sent in pieces must have moved
_UNPACK = 120.0  # and until it is answered, when all of it is sent


class Connection(asyncio.Protocol):
    """`ask` sends a call and returns with the head of its answer in `status` and `headers`; `read`
    gives the body. Deadlines are the caller's: after a cancelled call it must be dropped by `abort`.
    `explain` is asked why a connection was lost before anything came."""

    def __init__(self, explain: Callable[[], Awaitable[str]] | None = None) -> None:
        self.idle_since = 0.0
        self._explain = explain
        self._transport: asyncio.Transport | None = None
        self._lost = ""  # why it can't be used any more
        self._answer: Answer | None = None  # to the present call, or to the last one
        self._held = self._silent = 0
        self._sent = self._paused = False
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    # What the owner calls

    @property
    def usable(self) -> bool:
        """Whether another call may be made on it."""
        answer = self._answer
        return not self._lost and (answer is None or (answer.complete and answer.keep and self._sent))

    @property
    def answered(self) -> bool:
        """Whether something came back for the present call."""
        return self._answer is not None and self._answer.begun

    @property
    def status(self) -> int:
        return 0 if self._answer is None else self._answer.status

    @property
    def headers(self) -> dict[str, str]:
        return {} if self._answer is None else self._answer.headers

    @property
    def socket(self) -> socket.socket:
        assert self._transport is not None  # noqa: S101  # it was connected just now
        return cast("socket.socket", self._transport.get_extra_info("socket"))

    async def ask(self, head: bytes, body: bytes | AsyncIterable[bytes] = b"") -> None:
        """Send a call; returns when the head of the answer is here. A body in pieces is given up when
        it doesn't move or isn't answered for long. Raises EngineAway."""
        answer = self._answer = Answer()
        self._sent = isinstance(body, bytes)
        self._held = self._silent = 0
        if isinstance(body, bytes):
            self._write(head + body)
        else:
            self._write(head)
            await self._send(answer, body)
        async with _limit(None if isinstance(body, bytes) else _UNPACK):
            while not answer.has_head:
                await self._wait()

    async def read(self) -> bytes:
        """What has come of the body, at least one byte; empty at its end. Raises EngineAway."""
        answer = cast(Answer, self._answer)
        while not answer.pieces:
            if answer.complete:
                return b""
            await self._wait()
        data = answer.pieces[0] if len(answer.pieces) == 1 else b"".join(answer.pieces)
        answer.pieces.clear()
        self._held = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def abort(self) -> None:
        """Close at once."""
        self._break("it was closed")

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or answer.complete:
            self._break("it sent bytes that nobody asked for")
            return
        before = len(answer.pieces)
        answer.feed(data)
        if len(answer.pieces) > before:
            self._held, self._silent = self._held + len(data), 0
            if self._held > _MOST_HELD and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        else:
            self._silent += len(data)
        if answer.wrong:
            self._break(answer.wrong)
        elif self._silent > _MOST_HEAD and not answer.complete:
            self._break("it sent an answer with an endless head")
        self._tell()

    def connection_lost(self, error: Exception | None) -> None:
        if error is None and not self._lost and self._answer is not None:
            self._answer.end()
        self._lost = self._lost or _words(error)
        self._transport = None
        self._tell()
        self._make_room()

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._make_room()
        self._room = None

    # Inside

    def _break(self, why: str) -> None:
        self._lost = self._lost or why
        if self._transport is not None:
            self._transport.abort()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._lost:
            self._transport.write(data)

    async def _wait(self) -> None:
        """Until something has changed; raises when nothing more can come."""
        if self._lost:
            raise EngineAway(await self._why(), sent=True)
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    async def _why(self) -> str:
        if self._explain is not None and not self.answered and (text := await self._explain()):
            return text
        return f"the connection to the engine broke off: {self._lost}"

    async def _send(self, answer: Answer, body: AsyncIterable[bytes]) -> None:
        """Send a body in chunks, until the engine has answered: then it wants no more of it."""
        async for piece in body:
            for at in range(0, len(piece), _WRITE):
                part = piece[at : at + _WRITE]
                self._write(b"%x\r\n%b\r\n" % (len(part), part))
                if self._room is not None:
                    async with _limit(_MOVING):
                        await self._room
                else:
                    await asyncio.sleep(0)  # let an early answer come in
                if answer.has_head or self._lost:
                    return
        self._write(b"0\r\n\r\n")
        self._sent = True


@contextlib.asynccontextmanager
async def _limit(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise EngineAway(f"the engine took nothing for {seconds:g} s", sent=True) from None


def _words(error: Exception | None) -> str:
    if error is None:
        return "the engine closed it"
    if isinstance(error, ssl.SSLError):
        return one_line(f"TLS fails: {error.reason or error}".replace("_", " ").lower().replace("tls", "TLS"))
    return one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)

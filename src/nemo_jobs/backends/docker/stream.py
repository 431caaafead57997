"""Answers without an end in sight: bytes as they come, objects of one line each, frames of output."""

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.errors import EngineAway, one_line

if TYPE_CHECKING:
    from nemo_jobs.backends.docker.pool import Exchange

STDOUT, STDERR = 1, 2

#: The longest object of a stream of objects, in bytes.
MOST_OBJECT = 4 << 20
#: The longest frame that is believed: the engine splits output at 16 KiB.
MOST_FRAME = 16 << 20

# A head as two numbers: the stream with its three zeros, and the length.
_HEAD = struct.Struct(">LL")
_STREAMS = {STDOUT << 24: STDOUT, STDERR << 24: STDERR}
_BROKEN = 3 << 24


class ByteStream:
    """The body of an answer in pieces of any size. The call is made by `async with`, or with the first
    piece; both raise what calls raise. `idle`: seconds without a byte until it fails, None: for ever.

    A cancelled read loses nothing: the next one goes on. `aclose` (or leaving `async with`) gives
    the connection back or closes it; a stream that is let go without it closes its connection too.
    """

    def __init__(self, start: "Callable[[], Awaitable[Exchange]]", idle: float | None, what: str) -> None:
        self._start, self._idle, self._what = start, idle, what
        self._exchange: Exchange | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        exchange = await self.opened()
        try:
            async with asyncio.timeout(self._idle):
                piece = await exchange.read()
        except TimeoutError:
            await self.aclose()
            raise EngineAway(f"{self._what}: nothing came for {self._idle:g} s") from None
        except EngineAway:
            await self.aclose()
            raise
        if not piece:
            await self.aclose()
            raise StopAsyncIteration
        return piece

    async def headers(self) -> dict[str, str]:
        """The heads of the answer, their names in lower case."""
        return (await self.opened()).headers

    async def opened(self) -> "Exchange":
        """Make the call, if it wasn't made yet."""
        if self._closed:
            raise StopAsyncIteration
        if self._exchange is None:
            self._exchange = await self._start()
        return self._exchange

    async def aclose(self) -> None:
        self._closed = True
        if self._exchange is not None:
            self._exchange.close()


class JsonStream:
    """Objects, one a line, as `ByteStream` gives bytes: it is opened, cancelled and closed like that."""

    def __init__(self, stream: ByteStream) -> None:
        self._bytes = stream
        self._rest = b""
        self._ready: list[Json] = []

    async def __aenter__(self) -> Self:
        await self._bytes.opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Json:
        while not self._ready:
            try:
                piece = await self._bytes.__anext__()
            except StopAsyncIteration:
                last, self._rest = self._rest.strip(), b""
                if not last:
                    raise
                return self._object(last)
            await self._split(piece)
        return self._ready.pop()

    async def aclose(self) -> None:
        await self._bytes.aclose()

    async def _split(self, piece: bytes) -> None:
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = self._rest + lines[0]
            self._rest = rest
            self._ready = [self._object(line) for line in lines if line.strip()]
            self._ready.reverse()
        else:
            self._rest += rest
        if len(self._rest) > MOST_OBJECT:
            await self.aclose()
            raise EngineAway(f"the engine sent an object of more than {MOST_OBJECT >> 20} MiB")

    @staticmethod
    def _object(line: bytes) -> Json:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise EngineAway("the engine sent a line that isn't a JSON object")
        return cast(Json, value)


class Demultiplexer:
    """Takes the frames of output apart: each has 8 bytes of head (stream, three zeros, the length as
    a big-endian number) and its content."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def pending(self) -> int:
        """How many bytes of a frame that isn't whole yet are held. At the end not 0: it was cut."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The whole frames so far as (stream, content), in order; stream is STDOUT or STDERR.
        Raises EngineAway when the bytes aren't frames."""
        if self._rest:
            data = self._rest + data
        frames: list[tuple[int, bytes]] = []
        add, head, which = frames.append, _HEAD.unpack_from, _STREAMS.get
        at, last = 0, len(data) - _HEAD.size
        while at <= last:  # a million turns for a million lines
            word, length = head(data, at)
            begin = at + 8
            end = begin + length
            stream = which(word)
            if stream is None or end > last + 8:
                self._check(word, length, data[begin : begin + 300])
                break
            add((stream, data[begin:end]))
            at = end
        self._rest = data[at:] if at else data
        return frames

    @staticmethod
    def _check(word: int, length: int, content: bytes) -> None:
        """Raises unless it is the head of a frame that isn't whole yet."""
        if word == _BROKEN:
            text = one_line(content.decode(errors="replace"))
            raise EngineAway(f"the engine broke off the output: {text}", sent=True)
        if word not in _STREAMS or length > MOST_FRAME:
            raise EngineAway("the engine's output isn't in frames as expected", sent=True)

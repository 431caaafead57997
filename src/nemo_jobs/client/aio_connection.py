"""HTTP/1.1 for the async client: the same as `connection`, on asyncio's streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from nemo_jobs.client.connection import (
    LAST_CHUNK,
    MAX_BODY,
    MAX_LINE,
    MAX_LINE_OF_BODY,
    Address,
    add_header,
    chunk,
    number,
    reason,
    request_head,
    status_line,
)
from nemo_jobs.client.errors import BadAnswer, ConnectionFailed, TimedOut

if TYPE_CHECKING:
    from nemo_jobs.client.aio_transfer import AsyncSource


class AsyncResponse:
    """An answer whose body has not been read yet."""

    def __init__(
        self, status: int, headers: Mapping[str, str], connection: AsyncConnection, *, bodyless: bool
    ) -> None:
        self.status = status
        self.headers = headers
        self.finished = False
        #: Not all of the request was sent, so the connection can't serve another.
        self.interrupted = False
        #: What becomes of the connection; the transport sets it.
        self.release: Callable[[], None] | None = None
        self._connection = connection
        self._bodyless = bodyless

    def close(self) -> None:
        """Give the connection back, for others if the body was read to its end."""
        release, self.release = self.release, None
        if release is not None:
            release()

    async def read(self) -> bytes:
        """The whole body."""
        parts: list[bytes] = []
        size = 0
        async for part in self.pieces():
            size += len(part)
            if size > MAX_BODY:
                raise BadAnswer(f"the answer is larger than {MAX_BODY} bytes")
            parts.append(part)
        return b"".join(parts)

    async def lines(self) -> AsyncIterator[str]:
        """The body as text lines, each as soon as it is there; for event streams."""
        rest = b""
        async for part in self.pieces():
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line.removesuffix(b"\r").decode("utf-8", "replace")
            if len(rest) > MAX_LINE_OF_BODY:
                raise BadAnswer(f"a line of the answer is longer than {MAX_LINE_OF_BODY} bytes")

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body in the pieces in which it arrives."""
        headers, connection = self.headers, self._connection
        if self._bodyless:
            pass
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            while size := number((await connection.line()).split(";")[0], 16):
                async for piece in self._counted(size):
                    yield piece
                await connection.line()
            while await connection.line():
                pass
        elif "content-length" in headers:
            async for piece in self._counted(number(headers["content-length"], 10)):
                yield piece
        else:
            while piece := await connection.some(MAX_LINE):
                yield piece
            return
        self.finished = True

    async def _counted(self, left: int) -> AsyncIterator[bytes]:
        while left:
            piece = await self._connection.some(min(left, MAX_LINE))
            if not piece:
                raise ConnectionFailed("the connection broke in the middle of an answer")
            left -= len(piece)
            yield piece


class AsyncConnection:
    """One open connection. Any failure closes it; nothing is repeated here."""

    def __init__(
        self,
        address: Address,
        reader: Reader,
        writer: asyncio.StreamWriter,
        timeout: float,
    ) -> None:
        self.address = address
        self.used = False
        #: Seconds that the server may stay silent.
        self.timeout = timeout
        self._reader, self._writer = reader, writer
        self._taken = 0

    @classmethod
    async def open(cls, address: Address, *, timeout: float, ca_file: str | None = None) -> AsyncConnection:
        """Connect. Raises `ConnectionFailed`."""
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await _connect(address, ca_file)
        except TimeoutError as error:
            raise TimedOut(f"no connection to {address} within {timeout:g} s") from error
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError | FileNotFoundError)
            text = f"can't connect to {address}: {reason(error)}"
            raise ConnectionFailed(text, refused=refused) from error
        return cls(address, reader, writer, timeout)

    async def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | AsyncSource | None
    ) -> AsyncResponse:
        """Send one request and read the head of its answer."""
        self.used = True
        if body is None or isinstance(body, bytes):
            return await self._exchange(method, target, headers, body)
        head = request_head(self.address, method, target, headers, body.length, True)
        # A server may answer (404, 413) before it has all of the request: somebody must listen.
        answer = asyncio.create_task(self._head(method, patient=True))
        broken: OSError | None = None
        interrupted = False
        try:
            try:
                interrupted = await self._send_pieces(head, body, answer)
            except TimeoutError:
                raise
            except OSError as error:
                broken = error
            async with asyncio.timeout(self.timeout):
                response = await answer
        finally:
            if not answer.cancel() and not answer.cancelled():
                answer.exception()
        response.interrupted = interrupted or broken is not None
        return response

    async def _exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> AsyncResponse:
        length = None if body is None else len(body)
        head = request_head(self.address, method, target, headers, length, body is not None)
        try:
            await self._send(head + (body or b""))
        except TimeoutError:
            raise
        except OSError as error:
            try:
                response = await self._head(method)
            except (OSError, ConnectionFailed):
                raise error from None
            response.interrupted = True
            return response
        return await self._head(method)

    async def line(self, *, patient: bool = False) -> str:
        """One line of an answer's head; `patient`: whenever it comes."""
        try:
            async with asyncio.timeout(None if patient else self.timeout):
                line = await self._reader.readline()
        except ValueError as error:
            raise BadAnswer("a line of the answer's head is too long") from error
        self._taken += len(line)
        if not line.endswith(b"\n"):
            raise self._ended("the server closed the connection without an answer")
        return line.decode("latin-1").rstrip("\r\n")

    async def some(self, most: int) -> bytes:
        """What has arrived of the body, at most that many bytes; empty at its end."""
        async with asyncio.timeout(self.timeout):
            found = await self._reader.read(most)
        self._taken += len(found)
        if not found and self._reader.broken:
            raise self._ended("the connection broke in the middle of an answer")
        return found

    def _ended(self, text: str) -> ConnectionFailed:
        broken = self._reader.broken
        return ConnectionFailed(f"{text}: {broken}" if broken else text)

    def stale(self) -> bool:
        """Whether a resting connection can't take a request: the server has closed it, or has said
        something that nobody asked for."""
        return self._reader.fed != self._taken or self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        """Close at once; nothing more is sent."""
        self._writer.transport.abort()

    async def _send(self, data: bytes) -> None:
        async with asyncio.timeout(self.timeout):
            self._writer.write(data)
            await self._writer.drain()

    async def _send_pieces(self, head: bytes, body: AsyncSource, answer: asyncio.Task[AsyncResponse]) -> bool:
        """Send a body piece by piece; True when the server answered before it had all of it."""
        await self._send(head)
        framed = body.length is None
        async for piece in body.pieces():
            await asyncio.sleep(0)  # what has arrived is read before more is written
            if answer.done():
                return True
            await self._send(chunk(piece) if framed else piece)
        if framed:
            await self._send(LAST_CHUNK)
        return False

    async def _head(self, method: str, *, patient: bool = False) -> AsyncResponse:
        while True:
            version, status = status_line(await self.line(patient=patient), self.address)
            headers: dict[str, str] = {}
            while line := await self.line():
                add_header(headers, line, self.address)
            if status >= 200:
                break
        if version == "HTTP/1.0":
            headers.setdefault("connection", "close")
        return AsyncResponse(status, headers, self, bodyless=method == "HEAD" or status in (204, 304))


class Reader(asyncio.StreamReader):
    """Hands out what had arrived before a connection broke: it may be the server's answer."""

    broken: BaseException | None = None
    #: Bytes that have arrived.
    fed = 0

    def feed_data(self, data: Any) -> None:
        """Bytes arrived."""
        self.fed += len(data)
        super().feed_data(data)

    def set_exception(self, exc: BaseException) -> None:
        """The connection broke."""
        self.broken = exc
        self.feed_eof()


async def _connect(address: Address, ca_file: str | None) -> tuple[Reader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = Reader(limit=MAX_LINE, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    if address.path:
        transport, _ = await loop.create_unix_connection(lambda: protocol, address.path)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
    context = None
    if address.scheme == "https":
        import ssl

        context = await asyncio.to_thread(ssl.create_default_context, cafile=ca_file)
    link, _ = await loop.create_connection(
        lambda: protocol, address.host.strip("[]"), address.port, ssl=context
    )
    return reader, asyncio.StreamWriter(link, protocol, reader, loop)

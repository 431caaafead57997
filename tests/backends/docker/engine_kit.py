"""Engines of the tests' own words: a server that answers what a test wants, byte by byte."""

import asyncio
import contextlib
import select
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from nemo_jobs.backends.docker.calls import DockerEngine

VERSION = b'{"ApiVersion":"1.41","MinAPIVersion":"1.12","Version":"20.10"}'

Handler = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


class Asked:
    """One request: its first line and its heads; `body` is read by the handler, if it wants it."""

    def __init__(self, line: str, heads: dict[str, str], reader: asyncio.StreamReader) -> None:
        self.line, self.heads, self.reader = line, heads, reader

    async def body(self) -> bytes:
        if self.heads.get("transfer-encoding") != "chunked":
            return await self.reader.readexactly(int(self.heads.get("content-length", "0")))
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()
        return body


def answer(status: int, body: bytes = b"{}", *heads: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", *heads, "", ""]
    return "\r\n".join(lines).encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


class Server:
    """Counts its connections and requests; `handler` answers all but the question for the version."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self.path, self.handler = path, handler
        self.version = VERSION
        self.lines: list[str] = []
        self.connections = self.most_open = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def host(self) -> str:
        return f"unix://{self.path}"

    @property
    def open(self) -> int:
        """How many connections the other side holds open now, whatever is under way on ours."""
        return sum(not _hung_up(writer) for writer in self._writers)

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path), limit=1 << 20)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        self.most_open = max(self.most_open, self.open)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while (asked := await _next(reader)) is not None:
                    self.lines.append(asked.line)
                    if asked.line.startswith("GET /version "):
                        writer.write(answer(200, self.version))
                    else:
                        await self.handler(asked, writer)
                    await writer.drain()
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()


def _hung_up(writer: asyncio.StreamWriter) -> bool:
    sock = writer.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


async def _next(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.decode().split("\r\n")
    pairs = [text.partition(": ") for text in rest if text]
    return Asked(line, {name.lower(): value for name, _, value in pairs}, reader)


@contextlib.asynccontextmanager
async def served(folder: Path, handler: Handler) -> AsyncIterator[tuple[Server, DockerEngine]]:
    """A server and the product's client of it."""
    server = Server(folder / "e.sock", handler)
    await server.listen()
    engine = await DockerEngine.open(server.host)
    try:
        yield server, engine
    finally:
        await engine.aclose()
        await server.close()


def says(*pieces: bytes) -> Handler:
    """Answers each request with these bytes."""

    async def handle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return handle


async def until(true: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for what happens in another process or task."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


def connections(engine: DockerEngine) -> int:
    """How many connections the client holds."""
    return engine.open_connections

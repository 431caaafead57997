"""A load client that costs little: raw asyncio connections, one request at a time on each.

On a small machine client and server share the cores, so every microsecond of the client is
missing at the server. This one spends about 30 us a request; its own CPU time is reported.
"""

import asyncio
import json
import resource
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Result:
    """What `send_all` saw: seconds per answer, statuses, wall time and the client's CPU time."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    wall: float = 0.0
    client_cpu: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.seconds) / self.wall


def request(method: str, path: str, body: Any = None, media: str = "application/json") -> bytes:
    """The bytes of a request; a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    kind = f"content-type: {media}\r\n" if data else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{kind}content-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def send_all(port: int, requests: Iterator[bytes], connections: int) -> Result:
    """Send every request, each connection the next one as soon as it has its answer."""
    result = Result()
    cpu, wall = cpu_seconds(), time.perf_counter()
    asyncio.run(_send_all(port, requests, connections, result))
    result.wall, result.client_cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    return result


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _send_all(port: int, requests: Iterator[bytes], connections: int, result: Result) -> None:
    loop = asyncio.get_running_loop()
    lanes = [_Lane(requests, result) for _ in range(connections)]
    for lane in lanes:
        await loop.create_connection(lambda lane=lane: lane, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.gather(*(lane.done for lane in lanes))


class _Lane(asyncio.Protocol):
    """One connection. Understands answers with a content-length, which is all that is measured."""

    def __init__(self, requests: Iterator[bytes], result: Result) -> None:
        self._requests, self._result = requests, result
        self._buffer = b""
        self._sent = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        at = buffer.lower().find(b"content-length:", 0, end)
        length = int(buffer[at + 15 : buffer.find(b"\r\n", at)]) if at >= 0 else 0
        if len(buffer) < end + 4 + length:
            return
        self._result.seconds.append(time.perf_counter() - self._sent)
        self._result.statuses[int(buffer[9:12])] += 1
        self._buffer = b""
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))

    def _next(self) -> None:
        message = next(self._requests, None)
        if message is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._sent = time.perf_counter()
        self._transport.write(message)


def for_seconds(message: bytes, seconds: float) -> Iterator[bytes]:
    """The same request until the time is up."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        yield message


def by_turns(targets: Sequence[tuple[int, bytes]], rounds: int) -> list[list[float]]:
    """Send each target's request in turn, `rounds` times; seconds per answer for each (port, request).

    Never two at once, and nothing between sending and reading but the kernel: made for differences
    that are smaller than what the machine's other work adds. Every answer has to be a 200.
    """
    seconds: list[list[float]] = [[] for _ in targets]
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for port, _ in targets
        ]
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(rounds):
            for connection, (_, message), found in zip(connections, targets, seconds, strict=True):
                began = time.perf_counter()
                connection.sendall(message)
                _read_answer(connection)
                found.append(time.perf_counter() - began)
    return seconds


def _read_answer(connection: socket.socket) -> None:
    """Read one answer with a content-length to its end."""
    answer = _more(connection)
    while (head := answer.find(b"\r\n\r\n")) < 0:
        answer += _more(connection)
    at = answer.lower().index(b"content-length:", 0, head)
    whole = head + 4 + int(answer[at + 15 : answer.index(b"\r\n", at)])
    while len(answer) < whole:
        answer += _more(connection)
    assert answer[9:12] == b"200", answer


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the server closed the connection")
    return data

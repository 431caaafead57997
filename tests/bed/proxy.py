"""A proxy on a socket, and what can go wrong on the way: delay, cut, silence, another answer.

It passes bytes on and understands only as much HTTP as is needed to count requests and to answer
some of them itself. One thread a direction: enough for tests.
"""

import contextlib
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_REQUEST = re.compile(rb"^(GET|HEAD|POST|PUT|DELETE|PATCH) (\S+) HTTP/1\.[01]\r\n", re.MULTILINE)
_PIECE = 65536

DROP, LOSE = "drop", "lose"

Address = tuple[str, int] | str  # TCP, or the path of a Unix socket


@dataclass
class Faults:
    """What happens to bytes on their way from the server; change it at any time."""

    down: bool = False  # connections are refused by closing them at once
    silent: bool = False  # nothing is passed on any more, in both directions, and nothing is closed
    bytes_a_second: float = 0  # 0: as fast as it goes
    cut_after: int = 0  # close a connection after so many bytes of answers on it; 0: never
    delay: float = 0  # seconds before each request is passed on
    #: Answer requests whose "METHOD path" matches instead of the server, at most `answers` times.
    answer_to: str = ""
    answer: bytes = b""
    answers: int = 0
    #: Asked with "METHOD path" before a request is passed on. What it gives says what becomes of it:
    #: None: it is passed on; DROP: the connection is closed instead; LOSE: it is passed on, and when
    #: its answer has come, `lost` is called and the connection is closed without the answer.
    judge: Callable[[str], str | None] | None = field(default=None, repr=False)
    lost: Callable[[], None] | None = field(default=None, repr=False)


class Proxy:
    """Listens on a loopback port, or on a Unix socket, and passes on to another address."""

    def __init__(self, target: Address, listen: Path | None = None) -> None:
        self.target = target
        self.faults = Faults()
        self.requests: deque[tuple[float, str]] = deque(maxlen=100_000)  # when (monotonic), "METHOD path"
        self._open: set[socket.socket] = set()
        self._deaf: set[socket.socket] = set()
        self._closed = False
        if listen is None:
            self._server = socket.create_server(("127.0.0.1", 0))
        else:
            listen.unlink(missing_ok=True)
            self._server = socket.socket(socket.AF_UNIX)
            self._server.bind(str(listen))
            self._server.listen(128)
        self._listen = listen
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    @property
    def host(self) -> str:
        """The address in the form of DOCKER_HOST."""
        return f"tcp://127.0.0.1:{self.port}" if self._listen is None else f"unix://{self._listen}"

    def asked(self, pattern: str = "") -> list[str]:
        """The requests so far whose "METHOD path" matches."""
        return [line for _, line in list(self.requests) if re.search(pattern, line)]

    def rate(self, seconds: float) -> float:
        """Requests a second over the last `seconds`."""
        since = time.monotonic() - seconds
        return sum(at >= since for at, _ in list(self.requests)) / seconds

    def deafen(self) -> None:
        """From now on nothing comes through on the connections that are open, and nobody closes them."""
        self._deaf |= self._open

    def cut(self) -> int:
        """Close all connections now; how many there were."""
        victims = list(self._open)
        for victim in victims:
            _shut(victim)
        return len(victims) // 2

    def close(self) -> None:
        self._closed = True
        _shut(self._server)
        self._server.close()
        self.cut()
        if self._listen is not None:
            self._listen.unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self.faults.down:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = _connect(self.target)
        except OSError:
            client.close()
            return
        self._open |= {client, server}
        losing = threading.Event()
        back = threading.Thread(target=self._answers, args=(server, client, losing), daemon=True)
        back.start()
        self._requests(client, server, losing)
        back.join()
        self._open -= {client, server}
        client.close()
        server.close()

    def _requests(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(_PIECE):
                self._wait_while_silent(client)
                for found in _REQUEST.finditer(piece):
                    line = f"{found[1].decode()} {found[2].decode()}"
                    self.requests.append((time.monotonic(), line))
                    if self._answers_itself(line, client):
                        _shut(server)
                        return
                    verdict = self.faults.judge(line) if self.faults.judge is not None else None
                    if verdict == DROP:
                        _shut(client)
                        _shut(server)
                        return
                    if verdict == LOSE:
                        losing.set()
                if self.faults.delay:
                    time.sleep(self.faults.delay)
                server.sendall(piece)
            server.shutdown(socket.SHUT_WR)
            return
        _shut(server)

    def _answers_itself(self, line: str, client: socket.socket) -> bool:
        faults = self.faults
        if not faults.answers or not faults.answer_to or not re.search(faults.answer_to, line):
            return False
        faults.answers -= 1
        client.sendall(faults.answer)
        _shut(client)
        return True

    def _answers(self, server: socket.socket, client: socket.socket, losing: threading.Event) -> None:
        faults, passed = self.faults, 0
        with contextlib.suppress(OSError):
            while piece := server.recv(4096 if faults.bytes_a_second else _PIECE):
                self._wait_while_silent(client)
                if losing.is_set():
                    if faults.lost is not None:
                        faults.lost()
                    break
                if faults.bytes_a_second:
                    time.sleep(len(piece) / faults.bytes_a_second)
                if faults.cut_after and passed + len(piece) > faults.cut_after:
                    client.sendall(piece[: faults.cut_after - passed])
                    break
                client.sendall(piece)
                passed += len(piece)
        _shut(client)
        _shut(server)

    def _wait_while_silent(self, client: socket.socket) -> None:
        while (self.faults.silent or client in self._deaf) and not self._closed:
            time.sleep(0.02)


def http_answer(status: int, body: str = "", *headers: str, kind: str = "application/json") -> bytes:
    """A whole answer for `Faults.answer`."""
    data = body.encode()
    lines = [f"HTTP/1.1 {status} Told", f"Content-Type: {kind}", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + data


def _connect(target: Address) -> socket.socket:
    if isinstance(target, tuple):
        return socket.create_connection(target, 5)
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(target)
    except OSError:
        made.close()
        raise
    return made


def _shut(victim: socket.socket) -> None:
    with contextlib.suppress(OSError):
        victim.shutdown(socket.SHUT_RDWR)

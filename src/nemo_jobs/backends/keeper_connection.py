"""One client of the keeper: JSON objects, one a line, both ways. Standard library only."""

import json
import socket
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

MAX_LINE = 32 << 20  # a request holds at most a body of 8 MiB, escaped
MAX_WAITING = 64 << 20
_READ = 256 << 10


class Closed(Exception):
    """The other side has gone, or broke the rules."""


class Connection:
    """A non-blocking socket with its two buffers."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.greeted = False
        self.blocked = False  # the selector also watches for room to write
        self._in = bytearray()
        self._searched = 0
        self._out: list[bytes] = []
        self._rest = b""

    def receive(self) -> Iterator[Json]:
        """The whole requests that have arrived; raises Closed."""
        try:
            data = self.sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("the client has gone")
        self._in += data
        end = self._in.rfind(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._in)
            if self._searched > MAX_LINE:
                raise Closed("a line without an end")
            return
        whole = bytes(self._in[:end])
        del self._in[: end + 1]
        self._searched = 0
        for line in whole.split(b"\n"):
            try:
                request = json.loads(line)
            except ValueError as error:
                raise Closed(f"not JSON: {error}") from error
            if not isinstance(request, dict):
                raise Closed("not an object")
            yield request

    def put(self, line: bytes) -> None:
        """Queue one line that ends in a line feed; sent by `flush`."""
        self._out.append(line)

    @property
    def waiting(self) -> bool:
        return bool(self._out or self._rest)

    def flush(self) -> None:
        """Send what fits; raises Closed when the client has gone or does not read."""
        if self._out:
            self._rest += b"".join(self._out)
            self._out.clear()
        try:
            while self._rest:
                self._rest = self._rest[self.sock.send(self._rest) :]
        except BlockingIOError:
            if len(self._rest) > MAX_WAITING:
                raise Closed("the client does not read") from None
        except OSError as error:
            raise Closed(str(error)) from error


def encode(message: Json) -> bytes:
    return _as_json(message).encode() + b"\n"


_as_json = json.JSONEncoder(separators=(",", ":")).encode

"""A small HTTP server that answers from a script: replies that a good service never gives."""

import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Close the connection instead of answering, after the request has been read.
    drop: bool = False
    #: Close the connection after so many bytes of the body.
    cut: int | None = None

    def payload(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Seen:
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Callable[[Seen], Reply]


class Scripted:
    """What was asked, and where."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self.connections = 0
        self.peers: list[socket.socket] = []
        #: Answer before the request's body has been read, and close.
        self.early = False
        self.url = ""

    def hang_up(self) -> None:
        """Close every connection, as a restart does."""
        for peer in self.peers:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        self.peers.clear()

    @property
    def targets(self) -> list[str]:
        return [f"{request.method} {request.target}" for request in self.seen]


def _handler_of(server: Scripted) -> type[BaseHTTPRequestHandler]:
    """What answers each connection as the script of `server` says."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def setup(self) -> None:
            super().setup()
            server.connections += 1
            server.peers.append(self.connection)

        def _answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = Seen(self.command, self.path, headers, b"" if server.early else self._body())
            server.seen.append(seen)
            reply = server.script(seen)
            if reply.drop:
                self.close_connection = True
                return
            payload = reply.payload()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.status != 204 and "transfer-encoding" not in reply.headers:
                self.send_header("content-length", str(len(payload)))
            if server.early:
                self.send_header("connection", "close")
                self.close_connection = True
            self.end_headers()
            self.wfile.write(payload if reply.cut is None else payload[: reply.cut])
            if reply.cut is not None:
                self.close_connection = True

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves early is part of the script."""
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


@contextmanager
def scripted(*replies: Reply | Script, tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """Serve the replies one after the other, the last one for ever; or ask a function."""

    def script(seen: Seen) -> Reply:
        chosen = replies[min(len(server.seen) - 1, len(replies) - 1)]
        return chosen if isinstance(chosen, Reply) else chosen(seen)

    server = Scripted(script)

    http = _Server(("127.0.0.1", 0), _handler_of(server))
    if tls is not None:
        http.socket = tls.wrap_socket(http.socket, server_side=True)
    server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join(5)
        http.server_close()


def page(items: list[Any], *, total: int | None = None, number: int = 1, size: int = 10) -> dict[str, Any]:
    """A page envelope."""
    count = len(items) if total is None else total
    return {
        "data": items,
        "sort": "-created_at",
        "pagination": {
            "total_results": count,
            "total_pages": max(1, -(-count // size)),
            "page_size": size,
            "page": number,
            "current_page_size": len(items),
        },
    }


def job(name: str = "moth-sorter", **fields: Any) -> dict[str, Any]:
    """A job as the service answers it, some of its keys."""
    return {
        "id": f"platform-job-{name}",
        "name": name,
        "workspace": "default",
        "source": "cli",
        "status": "created",
        "status_details": {},
        "created_at": "2027-03-04T09:15:27.104233Z",
        "updated_at": "2027-03-04T09:15:27.104233Z",
        **fields,
    }


def tree(status: str, *, name: str = "moth-sorter", steps: int = 1, **fields: Any) -> dict[str, Any]:
    """A status tree."""
    moment = "2027-03-04T09:15:27.104233Z"
    rows = [
        {"id": f"s{n}", "name": f"step-{n}", "status": status, "status_details": {}, "error_details": {}}
        for n in range(steps)
    ]
    return {
        "id": "platform-job-1",
        "name": name,
        "status": status,
        "status_details": {},
        "error_details": None,
        "created_at": moment,
        "updated_at": moment,
        "steps": [{**row, "tasks": [], "created_at": moment, "updated_at": moment} for row in rows],
    } | fields


def line(message: str, second: int = 0, **fields: Any) -> dict[str, Any]:
    """A log line."""
    return {
        "timestamp": f"2027-03-04T09:15:{second:02d}.000000Z",
        "job": "moth-sorter",
        "job_step": "step-0",
        "job_task": "task-1",
        "message": message,
        **fields,
    }


def events(*items: tuple[int | str, Any]) -> bytes:
    """An event stream: (number, line), or (kind, data)."""
    frames = []
    for key, data in items:
        head = f"id: {key}" if isinstance(key, int) else f"event: {key}"
        frames.append(f"{head}\ndata: {json.dumps(data)}\n\n")
    return "".join(frames).encode()

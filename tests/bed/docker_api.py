"""The Engine API as a test asks it: plain, synchronous, and nothing of the product in it.

What the product did is read here from the engine itself, so that its own client can't hide a fault.
"""

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

Json = dict[str, Any]


class ApiError(Exception):
    """The engine refused: its status and its own words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("engine", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Api:
    """Calls to one engine; a connection each, so threads may share it."""

    def __init__(self, path: str, timeout: float = 60) -> None:
        self._path, self._timeout = path, timeout

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """The decoded answer: JSON, else bytes. `query` values that aren't texts become JSON."""
        connection = Connection(self._path, timeout or self._timeout)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            kind = "application/x-tar" if isinstance(body, bytes) else "application/json"
            sent = {"Content-Type": kind, **(headers or {})} if body is not None else dict(headers or {})
            connection.request(method, path + _query(query), data, sent)
            response = connection.getresponse()
            return _decoded(response.status, response.getheader("Content-Type") or "", response.read())
        finally:
            connection.close()

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return self.call("POST", path, body, query=query)

    def delete(self, path: str, **query: Any) -> Any:
        return self.call("DELETE", path, query=query)

    def ping(self) -> bool:
        try:
            return bool(self.call("GET", "/_ping", timeout=2) == b"OK")
        except (OSError, http.client.HTTPException, ApiError):
            return False

    def containers(self, *labels: str, all: bool = True) -> list[Json]:
        """Containers with these labels, ended ones too."""
        found: list[Json] = self.get("/containers/json", all=all, filters={"label": list(labels)})
        return found

    def inspect(self, container: str) -> Json:
        found: Json = self.get(f"/containers/{quote(container, safe='')}/json")
        return found

    def volumes(self, *labels: str) -> list[Json]:
        found: list[Json] = self.get("/volumes", filters={"label": list(labels)})["Volumes"] or []
        return found

    def run(self, image: str, command: list[str], **host_config: Any) -> tuple[int, bytes]:
        """Create, start, wait, read the log and remove: the exit code and both streams as one."""
        body = {"Image": image, "Cmd": command, "HostConfig": {"NetworkMode": "host", **host_config}}
        container = self.post("/containers/create", body)["Id"]
        try:
            self.post(f"/containers/{container}/start")
            code = self.post(f"/containers/{container}/wait")["StatusCode"]
            frames = self.get(f"/containers/{container}/logs", stdout=True, stderr=True)
            return code, b"".join(data for _, data in split_frames(frames))
        finally:
            self.delete(f"/containers/{container}", force=True, v=True)

    def lines(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[Json]:
        """An answer that is a JSON document a line, as it comes (pull, push, events)."""
        connection = Connection(self._path, self._timeout)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path + _query(query), data, dict(headers or {}))
            response = connection.getresponse()
            if response.status >= 300:
                _decoded(response.status, response.getheader("Content-Type") or "", response.read())
            for line in response:
                yield json.loads(line)
        finally:
            connection.close()


def split_frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Stream number and content of each frame of a container's log."""
    place = 0
    while place + 8 <= len(data):
        stream, length = data[place], int.from_bytes(data[place + 4 : place + 8], "big")
        yield stream, data[place + 8 : place + 8 + length]
        place += 8 + length


def _query(values: Mapping[str, Any] | None) -> str:
    if not values:
        return ""
    return "?" + urlencode({k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()})


def _decoded(status: int, kind: str, body: bytes) -> Any:
    found = json.loads(body) if kind.startswith("application/json") and body.strip() else body
    if status >= 300 and status != 304:
        raise ApiError(status, found.get("message", "") if isinstance(found, dict) else repr(found))
    return found

"""HTTP/1.1 over one socket, kept open between requests.

Written out because importing `http.client` takes longer than a whole `nemo jobs list` should:
it loads the mail parser and TLS. Here TLS is loaded for https alone.
"""

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from typing import NamedTuple, Protocol, cast

from nemo_jobs.client.errors import BadAddress, BadAnswer, ConnectionFailed, TimedOut

MAX_BODY = 1 << 30
MAX_LINE = 1 << 16
#: A line of an event stream: a log line has at most 1 MiB, and JSON may make six of each byte.
MAX_LINE_OF_BODY = 1 << 24
_MAX_HEADERS = 200
_URL = re.compile(r"(https?)://(\[[0-9a-fA-F:.]+\]|[^/:@\[\]?#\s]+)(?::([0-9]{1,5}))?(/[^?#\s]*)?/?")
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class Address(NamedTuple):
    """Where a server listens. `path` is the socket file of a unix address, else empty."""

    scheme: str
    host: str
    port: int
    path: str
    prefix: str

    @property
    def host_header(self) -> str:
        if self.path:
            return "localhost"
        standard = {"http": 80, "https": 443}[self.scheme]
        return self.host if self.port == standard else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"{self.scheme}://{self.host_header}{self.prefix}"


def parse_address(url: str) -> Address:
    """Read `http://host[:port][/prefix]`, `https://…` or `unix:///path/of/socket`."""
    text = url.strip()
    if text.startswith("unix://"):
        path = text.removeprefix("unix://")
        if not path.startswith("/"):
            raise BadAddress(f"'{url}' needs an absolute path, like unix:///run/nemo.sock")
        return Address("unix", "localhost", 0, path, "")
    match = _URL.fullmatch(text)
    port = int(match[3]) if match and match[3] else 0
    if match is None or port > 65535:
        raise BadAddress(f"'{url}' is not a base URL; use http://host:port, https://host or unix:///path")
    scheme, host = match[1], match[2]
    default = 443 if scheme == "https" else 80
    return Address(scheme, host, port or default, "", (match[4] or "").rstrip("/"))


def quote(text: str) -> str:
    """Percent-encode one path segment or query value; `.` and `..` can't act as path steps."""
    data = text.encode("utf-8", "surrogateescape")
    if data in (b".", b".."):
        return "%2E" * len(data)
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in data)


class Outgoing(Protocol):
    """A body that is sent piece by piece. `length` None: nobody knows before its end."""

    @property
    def length(self) -> int | None: ...
    def pieces(self) -> Iterator[bytes]: ...


LAST_CHUNK = b"0\r\n\r\n"


def chunk(piece: bytes) -> bytes:
    """A piece of a body of unknown length, as it travels."""
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""


def request_head(
    address: Address, method: str, target: str, headers: Mapping[str, str], length: int | None, body: bool
) -> bytes:
    """The head of a request; a body without a length is sent in chunks."""
    lines = [f"{method} {address.prefix}{target} HTTP/1.1", f"host: {address.host_header}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body and length is None:
        lines.append("transfer-encoding: chunked")
    elif body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"content-length: {length or 0}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


class Response:
    """An answer whose body has not been read yet."""

    def __init__(
        self, status: int, headers: Mapping[str, str], reader: BufferedReader, *, bodyless: bool
    ) -> None:
        self.status = status
        self.headers = headers
        self.finished = False
        #: Not all of the request was sent, so the connection can't serve another.
        self.interrupted = False
        #: What becomes of the connection; the transport sets it.
        self.release: Callable[[], None] | None = None
        self._reader = reader
        self._bodyless = bodyless

    def close(self) -> None:
        """Give the connection back, for others if the body was read to its end."""
        release, self.release = self.release, None
        if release is not None:
            release()

    def read(self) -> bytes:
        """The whole body."""
        parts: list[bytes] = []
        size = 0
        for part in self.pieces():
            size += len(part)
            if size > MAX_BODY:
                raise BadAnswer(f"the answer is larger than {MAX_BODY} bytes")
            parts.append(part)
        return b"".join(parts)

    def lines(self) -> Iterator[str]:
        """The body as text lines, each as soon as it is there; for event streams."""
        rest = b""
        for part in self.pieces():
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line.removesuffix(b"\r").decode("utf-8", "replace")
            if len(rest) > MAX_LINE_OF_BODY:
                raise BadAnswer(f"a line of the answer is longer than {MAX_LINE_OF_BODY} bytes")

    def pieces(self) -> Iterator[bytes]:
        """The body in the pieces in which it arrives."""
        if self._bodyless:
            pass
        elif self.headers.get("transfer-encoding", "").lower() == "chunked":
            yield from self._chunks()
        elif "content-length" in self.headers:
            yield from self._counted(number(self.headers["content-length"], 10))
        else:
            while piece := self._reader.read1(MAX_LINE):
                yield piece
            return
        self.finished = True

    def _counted(self, left: int) -> Iterator[bytes]:
        while left:
            piece = self._reader.read1(min(left, MAX_LINE))
            if not piece:
                raise ConnectionFailed("the connection broke in the middle of an answer")
            left -= len(piece)
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while size := number(_line(self._reader).split(";")[0], 16):
            yield from self._counted(size)
            _line(self._reader)
        while _line(self._reader):
            pass


class Connection:
    """One open connection. Any failure closes it; nothing is repeated here."""

    def __init__(self, address: Address, *, timeout: float, ca_file: str | None = None) -> None:
        self.address = address
        self.used = False
        self._timeout = timeout
        self._interrupted = False
        try:
            self._socket = _connect(address, timeout, ca_file)
        except TimeoutError as error:
            raise TimedOut(f"no connection to {address} within {timeout:g} s") from error
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError | FileNotFoundError)
            text = f"can't connect to {address}: {reason(error)}"
            raise ConnectionFailed(text, refused=refused) from error
        self._reader = cast(BufferedReader, self._socket.makefile("rb", buffering=MAX_LINE))

    def request(
        self, method: str, target: str, headers: Mapping[str, str], body: "bytes | Outgoing | None"
    ) -> Response:
        """Send one request and read the head of its answer."""
        self.used = True
        length = None if body is None else len(body) if isinstance(body, bytes) else body.length
        head = request_head(self.address, method, target, headers, length, body is not None)
        broken: OSError | None = None
        try:
            if body is None or isinstance(body, bytes):
                self._socket.sendall(head + (body or b""))
            else:
                self._send_pieces(head, body)
        except TimeoutError:
            raise
        except OSError as error:
            # A server may answer (413, 503) and close before it has read all of the request.
            broken = error
        try:
            response = self._head(method)
        except (OSError, ConnectionFailed) as error:
            raise broken or error from None
        response.interrupted = self._interrupted or broken is not None
        return response

    def _send_pieces(self, head: bytes, body: "Outgoing") -> None:
        self._socket.sendall(head)
        framed = body.length is None
        for piece in body.pieces():
            if self._answered():
                self._interrupted = True
                return
            self._socket.sendall(chunk(piece) if framed else piece)
        if framed:
            self._socket.sendall(LAST_CHUNK)

    def stale(self) -> bool:
        """Whether a connection without a request can't take one: the server has closed it, or has
        said something that nobody asked for."""
        if self._readable():
            return True
        self._socket.settimeout(0)
        try:
            return bool(self._reader.peek(1))
        except OSError:  # TLS, when there is nothing to read
            return False
        finally:
            self._socket.settimeout(self._timeout)

    def _answered(self) -> bool:
        """Whether the server has answered before it has all of the request. TLS can't tell."""
        return self.address.scheme != "https" and self._readable()

    def _readable(self) -> bool:
        import select

        watch = select.poll()
        watch.register(self._socket, select.POLLIN)
        return bool(watch.poll(0))

    def set_timeout(self, seconds: float) -> None:
        self._timeout = seconds
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def _head(self, method: str) -> Response:
        while True:
            version, status = status_line(_line(self._reader), self.address)
            headers = self._headers()
            if status >= 200:
                break
        if version == "HTTP/1.0":
            headers.setdefault("connection", "close")
        return Response(status, headers, self._reader, bodyless=method == "HEAD" or status in (204, 304))

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        while line := _line(self._reader):
            add_header(headers, line, self.address)
        return headers


def status_line(line: str, address: Address) -> tuple[str, int]:
    """Version and status of an answer. Raises `BadAnswer` when it isn't HTTP."""
    words = line.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise BadAnswer(f"{address} doesn't speak HTTP")
    return words[0], int(words[1])


def add_header(headers: dict[str, str], line: str, address: Address) -> None:
    """Take one line of an answer's head."""
    name, _, value = line.partition(":")
    headers[name.strip().lower()] = value.strip()
    if len(headers) > _MAX_HEADERS:
        raise BadAnswer(f"{address} sent too many headers")


def _connect(address: Address, timeout: float, ca_file: str | None) -> socket.socket:
    if address.path:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(timeout)
        try:
            plain.connect(address.path)
        except OSError:
            plain.close()
            raise
        return plain
    host = address.host.strip("[]")
    plain = _dial(host, address.port, timeout)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if address.scheme == "http":
        return plain
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file).wrap_socket(plain, server_hostname=host)
    except OSError:
        plain.close()
        raise


def _dial(host: str, port: int, timeout: float) -> socket.socket:
    """A connection to the first address of the host that takes it."""
    # As bytes, a plain name needs no IDNA tables, which are slow to load.
    name = host.encode() if host.isascii() else host
    failure: OSError = ConnectionRefusedError(f"{host} has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
        attempt = socket.socket(family, kind, protocol)
        attempt.settimeout(timeout)
        try:
            attempt.connect(place)
        except OSError as error:
            attempt.close()
            failure = error
            continue
        return attempt
    raise failure


def _line(reader: BufferedReader) -> str:
    line = reader.readline(MAX_LINE + 1)
    if not line.endswith(b"\n"):
        if len(line) > MAX_LINE:
            raise BadAnswer("a line of the answer's head is too long")
        raise ConnectionFailed("the server closed the connection without an answer")
    return line.decode("latin-1").rstrip("\r\n")


def number(text: str, base: int) -> int:
    """A length in an answer's head. Raises `BadAnswer`."""
    try:
        value = int(text.strip(), base)
    except ValueError:
        value = -1
    if value < 0:
        raise BadAnswer(f"the answer has a length of '{text[:40]}'")
    return value


def reason(error: OSError) -> str:
    """Why a connection failed, in words."""
    return (error.strerror or str(error)).lower()

"""Ways to an engine: a socket file, TCP plain or with TLS, and the engine's own helper over SSH."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nemo_jobs.backends.docker.connection import Connection
from nemo_jobs.backends.docker.errors import EngineAway, one_line

#: Seconds until a connection must stand.
CONNECT_SECONDS = 10.0

# A peer that is gone without a word is noticed after 15 s and 3 more questions.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
_LONGEST_PATH = 107  # bytes of a socket's address


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for TLS: who may be trusted, and who we are. `ca` None: what the system trusts."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine is; `origin` says who said so."""

    scheme: str  # "unix", "tcp" or "ssh"
    path: str = ""  # of the socket file; with ssh that on the other side, empty: the usual one
    host: str = ""
    port: int = 0
    user: str = ""
    tls: Tls | None = None
    origin: str = ""

    @property
    def local(self) -> bool:
        return self.scheme == "unix"

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{self.scheme}://{user}{host}" + (f":{self.port}" if self.port else "") + self.path


class Dialer(Protocol):
    """Makes connections to one engine; `most_calls`: how many are worth having for each
    kind of calls that end by themselves."""

    most_calls: int

    async def dial(self) -> Connection:
        """A new connection; raises EngineAway."""
        ...


def dialer(address: Address) -> Dialer:
    """The way to an address."""
    if address.scheme == "unix":
        return _UnixDialer(address)
    if address.scheme == "ssh":
        from nemo_jobs.backends.docker.ssh import SshDialer  # most engines need no processes

        return SshDialer(address)
    return _TcpDialer(address)


class _UnixDialer:
    most_calls = 1000

    def __init__(self, address: Address) -> None:
        self._address = address

    async def dial(self) -> Connection:
        loop, path, place = asyncio.get_running_loop(), self._address.path, -1
        try:
            if len(os.fsencode(path)) > _LONGEST_PATH:
                place = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                path = f"/proc/self/fd/{place}/{os.path.basename(path)}"
            async with asyncio.timeout(CONNECT_SECONDS):
                _, made = await loop.create_unix_connection(Connection, path)
            return _standing(made)
        except OSError as error:  # TimeoutError is one
            raise EngineAway(f"no Docker engine at {self._address}: {_why(error)}") from error
        finally:
            if place >= 0:
                os.close(place)


class _TcpDialer:
    """One look-up of the name at a time: a name server that doesn't answer costs one thread, not all."""

    most_calls = 1000

    def __init__(self, address: Address) -> None:
        self._address = address
        self._looking: asyncio.Task[Sequence[tuple[str, int]]] | None = None

    async def dial(self) -> Connection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                tls = await asyncio.to_thread(_context, self._address.tls) if self._address.tls else None
                return await self._connected(tls)
        except (OSError, ValueError) as error:
            raise EngineAway(f"no Docker engine at {self._address}: {_why(error)}") from error

    async def _connected(self, tls: ssl.SSLContext | None) -> Connection:
        failed: OSError | None = None
        for host, port in await self._look_up():
            try:
                return await self._connect(host, port, tls)
            except OSError as error:
                failed = failed or error
        raise failed or OSError("its name has no address")

    async def _connect(self, host: str, port: int, tls: ssl.SSLContext | None) -> Connection:
        name = self._address.host if tls else None
        _, made = await asyncio.get_running_loop().create_connection(
            Connection, host, port, ssl=tls, server_hostname=name
        )
        sock = made.socket
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            if hasattr(socket, option):  # what this system has of them
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        return made

    async def _look_up(self) -> Sequence[tuple[str, int]]:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._addresses())
            self._looking.add_done_callback(_heard)
        return await asyncio.shield(self._looking)

    async def _addresses(self) -> Sequence[tuple[str, int]]:
        found = await asyncio.get_running_loop().getaddrinfo(
            self._address.host, self._address.port, type=socket.SOCK_STREAM
        )
        return list(dict.fromkeys((str(entry[4][0]), int(entry[4][1])) for entry in found))


def _standing(made: Connection) -> Connection:
    """A socket whose queue is full looks like a connected one until it is used."""
    try:
        made.socket.getpeername()
    except OSError:
        made.abort()
        raise OSError(0, "it takes no more connections, as if it stood still") from None
    return made


def _heard(task: asyncio.Task[Sequence[tuple[str, int]]]) -> None:
    """Nobody may be waiting any more: an error that no one takes is no news."""
    if not task.cancelled():
        task.exception()


def _context(tls: Tls) -> ssl.SSLContext:
    """Read the files: anew for each connection, so that renewed ones count."""
    context = ssl.create_default_context(cafile=tls.ca)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key, password=_no_password)
    return context


def _no_password() -> str:
    raise ValueError("the key file is locked with a password, which nobody could type here")


_ERRORS: Sequence[tuple[type[Exception], Callable[[Exception], str]]] = (
    (FileNotFoundError, lambda error: _not_there(error)),
    (PermissionError, lambda error: "this user may not use it: permission denied"),
    (ConnectionRefusedError, lambda error: "nothing listens there"),
    (TimeoutError, lambda error: f"no connection within {CONNECT_SECONDS:g} s"),
    (socket.gaierror, lambda error: f"its name can't be resolved: {error.args[-1]}"),
    (ssl.SSLCertVerificationError, lambda error: f"its certificate isn't trusted: {_verify(error)}"),
    (ssl.SSLError, lambda error: f"TLS fails: {error}"),
)


def _why(error: Exception) -> str:
    for kind, text in _ERRORS:
        if isinstance(error, kind):
            return one_line(text(error))
    return one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def _not_there(error: Exception) -> str:
    name = getattr(error, "filename", None)
    return f"there is no file {name}" if name else "there is no such socket file"


def _verify(error: Exception) -> str:
    return str(getattr(error, "verify_message", error))

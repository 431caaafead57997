"""The way to an engine over SSH: a process each connection, whose ends are the connection's."""

import asyncio
import os
import shlex
import socket

from nemo_jobs.backends.docker import programs
from nemo_jobs.backends.docker.connection import Connection
from nemo_jobs.backends.docker.errors import EngineAway, one_line
from nemo_jobs.backends.docker.transport import Address

_FIRST_ANSWER = 20.0  # seconds
_PATIENCE = 3.0  # seconds that the program has to end by itself
_MOST_WORDS = 4096  # bytes of what it says on standard error

#: What the program may see of our environment: enough to find keys and settings, no secret of ours.
_PASSED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SSH_AUTH_SOCK", "USER", "XDG_RUNTIME_DIR")


class SshDialer:
    """Runs `ssh … docker system dial-stdio` and talks through it. Never asks for a password: keys,
    known hosts and further options are those of the user's own SSH configuration."""

    most_calls = 4

    def __init__(self, address: Address) -> None:
        self._address = address
        self._minders: set[asyncio.Task[None]] = set()

    async def dial(self) -> Connection:
        """Returns when the engine has answered through the program: servers take only so many
        connections at a time that haven't proven who they are."""
        made = await self._connected()
        try:
            async with asyncio.timeout(_FIRST_ANSWER):
                await made.ask(b"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
                while await made.read():
                    pass
        except TimeoutError:
            made.abort()
            raise EngineAway(f"no Docker engine at {self._address}: no answer in time") from None
        except BaseException:
            made.abort()
            raise
        return made

    async def _connected(self) -> Connection:
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            process = await self._start(theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        minder = _Minder(self._address, process)
        task = asyncio.create_task(minder.run())
        self._minders.add(task)
        task.add_done_callback(self._minders.discard)
        _, made = await asyncio.get_running_loop().create_connection(
            lambda: _SshConnection(minder), sock=ours
        )
        return made

    async def _start(self, end: socket.socket) -> asyncio.subprocess.Process:
        environ = {name: value for name in _PASSED if (value := os.environ.get(name)) is not None}
        pipe = asyncio.subprocess.PIPE
        try:
            return await programs.start(
                self.command(), environ, stdin=end.fileno(), stdout=end.fileno(), stderr=pipe
            )
        except OSError as error:
            raise EngineAway(f"ssh can't be started: {one_line(str(error))}") from error

    def command(self) -> list[str]:
        """The program with its arguments; the words behind the host are read by a shell there."""
        address = self._address
        options = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15", "ServerAliveCountMax=3"]
        command = ["ssh", "-T", *(f"-o{option}" for option in options)]
        command += ["-l", address.user] if address.user else []
        command += ["-p", str(address.port)] if address.port else []
        there = ["--host", shlex.quote(f"unix://{address.path}")] if address.path else []
        return [*command, "--", address.host, "docker", *there, "system", "dial-stdio"]


class _SshConnection(Connection):
    """Tells the minder when it ends, so that the program ends too."""

    def __init__(self, minder: "_Minder") -> None:
        super().__init__(minder.explain)
        self._minder = minder

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._minder.closed.set()


class _Minder:
    """Looks after one program: hears what it complains of, sees to its end."""

    def __init__(self, address: Address, process: asyncio.subprocess.Process) -> None:
        self.closed = asyncio.Event()
        self._address, self._process = address, process
        self._said = b""
        self._ended = asyncio.Event()

    async def run(self) -> None:
        ended = asyncio.create_task(self._listen())
        closed = asyncio.create_task(self.closed.wait())
        try:
            await asyncio.wait((ended, closed), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((ended,), timeout=_PATIENCE)
        finally:
            closed.cancel()
            await programs.end(self._process, read=True)
            await ended

    async def explain(self) -> str:
        """What it said when it failed; empty when it didn't."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._ended.wait()
        except TimeoutError:
            return ""
        lines = self._said.decode(errors="replace").strip().splitlines()
        said = one_line(lines[-1]) if lines else f"it ended with code {self._process.returncode}"
        return f"no Docker engine at {self._address}: ssh says: {said}" if self._process.returncode else ""

    async def _listen(self) -> None:
        stderr = self._process.stderr
        while stderr is not None and (data := await stderr.read(_MOST_WORDS)):
            self._said = (self._said + data)[-_MOST_WORDS:]
        await self._process.wait()
        self._ended.set()

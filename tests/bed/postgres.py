"""A private PostgreSQL for tests: Debian's package, a loopback port, a folder of its own.

    server = PostgresServer.start()
    url = server.new_database()
    server.stop()

As root the server runs as user `postgres`, since it refuses to run as root.
"""

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from tests.e2e.service import free_port

HOW_TO_GET_IT = "PostgreSQL is not installed; on Debian: apt-get install postgresql"
_BINARIES = "/usr/lib/postgresql/*/bin"


class Missing(Exception):
    """There is no PostgreSQL here; the text says how to get it."""


def find_binaries() -> Path:
    """The folder with `initdb` and `postgres`. In CI on Debian, as root, it is installed first."""
    found = _installed()
    if found is None and os.environ.get("CI", "").lower() in ("1", "true", "yes") and _can_install():
        subprocess.run(["apt-get", "update", "-q"], check=False, stdin=subprocess.DEVNULL, timeout=300)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "-q", "-y", "--no-install-recommends", "postgresql"]
        subprocess.run(command, check=True, env=quiet, stdin=subprocess.DEVNULL, timeout=600)
        found = _installed()
    if found is None:
        raise Missing(HOW_TO_GET_IT)
    return found


def _installed() -> Path | None:
    folders = [path for path in Path("/").glob(_BINARIES.lstrip("/")) if (path / "initdb").exists()]
    if folders:
        return max(folders, key=lambda path: int(path.parent.name) if path.parent.name.isdigit() else 0)
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path and shutil.which("postgres") else None


def _can_install() -> bool:
    return os.geteuid() == 0 and Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None


class PostgresServer:
    """A running server. `stop` and `resume` may be called again and again."""

    def __init__(self, binaries: Path, folder: Path, port: int, fsync: bool) -> None:
        self._binaries, self._folder, self._port, self._fsync = binaries, folder, port, fsync
        self._process: subprocess.Popen[bytes] | None = None
        self._kept: psycopg.Connection | None = None
        self._numbers = itertools.count()

    @classmethod
    def start(cls, *, fsync: bool = False) -> "PostgresServer":
        """Make a new server and wait until it answers. Raises `Missing`."""
        binaries = find_binaries()
        folder = Path(tempfile.mkdtemp(prefix="nemo-jobs-postgres-"))
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)
        server = cls(binaries, folder, free_port(), fsync)
        server._run(
            "initdb",
            "-D",
            str(folder / "data"),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
        )
        server.resume()
        return server

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def new_database(self, template: str = "template1") -> str:
        """The URL of a fresh database, a copy of `template`."""
        name = f"test_{next(self._numbers)}"
        self._quickly(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        self._quickly(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def _quickly(self, statement: str) -> None:
        """Over one connection that is kept: hundreds of tests want a database, and `psql` costs a start."""
        if self._kept is not None:
            try:
                self._kept.execute(statement.encode())
                return
            except psycopg.OperationalError:  # the server was stopped in between
                self._forget()
        self._kept = psycopg.connect(self.url("postgres"), autocommit=True)
        self._kept.execute(statement.encode())

    def _forget(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def sql(self, database: str, statement: str) -> str:
        """Run one statement and give its output."""
        command = [str(self._binaries / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
        command += ["-d", self.url(database), "-c", statement]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout.strip()

    def resume(self) -> None:
        """Start the server on its data and port, and wait until it answers."""
        flush = "on" if self._fsync else "off"
        settings = {
            "port": str(self._port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._folder),
            "fsync": flush,
            "full_page_writes": flush,
            "max_connections": "100",
            "shared_buffers": "32MB",
            "log_min_messages": "warning",
        }
        command = [str(self._binaries / "postgres"), "-D", str(self._folder / "data")]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                _as_postgres(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder
            )
        self._wait_until_it_answers()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: cut all connections; SIGQUIT: like a crash."""
        self._forget()
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process = None

    def freeze(self) -> None:
        """All of its processes stand still: connections stay open, nothing answers."""
        for pid in self._family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def destroy(self) -> None:
        """Stop and remove everything."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _family(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def _run(self, program: str, *args: str) -> None:
        command = _as_postgres([str(self._binaries / program), *args])
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder, timeout=60)

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start: {(self._folder / 'server.log').read_text()}")
            ready = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
            if subprocess.run(ready, check=False, timeout=10).returncode == 0:
                return
            time.sleep(0.05)
        raise RuntimeError("PostgreSQL does not answer after 30 s")


def _as_postgres(command: list[str]) -> list[str]:
    """`setpriv` execs, so the process id is the server's own."""
    if os.geteuid() != 0:
        return command
    setpriv = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--reset-env", "--"]
    return [*setpriv, *command]

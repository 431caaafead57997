"""What is checked before a service starts: its options, its address, its settings, its database.

What fails here fails at once, with a sentence, and leaves nothing behind.
"""

import contextlib
import fcntl
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nemo_jobs.clock import SystemClock
from nemo_jobs.domain.addresses import is_loopback

if TYPE_CHECKING:
    from nemo_jobs.config import LoadedSettings
    from nemo_jobs.store.db import Database

Role = Literal["all", "api", "engine"]
#: The defaults of section `service`, known here before settings are loaded, which takes longer.
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080


_IN_USE = (
    "another service uses the database {database}; stop it, or give this one its own --data-dir, "
    "or PostgreSQL, which serves many"
)
NEEDS_POSTGRESQL = (
    "--role {role} needs PostgreSQL, since SQLite serves one process: "
    "set database.url or NHX_DATABASE_URL, or leave --role away"
)


class StartError(Exception):
    """The service can't start as asked; the text says what to do. Exit code 2."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What the command line says; None where it is silent."""

    host: str | None = None
    port: int | None = None
    data_dir: Path | None = None
    config: Path | None = None
    role: Role = "all"
    insecure_no_auth: bool = False


def may_be_postgresql(options: ServiceOptions, environ: Mapping[str, str]) -> bool:
    """Whether some setting could name PostgreSQL, judged without reading settings as such."""
    written = _written(options, environ)
    return bool(environ.get("NHX_DATABASE_URL")) or b"postgres" in written or b"\\" in written


def early_address(options: ServiceOptions, environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Where to listen, when no setting can have a say in it."""
    host, port = options.host, options.port
    if not _written(options, environ) and not any(name.startswith("NHX_SERVICE_") for name in environ):
        host, port = host or DEFAULT_HOST, DEFAULT_PORT if port is None else port
    # Others must not even connect before it is known whether they may.
    return None if host is None or port is None or not is_loopback(host) else (host, port)


def _written(options: ServiceOptions, environ: Mapping[str, str]) -> bytes:
    """The text of the configuration file; nothing when there is none."""
    named = options.config or environ.get("NHX_CONFIG_FILE_PATH")
    try:
        return Path(named or "/etc/nhx/config.yaml").read_bytes()
    except OSError:
        return b"\\" if named else b""  # one that can't be read is told of by the configuration


def load(options: ServiceOptions, environ: Mapping[str, str]) -> "LoadedSettings":
    from nemo_jobs.config import ConfigError, load_settings

    try:
        return load_settings(options.config, environ)
    except ConfigError as error:
        raise StartError(f"the configuration can't be used\n{error}") from error


def refuse_second(database: Path) -> None:
    """The lock itself is taken when the database is opened; this only tells of it sooner."""
    try:
        with database.with_name(database.name + ".lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartError(_IN_USE.format(database=database)) from error


@contextlib.contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, since asyncio switches Nagle's delay off only on sockets that say TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(2048)
        except OSError as error:
            text = f"can't listen on {host}:{port}: {error.strerror}; choose another with --port or --host"
            raise StartError(text) from error
        yield listener


def open_database(url: str) -> "Database":
    from nemo_jobs.domain.model import Unavailable
    from nemo_jobs.store.db import Database, Locked, SchemaTooNew

    try:
        return Database.open(url, clock=SystemClock())
    except Locked as error:
        text = (
            f"{error}: another service uses this data directory; stop it, or give this one its own --data-dir"
        )
        raise StartError(text) from error
    except (SchemaTooNew, Unavailable, OSError) as error:
        raise StartError(str(error)) from error

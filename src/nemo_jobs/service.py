"""Composition: one process that serves the API, runs the engine, or both."""

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nemo_jobs import exposure
from nemo_jobs.clock import SystemClock
from nemo_jobs.domain.addresses import is_loopback
from nemo_jobs.host import Slot, host_id, prepare_data_dir, unusable_profiles

if TYPE_CHECKING:
    from nemo_jobs.backends.api import Backend, PlatformInfo
    from nemo_jobs.config import LoadedSettings, Settings
    from nemo_jobs.domain.profiles import ProfileSet
    from nemo_jobs.engine.engine import Engine
    from nemo_jobs.files.objects import ObjectStore
    from nemo_jobs.store.db import Database
    from nemo_jobs.vault.secrets import Secrets

log = logging.getLogger("nemo_jobs")

Role = Literal["all", "api", "engine"]
#: How long the start of the keeper is waited for before it is tried again, in seconds.
KEEPER_SECONDS = 15.0
#: The whole of a shutdown takes at most this long, in seconds.
SHUTDOWN_SECONDS = 4.5
#: The defaults of section `service`, known here before settings are loaded, which takes longer.
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080
#: Backends of this version, by the name that profiles use.
BACKENDS = ("subprocess",)


_IN_USE = (
    "another service uses the database {database}; stop it, or give this one its own --data-dir, "
    "or PostgreSQL, which serves many"
)
_NEEDS_POSTGRESQL = (
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


def run_service(options: ServiceOptions, environ: Mapping[str, str]) -> int:
    """Run until SIGTERM or Ctrl-C; the exit code."""
    try:
        with contextlib.ExitStack() as stack:
            service = _prepare(options, environ, stack)
            return asyncio.run(service.run())
    except StartError as error:
        print(f"nemo services run: {error}", file=sys.stderr)
        return 2


def _prepare(options: ServiceOptions, environ: Mapping[str, str], stack: contextlib.ExitStack) -> "Service":
    # The cheap checks come before the slow imports and before anything is made, so that a mistake
    # is told at once and leaves nothing behind.
    if options.role != "all" and not _may_be_postgresql(options, environ):
        raise StartError(_NEEDS_POSTGRESQL.format(role=options.role))
    listener: socket.socket | None = None
    if (address := _early_address(options, environ)) is not None:
        listener = stack.enter_context(_listen(*address))
    loaded = _load(options, environ)
    settings = loaded.settings
    url = settings.database.url or ""
    sqlite = not url or url.startswith("sqlite")
    if options.role != "all" and sqlite:
        raise StartError(_NEEDS_POSTGRESQL.format(role=options.role))
    host = options.host or settings.service.host
    if (why := exposure.problem(host, settings, options.insecure_no_auth)) is not None:
        raise StartError(why)
    if listener is None:
        port = settings.service.port if options.port is None else options.port
        listener = stack.enter_context(_listen(host, port))
    from nemo_jobs.config import default_data_dir

    try:
        data_dir = prepare_data_dir(options.data_dir or default_data_dir(environ))
        slot = stack.enter_context(contextlib.closing(Slot(data_dir)))
    except OSError as error:
        raise StartError(f"data directory: {error}") from error
    url = url or f"sqlite:///{data_dir}/nemo-jobs.db"
    if sqlite:
        _refuse_second(Path(url.removeprefix("sqlite:///")))
    from nemo_jobs.logs_setup import set_up_logging

    set_up_logging(settings.service.log_level, settings.service.log_format)
    _tell(loaded)
    keeper = _begin_keeper(data_dir) if options.role != "api" else None
    db = _open_database(url)
    return Service(settings, data_dir, slot, listener, db, options.role, keeper)


def _begin_keeper(data_dir: Path) -> threading.Thread:
    """Start the keeper beside the slow imports. If it can't be started, the backend tells why."""
    from nemo_jobs.backends.api import Unavailable
    from nemo_jobs.backends.keeper import SOCKET
    from nemo_jobs.backends.keeper_client import start_keeper

    directory = data_dir / "keeper"

    def start() -> None:  # imports nothing: two threads that import can meet half-made modules
        if not (directory / SOCKET).exists():
            with contextlib.suppress(Unavailable, OSError):
                start_keeper(str(directory))

    thread = threading.Thread(target=start, name="keeper-start", daemon=True)
    thread.start()
    return thread


def _may_be_postgresql(options: ServiceOptions, environ: Mapping[str, str]) -> bool:
    """Whether some setting could name PostgreSQL, judged without reading settings as such."""
    written = _written(options, environ)
    return bool(environ.get("NHX_DATABASE_URL")) or b"postgres" in written or b"\\" in written


def _early_address(options: ServiceOptions, environ: Mapping[str, str]) -> tuple[str, int] | None:
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


def _load(options: ServiceOptions, environ: Mapping[str, str]) -> "LoadedSettings":
    from nemo_jobs.config import ConfigError, load_settings

    try:
        return load_settings(options.config, environ)
    except ConfigError as error:
        raise StartError(f"the configuration can't be used\n{error}") from error


def _refuse_second(database: Path) -> None:
    """The lock itself is taken when the database is opened; this only tells of it sooner."""
    try:
        with database.with_name(database.name + ".lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartError(_IN_USE.format(database=database)) from error


@contextlib.contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
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


def _tell(loaded: "LoadedSettings") -> None:
    if loaded.source is not None:
        log.info("configuration read from %s", loaded.source)
    for warning in loaded.warnings:
        log.warning("configuration: %s", warning)


def _open_database(url: str) -> "Database":
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


class Service:
    """The parts of one running service and their order of start and stop."""

    def __init__(
        self,
        settings: "Settings",
        data_dir: Path,
        slot: Slot,
        listener: socket.socket,
        db: "Database",
        role: Role,
        keeper: threading.Thread | None,
    ) -> None:
        self._keeper = keeper
        self._settings, self._data_dir, self._slot = settings, data_dir, slot
        self._listener, self._db, self._role = listener, db, role
        self._clock = SystemClock()
        self._stop = asyncio.Event()
        self._backends: dict[str, Backend] = {}
        self._engine: Engine | None = None
        self._objects: ObjectStore | None = None
        self._secrets: Secrets | None = None

    async def run(self) -> int:
        """Start, say so, serve until asked to stop, and stop in order."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        try:
            await self._start_database()
            await self._open_stores()
            profiles = self._profiles()
            if self._role != "api":
                await self._start_engine(profiles)
            await self._serve(profiles)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SHUTDOWN_SECONDS):
                    await self._shut_down()
        return 0

    async def _start_database(self) -> None:
        from nemo_jobs.domain.model import Unavailable
        from nemo_jobs.store import tokens, workspaces

        try:
            await self._db.start()
            await self._db.write(workspaces.ensure_defaults, self._clock.now())
            exposure.tell(self._listener.getsockname()[0], self._settings, await self._db.read(tokens.count))
        except Unavailable as error:
            raise StartError(f"the database can't be used: {error}") from error

    async def _open_stores(self) -> None:
        from nemo_jobs.domain.model import Unavailable
        from nemo_jobs.file_store import open_file_store
        from nemo_jobs.secret_store import open_secrets

        try:
            self._secrets = await open_secrets(self._data_dir, self._db, self._clock, os.environ)
            self._objects = await open_file_store(self._settings, self._data_dir, self._db)
        except Unavailable as error:
            raise StartError(str(error)) from error

    def _profiles(self) -> "ProfileSet":
        from nemo_jobs.domain.profiles import resolve_profiles

        profiles = resolve_profiles(self._settings, docker=False, available=BACKENDS)
        for (provider, profile), why in profiles.left_out.items():
            log.warning("profile %s/%s is left out: %s", provider, profile, why)
        for problem in unusable_profiles(profiles):
            log.warning("%s", problem)
        return profiles

    async def _start_engine(self, profiles: "ProfileSet") -> None:
        from nemo_jobs.backends import api
        from nemo_jobs.domain.model import Unavailable

        try:
            await self._make_engine(profiles)
        except (Unavailable, api.Unavailable) as error:
            raise StartError(f"the engine can't start: {error}") from error

    async def _make_engine(self, profiles: "ProfileSet") -> None:
        from nemo_jobs.backends.subprocess import SubprocessBackend
        from nemo_jobs.domain.retention import retention_of
        from nemo_jobs.engine.engine import Engine
        from nemo_jobs.engine.options import Options

        host = host_id()
        backend = SubprocessBackend(self._data_dir, host_id=host, clock=self._clock)
        self._backends["subprocess"] = backend
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.join, KEEPER_SECONDS)
        await backend.start()
        options = Options(
            host=host,
            owner=f"{host}:{self._data_dir}:{self._slot.number}",
            token=secrets.token_hex(8),
            platform=self._platform(),
            log_limit=self._settings.jobs.log_limit_bytes,
            task_tokens=self._settings.auth.enabled,
            cores=os.cpu_count() or 1,
            retention_days=self._settings.jobs.retention_days,
            retention=retention_of(self._settings.jobs.storage, profiles),
            objects=self._objects,
            secrets=self._secrets,
            unusable=lambda: unusable_profiles(profiles),
        )
        self._engine = Engine(self._db, profiles, self._backends, self._clock, options)
        await self._engine.start()

    def _platform(self) -> "PlatformInfo":
        from nemo_jobs.backends.api import PlatformInfo

        platform, service = self._settings.platform, self._settings.service
        base = platform.given_base_url or self._address()
        if self._role == "all":
            exposure.tell_elsewhere(platform.given_base_url, self._listener.getsockname()[1])
        found = platform.service_discovery
        base = found.get("platform") or found.get("base") or base
        urls = {name: found.get(name) or base for name in ("files", "secrets", "jobs", "auth", "models")}
        return PlatformInfo({"base": base, **urls}, service.log_level, service.log_format)

    def _address(self) -> str:
        host, port = self._listener.getsockname()[:2]
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - read here, not bound
        shown = anywhere.get(host, f"[{host}]" if ":" in host else host)
        return f"http://{shown}:{port}"

    async def _serve(self, profiles: "ProfileSet") -> None:
        from nemo_jobs import __version__
        from nemo_jobs.domain.retention import retention_of
        from nemo_jobs.http.app import create_app
        from nemo_jobs.http.parts import Parts
        from nemo_jobs.serving import Server, make_config
        from nemo_jobs.tracing import open_tracing

        parts = Parts(
            *(self._db, self._settings, profiles, self._clock, self._engine, __version__),
            objects=self._objects,
            secrets=self._secrets,
            retention=retention_of(self._settings.jobs.storage, profiles),
        )
        app = create_app(parts)
        await app.start()
        tracing = open_tracing(self._db, __version__, os.environ)
        traces = asyncio.create_task(tracing.run()) if tracing else None
        server = Server(make_config(app), on_ready=self._say_ready)
        serving = asyncio.create_task(server.run_on(self._listener))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        app.stop()
        server.should_exit = True
        await serving
        if traces is not None:
            traces.cancel()
            await asyncio.gather(traces, return_exceptions=True)

    def _say_ready(self) -> None:
        print(f"nemo-jobs is ready at {self._address()} (data in {self._data_dir})", flush=True)

    async def _shut_down(self) -> None:
        if self._engine is not None:
            await self._engine.stop()
            self._say_stopped(self._engine.running_on_host())
        for backend in self._backends.values():
            await backend.aclose()
        if self._secrets is not None:
            await self._secrets.aclose()
        await self._db.aclose()

    def _say_stopped(self, running: int) -> None:
        if running:
            noun, them = ("job keeps", "it") if running == 1 else ("jobs keep", "them")
            text = f"nemo-jobs stopped; {running} host {noun} running; the next start adopts {them}"
            print(text, flush=True)
        else:
            print("nemo-jobs stopped; no host jobs are running", flush=True)

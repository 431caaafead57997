"""Composition: one process that serves the API, runs the engine, or both."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_jobs import exposure
from nemo_jobs.clock import SystemClock
from nemo_jobs.containers import Containers
from nemo_jobs.host import Slot, host_id, prepare_data_dir, unusable_profiles
from nemo_jobs.preflight import (
    NEEDS_POSTGRESQL,
    Role,
    ServiceOptions,
    StartError,
    early_address,
    listen,
    load,
    may_be_postgresql,
    open_database,
    refuse_second,
)

if TYPE_CHECKING:
    from nemo_jobs.backends.api import Backend, PlatformInfo
    from nemo_jobs.config import LoadedSettings, Settings
    from nemo_jobs.domain.profiles import ProfileSet
    from nemo_jobs.domain.retention import Retention
    from nemo_jobs.engine.engine import Engine
    from nemo_jobs.files.objects import ObjectStore
    from nemo_jobs.store.db import Database
    from nemo_jobs.vault.secrets import Secrets

log = logging.getLogger("nemo_jobs")

#: How long the start of the keeper is waited for before it is tried again, in seconds.
KEEPER_SECONDS = 15.0
#: The whole of a shutdown takes at most this long, in seconds.
SHUTDOWN_SECONDS = 4.5


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
    if options.role != "all" and not may_be_postgresql(options, environ):
        raise StartError(NEEDS_POSTGRESQL.format(role=options.role))
    listener: socket.socket | None = None
    if (address := early_address(options, environ)) is not None:
        listener = stack.enter_context(listen(*address))
    loaded = load(options, environ)
    settings = loaded.settings
    url = settings.database.url or ""
    sqlite = not url or url.startswith("sqlite")
    if options.role != "all" and sqlite:
        raise StartError(NEEDS_POSTGRESQL.format(role=options.role))
    host = options.host or settings.service.host
    if (why := exposure.problem(host, settings, options.insecure_no_auth)) is not None:
        raise StartError(why)
    if listener is None:
        port = settings.service.port if options.port is None else options.port
        listener = stack.enter_context(listen(host, port))
    from nemo_jobs.config import default_data_dir

    try:
        data_dir = prepare_data_dir(options.data_dir or default_data_dir(environ))
        slot = stack.enter_context(contextlib.closing(Slot(data_dir)))
    except OSError as error:
        raise StartError(f"data directory: {error}") from error
    url = url or f"sqlite:///{data_dir}/nemo-jobs.db"
    if sqlite:
        refuse_second(Path(url.removeprefix("sqlite:///")))
    from nemo_jobs.logs_setup import set_up_logging

    set_up_logging(settings.service.log_level, settings.service.log_format)
    _tell(loaded)
    keeper = _begin_keeper(data_dir) if options.role != "api" else None
    db = open_database(url)
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


def _tell(loaded: "LoadedSettings") -> None:
    if loaded.source is not None:
        log.info("configuration read from %s", loaded.source)
    for warning in loaded.warnings:
        log.warning("configuration: %s", warning)


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
        self._containers = Containers(settings, data_dir, host_id(), self._clock, self._owner)
        self._watch: asyncio.Task[None] | None = None
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
            profiles = await self._profiles()
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

    async def _profiles(self) -> "ProfileSet":
        if self._role == "api":
            # Engines elsewhere run the work; whether theirs answers is told by the steps that wait.
            return self._containers.profiles(docker=True)
        await self._containers.look()
        profiles = self._containers.profiles()
        for (provider, profile), why in profiles.left_out.items():
            if (provider, profile) not in profiles.expected:
                log.warning("profile %s/%s is left out: %s", provider, profile, why)
        if profiles.expected:
            names = ", ".join("/".join(key) for key in sorted(profiles.expected))
            log.warning("%s; %s can be used when one answers", self._containers.problem, names)
        for problem in (*unusable_profiles(profiles).values(), *self._warnings(profiles)):
            log.warning("%s", problem)
        return profiles

    def _warnings(self, profiles: "ProfileSet") -> list[str]:
        return self._containers.warnings(profiles, self._listener.getsockname()[0])

    async def _owner(self, proposed: str) -> str:
        from nemo_jobs.store.agreement import agreed

        if self._db.dialect == "sqlite":
            return proposed  # a copy of the data directory must not take over what belongs to the first
        return await self._db.write(agreed, "docker_owner", proposed)

    async def _start_engine(self, profiles: "ProfileSet") -> None:
        from nemo_jobs.backends import api
        from nemo_jobs.domain.model import Unavailable

        try:
            await self._make_engine(profiles)
        except (Unavailable, api.Unavailable) as error:
            raise StartError(f"the engine can't start: {error}") from error

    async def _make_engine(self, profiles: "ProfileSet") -> None:
        from nemo_jobs.backends.subprocess import SubprocessBackend
        from nemo_jobs.engine.engine import Engine
        from nemo_jobs.engine.options import Options
        from nemo_jobs.gpu_pool import host_pool

        host = host_id()
        backend = SubprocessBackend(self._data_dir, host_id=host, clock=self._clock)
        self._backends["subprocess"] = backend
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.join, KEEPER_SECONDS)
        await backend.start()
        if (containers := self._containers.backend) is not None:
            self._backends[containers.name] = containers
        options = Options(
            host=host,
            owner=f"{host}:{self._data_dir}:{self._slot.number}",
            token=secrets.token_hex(8),
            platform=self._platform(),
            log_limit=self._settings.jobs.log_limit_bytes,
            task_tokens=self._settings.auth.enabled,
            cores=os.cpu_count() or 1,
            retention_days=self._settings.jobs.retention_days,
            retention=self._retention(),
            objects=self._objects,
            secrets=self._secrets,
            unusable=lambda: unusable_profiles(profiles),
            pool=host_pool(self._settings, host, self._clock),
        )
        self._engine = Engine(self._db, profiles, self._backends, self._clock, options)
        await self._engine.start()
        if profiles.expected:
            self._watch = asyncio.create_task(self._containers.watch(self._engine_came(profiles)))

    def _engine_came(self, profiles: "ProfileSet") -> "Callable[[Backend], Awaitable[None]]":
        async def came(backend: "Backend") -> None:
            assert self._engine is not None  # noqa: S101 - it is watched for since there is one
            self._backends[backend.name] = backend
            await self._engine.add(backend)
            profiles.become(self._containers.profiles())
            for problem in self._warnings(profiles):
                log.warning("%s", problem)

        return came

    def _retention(self) -> "Retention":
        from nemo_jobs.domain.retention import retention_of

        # Of all profiles that may ever be in force here.
        return retention_of(self._settings.jobs.storage, self._containers.profiles(docker=True))

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
        from nemo_jobs.http.app import create_app
        from nemo_jobs.http.parts import Parts
        from nemo_jobs.serving import Server, make_config
        from nemo_jobs.tracing import open_tracing

        parts = Parts(
            *(self._db, self._settings, profiles, self._clock, self._engine, __version__),
            objects=self._objects,
            secrets=self._secrets,
            retention=self._retention(),
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
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._engine is not None:
            await self._engine.stop()
            self._say_stopped(self._engine.running_on_host())
        for backend in self._backends.values():
            await backend.aclose()
        await self._containers.aclose()
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

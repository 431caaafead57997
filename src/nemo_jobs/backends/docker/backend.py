"""Work as containers of a Docker engine, which keeps them and their output while the service is away."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nemo_jobs.backends.api import (
    Capabilities,
    Handle,
    Health,
    Json,
    Left,
    LeftFile,
    Leftover,
    LogPiece,
    Observation,
    Plan,
    Preparing,
    Rejected,
    Unavailable,
)
from nemo_jobs.backends.docker import facts, labels, spec, sweep, volumes
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.cgroups import Cgroups
from nemo_jobs.backends.docker.creator import Creator
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.handles import NAME, Engine, handle_of
from nemo_jobs.backends.docker.helpers import Helpers
from nemo_jobs.backends.docker.logs import logs
from nemo_jobs.backends.docker.observe import Watcher
from nemo_jobs.backends.docker.pull import PullFailed, PullLimits, Pulls
from nemo_jobs.backends.docker.registry import parse
from nemo_jobs.backends.docker.results import Results
from nemo_jobs.backends.docker.starting import Start, Starting, Tools
from nemo_jobs.backends.docker.stopping import Stops
from nemo_jobs.backends.docker.storage import JobStorage, Place, subpath_mount
from nemo_jobs.backends.docker.table import Seen
from nemo_jobs.backends.docker.usage import Usages, with_usage
from nemo_jobs.backends.docker.users import Users
from nemo_jobs.domain.clock import Clock

log = logging.getLogger(__name__)

_SECONDS = 5.0  # for an engine to say that it is there
#: How long `find` waits for the end of a start that was broken off, in seconds.
FIND_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a backend is told of its surroundings."""

    data_dir: Path
    host_id: str
    owner: str
    fallback_image: str = ""
    loopback: str | None = None
    pulls: PullLimits = field(default_factory=PullLimits)
    #: Write into volumes of this host's engine without the engine's help, where that is possible.
    direct: bool = True


class DockerBackend:
    """The containers of one engine. Handles name the engine and the container."""

    def __init__(self, engine: DockerEngine, options: Options, clock: Clock) -> None:
        self.name = NAME
        self._engine, self._options, self._clock = engine, options, clock
        self._creator = Creator(options.host_id)
        self._watcher = Watcher(engine, clock, lambda key: self._stops.asked(key))
        self._pulls = Pulls(engine, limits=options.pulls, hint=self._watcher.hint)
        self._stops = Stops(engine, self._watcher)
        self._usages = Usages(engine, Cgroups() if engine.local else None)
        self._helpers = Helpers(engine, options.owner, self._fetch)
        self._here = Engine("", str(engine.address))
        self._results = Results(engine, options.data_dir, self._creator)
        self._tools: Tools | None = None
        self._storage: JobStorage | None = None
        self._stages: dict[str, str] = {}
        self._starting: dict[str, Starting] = {}
        self._version = ""
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            gpus=True,
            images=True,
            isolation=True,
            persistent_storage=True,
            resumes=True,
            on_host=self._engine.local,
        )

    @property
    def machine(self) -> tuple[str, str]:
        return self._here.id, self._here.name or self._here.address

    async def start(self) -> None:
        try:
            info, version = await self._engine.info(), await self._engine.version()
            api = await self._engine.api()
        except (EngineAway, EngineError) as error:
            raise Unavailable(str(error)) from error
        self._version = str(version.get("Version", ""))
        host = self._options.host_id if self._engine.local else ""
        self._here = Engine(
            str(info.get("ID", "")), str(self._engine.address), str(info.get("Name", "")), host
        )
        site = spec.Site(
            owner=self._options.owner,
            creator=self._creator.mark,
            fallback_image=self._options.fallback_image,
            loopback=self._options.loopback,
            reaches_host=self._engine.local,
            cpus=int(info.get("NCPU") or 0),
        )
        root = await asyncio.to_thread(self._folder_root, info)
        self._storage = JobStorage(self._engine, self._helpers, self._options.owner, api)
        self._storage.folder_root = self._results.folder_root = root
        await self._results.start()
        self._tools = Tools(
            self._engine,
            self._watcher.table,
            site,
            self._creator,
            Users(self._engine),
            self._storage,
            folder_root=root,
            stages=self._stages,
        )
        self._watcher.start()
        await self._watcher.ready()

    def _folder_root(self, info: Json) -> str | None:
        return volumes.folder_root(info, local=self._engine.local) if self._options.direct else None

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._creator.close()
        tasks = [starting.task for starting in self._starting.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stops.aclose()
        await self._pulls.aclose()
        await self._usages.aclose()
        await self._watcher.aclose()
        await self._results.aclose()
        await self._engine.aclose()

    async def probe(self) -> Health:
        try:
            await self._engine.ping(_SECONDS)
        except (EngineAway, EngineError) as error:
            return Health(False, str(error))
        if self._tools is None:
            return Health(False, "the Docker engine was not asked what it is yet")
        return Health(True, version=f"Docker {self._version}")

    def render(self, plan: Plan) -> Json:
        site = self._tools.site if self._tools is not None else spec.Site(self._options.owner)
        mount, place, path = None, JobStorage.place(plan), spec.storage_path(plan)
        if place is not None and path is not None:
            mount = subpath_mount(place, path)
        settings: spec.DockerSettings = plan.config
        launched = spec.ImageFacts() if os.path.isfile(settings.launcher_tool_path) else None
        body = spec.container_body(plan, site, job_storage=mount, launched=launched)
        return {"name": plan.key, **spec.masked(body, plan)}

    async def prepare(self, plan: Plan) -> Preparing | None:
        tools = self._ready()
        image = spec.image_of(plan, tools.site)
        try:
            parse(image)  # what isn't the name of an image may lead elsewhere
            with contextlib.suppress(EngineError):  # the pull tells what is wrong
                if (found := await self._engine.image(image)) is not None:
                    tools.images.note(plan.key, found)
                    return None
            pulling = await self._pulls.want(image, plan.key)
        except ValueError as error:
            raise Rejected(str(error)) from error
        except PullFailed as error:
            raise Rejected(str(error)) from error
        except EngineAway as error:
            raise Unavailable(str(error)) from error
        except EngineError as error:
            raise Unavailable(f"the engine can't tell whether it has image {image}: {error}") from error
        return None if pulling is None else Preparing(pulling.message, "image_pull")

    def stage(self, key: str) -> str:
        return self._stages.get(key, "")

    async def submit(self, plan: Plan) -> Handle:
        self._ready()
        starting = self._starting.get(plan.key)
        if starting is None:
            starting = self._starting[plan.key] = Starting(Start(self._ready(), plan), self._submit)
            starting.task.add_done_callback(lambda done: self._started(plan.key, done))
        return await starting.wait()

    async def _submit(self, start: Start) -> Handle:
        await self._watcher.ready()
        made = await start.run()
        self._usages.began(made.container, start.plan.key)
        start.tools.storage.settle(start.plan)
        self._watcher.table.began(made.container, made.name, made.marks, made.image, self._clock.now())
        return handle_of(self._here, made.container, made.name, made.marks, made.image)

    def _started(self, key: str, task: asyncio.Task[Handle]) -> None:
        self._starting.pop(key, None)
        if not task.cancelled():
            task.exception()

    async def find(self, plan: Plan) -> Handle | None:
        if (starting := self._starting.get(plan.key)) is not None:
            await starting.settled(FIND_SECONDS)
        await self._watcher.ready()
        for seen in self._watcher.table.here():
            if not _is_task(seen) or seen.run.key != plan.key:
                continue
            if await self._was_started(seen):
                return self._handle(seen)
            await self._take_back(seen)
        return None

    async def _was_started(self, seen: Seen) -> bool:
        """Whether it was started for the run that it is there for."""
        if seen.run.since and not seen.certain:
            seen = await self._watcher.look(seen.id) or seen
        return seen.state != "created" and seen.started_at >= seen.run.since

    async def _take_back(self, seen: Seen) -> None:
        """Of a start that was cut off nothing runs: the next one begins anew. Raises Unavailable while
        the service that created the container may be about to start it."""
        if self._creator.lives(seen.marks.get(labels.CREATOR, "")):
            raise Unavailable("another service is about to start its container", retry_after=1.0)
        if not seen.run.since:  # else it is the container of the run before
            await self._remove(self._handle(seen))

    async def observe(self, handles: Sequence[Handle]) -> dict[str, Observation]:
        if not handles:
            return {}
        await self._watcher.ready()
        pairs = [(handle, handle.data) for handle in handles]
        here = [handle for handle, data in pairs if self._here.has(data)]
        seen = dict(zip((h.key for h in here), await asyncio.gather(*map(self._look, here)), strict=True))
        return {handle.key: self._observation(handle, seen.get(handle.key)) for handle in handles}

    async def _look(self, handle: Handle) -> Seen | None:
        container = handle.data["container"]
        seen = self._watcher.table.get(container)
        if seen is None or not (seen.certain or seen.gone):
            seen = await self._watcher.look(container)
        if seen is None or not seen.ended or seen.code == 0 or seen.stack is not None:
            return seen
        if not self._stops.asked(seen.run.key):
            seen.stack = await self._last_words(seen)
        return seen

    def _observation(self, handle: Handle, seen: Seen | None) -> Observation:
        now = self._clock.now()
        if not self._here.has(handle.data):
            from nemo_jobs.backends.api import Phase

            return Observation(Phase.WAITING, (), "host_unreachable", self._here.elsewhere(handle.data), now)
        container = handle.data["container"]
        if seen is not None and seen.state == "running" and seen.run.key == handle.key:
            self._usages.began(container, handle.key)
        asked = facts.Asked(self._stops.asked(handle.key), self._watcher.gaps)
        found = facts.observation(handle, seen, asked, now)
        return with_usage(found, self._usages.of(container, handle.key))

    async def _last_words(self, seen: Seen) -> str:
        from nemo_jobs.backends.docker.stream import Demultiplexer

        since = f"{seen.run.since / 1e6:.6f}" if seen.run.since else "0"
        frames, text = Demultiplexer(), b""
        try:
            async with self._engine.logs(
                seen.id, since=since, follow=False, timestamps=False, tail=str(facts.STACK_LINES)
            ) as pieces:
                async for piece in pieces:
                    text = (text + b"".join(data for _, data in frames.feed(piece)))[-facts.MOST_READ :]
        except EngineError:
            return ""  # it is being removed
        except EngineAway as error:
            raise Unavailable(str(error)) from error
        return facts.last_words(text)

    async def stop(self, handle: Handle, grace: float) -> None:
        if self._here.has(handle.data):
            await self._stops.stop(handle, grace)

    async def remove(self, handle: Handle, *, wipe_storage: bool = False) -> None:
        data = handle.data
        if not self._here.has(data):
            raise Unavailable(self._here.elsewhere(data), retry_after=60.0)
        await self._watcher.ready()
        seen = self._watcher.table.get(data["container"]) or await self._watcher.look(data["container"])
        if seen is None or seen.gone or seen.run.key == handle.key:
            await self._remove(handle)
        stored = data.get("storage")
        if wipe_storage and stored and self._storage is not None:
            place = Place(stored["volume"], data["workspace"], data["job"])
            await self._storage.wipe(place, data["attempt"], stored["image"], data["image"])
        await self._results.forget(handle)
        self._stops.forget(handle.key)
        self._usages.forget(data["container"])
        self._watcher.hint(handle.key)

    async def _remove(self, handle: Handle) -> None:
        """The container and the volumes that are its own. Raises Unavailable."""
        data = handle.data
        try:
            await self._engine.remove(data["container"], force=True, volumes=True)
            self._watcher.table.forget(data["container"])
            for name in data["volumes"]:
                await self._engine.volume_remove(name)
        except EngineAway as error:
            raise Unavailable(str(error)) from error
        except EngineError as error:
            raise Unavailable(f"the engine can't remove {handle.key}: {error}") from error

    async def left(self, handle: Handle, most_bytes: int) -> Left | None:
        return await self._results.left(handle, most_bytes) if self._here.has(handle.data) else None

    def read_left(self, handle: Handle, file: LeftFile) -> AsyncIterator[bytes]:
        return self._results.read_left(handle, file)

    async def handles(self) -> AsyncIterator[Handle]:
        await self._watcher.ready()
        for seen in self._watcher.table.here():
            if not _is_task(seen) or seen.marks.get(labels.INSTANCE) != self._options.owner:
                continue
            if await self._was_started(seen):  # nothing runs that wasn't: its step is submitted again
                yield self._handle(seen)

    def belongings(self) -> AsyncIterator[Leftover]:
        return sweep.belongings(self._engine, self._options.owner)

    async def discard(self, item: Leftover) -> None:
        await sweep.discard(self._engine, item)

    def changes(self) -> AsyncIterator[str]:
        return self._watcher.changes()

    async def logs(self, handle: Handle, cursor: Json | None) -> AsyncIterator[LogPiece]:
        if not self._here.has(handle.data):
            raise Unavailable(self._here.elsewhere(handle.data), retry_after=60.0)
        await self._watcher.ready()
        container, since = handle.data["container"], handle.data["since"]
        if self._watcher.table.get(container) is None:
            await self._watcher.look(container)
        task = handle.data["task"]

        async def doubtful() -> bool:
            seen = self._watcher.table.get(container)
            if seen is not None and not (seen.certain or seen.gone):
                seen = await self._watcher.look(container)  # of a list it isn't known when it ended
            return seen is not None and facts.in_a_gap(seen.ended_at, self._watcher.gaps)

        try:
            with self._watcher.end_of(container, since) as ended:
                pieces = logs(self._engine, container, task, cursor, ended, since=since, doubtful=doubtful)
                async with contextlib.aclosing(pieces):
                    async for piece in pieces:
                        yield piece
        except EngineAway as error:
            raise Unavailable(str(error)) from error
        except EngineError as error:
            raise Unavailable(f"the output of {handle.key} can't be read: {error}") from error

    def _handle(self, seen: Seen) -> Handle:
        return handle_of(self._here, seen.id, seen.name, seen.marks, seen.image)

    def _ready(self) -> Tools:
        if self._tools is None:
            raise Unavailable("the Docker engine has not answered yet")
        return self._tools

    async def _fetch(self, image: str) -> None:
        """Get the image of a helper. Raises Unavailable while that lasts, and when it can't be had."""
        try:
            pulling = await self._pulls.want(image, "")
        except PullFailed as error:
            raise Unavailable(str(error), retry_after=60.0) from error
        if pulling is not None:
            raise Unavailable(pulling.message, retry_after=2.0)


def _is_task(seen: Seen) -> bool:
    return labels.ours(seen.marks) and seen.marks.get(labels.TYPE) == labels.JOB_TYPE

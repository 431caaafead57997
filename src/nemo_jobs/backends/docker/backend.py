"""Work as containers of a Docker engine, which keeps them and their output while the service is away."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from nemo_jobs.backends.api import (
    Capabilities,
    Handle,
    Health,
    Json,
    Plan,
    Preparing,
    Rejected,
    Unavailable,
)
from nemo_jobs.backends.docker import labels, spec, volumes
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.containers import Containers, Options
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.handles import Engine, handle_of
from nemo_jobs.backends.docker.pull import PullFailed
from nemo_jobs.backends.docker.registry import parse
from nemo_jobs.backends.docker.starting import Start, Starting, Tools
from nemo_jobs.backends.docker.storage import JobStorage, Place, subpath_mount
from nemo_jobs.backends.docker.table import Seen
from nemo_jobs.backends.docker.users import Users
from nemo_jobs.domain.clock import Clock

__all__ = ["DockerBackend", "Options"]

_SECONDS = 5.0  # for an engine to say that it is there
#: How long `find` waits for the end of a start that was broken off, in seconds.
FIND_SECONDS = 10.0


class DockerBackend(Containers):
    """Starts, stops and removes containers. Handles name the engine and the container."""

    def __init__(self, engine: DockerEngine, options: Options, clock: Clock) -> None:
        super().__init__(engine, options, clock)
        self._tools: Tools | None = None
        self._storage: JobStorage | None = None
        self._stages: dict[str, str] = {}
        self._version = ""

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

    async def handles(self) -> AsyncIterator[Handle]:
        await self._watcher.ready()
        for seen in self._watcher.table.here():
            if not _is_task(seen) or seen.marks.get(labels.INSTANCE) != self._options.owner:
                continue
            if await self._was_started(seen):  # nothing runs that wasn't: its step is submitted again
                yield self._handle(seen)

    def _handle(self, seen: Seen) -> Handle:
        return handle_of(self._here, seen.id, seen.name, seen.marks, seen.image)

    def _ready(self) -> Tools:
        if self._tools is None:
            raise Unavailable("the Docker engine has not answered yet")
        return self._tools


def _is_task(seen: Seen) -> bool:
    return labels.ours(seen.marks) and seen.marks.get(labels.TYPE) == labels.JOB_TYPE

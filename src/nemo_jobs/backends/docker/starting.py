"""From a plan to a running container: created, filled, started, once, also after a crash in between."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nemo_jobs.backends.api import BackendError, Handle, Json, Plan, Rejected, Unavailable
from nemo_jobs.backends.docker import labels, launcher, reasons, spec, volumes
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.creator import Creator
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.registry import parse
from nemo_jobs.backends.docker.storage import JobStorage
from nemo_jobs.backends.docker.table import Table, micros
from nemo_jobs.backends.docker.users import Users

log = logging.getLogger(__name__)

#: Starts at a time, and tries of one.
STARTS, TRIES = 10, 3
#: Seconds between the tries.
RETRY_SECONDS = 5.0
#: How long another service may take between creating a container and starting it, in seconds.
OTHERS_SECONDS = 20.0
_LOOK_SECONDS = 0.05
#: How long what was seen of an image is believed, in seconds, and of how many runs it is remembered.
IMAGE_SECONDS, _MOST_IMAGES = 2.0, 1000


@dataclass(slots=True)
class Started:
    """A container that runs, or ran, for a plan."""

    container: str
    name: str
    marks: Mapping[str, str]  # its labels
    image: str = ""


@dataclass(slots=True)
class Tools:
    """What a start needs of its backend."""

    engine: DockerEngine
    table: Table
    site: spec.Site
    creator: Creator
    users: Users
    storage: JobStorage
    folder_root: str | None = None
    images: "Images" = field(default_factory=lambda: Images())
    stages: dict[str, str] = field(default_factory=dict)
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STARTS))


class Images:
    """What was seen of the images of runs that are about to be started, for a few seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, Json]] = {}

    def note(self, key: str, image: Json) -> None:
        self._seen.pop(key, None)
        while len(self._seen) >= _MOST_IMAGES:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = asyncio.get_running_loop().time(), image

    def take(self, key: str) -> Json | None:
        at, image = self._seen.pop(key, (0.0, None))
        return image if asyncio.get_running_loop().time() - at < IMAGE_SECONDS else None


async def _given(image: Json) -> Json:
    return image


class Start:
    """The start of one plan."""

    def __init__(self, tools: Tools, plan: Plan) -> None:
        self.tools, self.plan, self._engine = tools, plan, tools.engine
        self._image = spec.image_of(plan, tools.site)
        self._phase = "creating"
        self._note = ""  # why a run that should go on begins anew
        self._replaced: Started | None = None  # the container that it can't go on in
        #: Whether nobody waits for the start any more: then nothing is started that isn't yet.
        self.unwanted = False

    async def run(self) -> Started:
        """Raises Rejected, when nothing of it is left, and Unavailable."""
        async with self._place():
            try:
                resumed = await self._resumed()
                if resumed is not None:
                    return resumed
                made = await self._new()
                await self._drop_replaced()
                return made
            except EngineAway as error:
                raise Unavailable(str(error)) from error
            except EngineError as error:
                raise reasons.explained(error, self._phase, self._image) from error

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        stages, key = self.tools.stages, self.plan.key
        stages[key] = f"waits for one of {STARTS} places to be started"
        try:
            async with self.tools.places:
                self._tell("creating")
                yield
        finally:
            stages.pop(key, None)

    def _tell(self, phase: str) -> None:
        self._phase = phase
        self.tools.stages[self.plan.key] = f"{phase} a container of image {self._image}"

    # A container of its own

    async def _new(self) -> Started:
        found = await self._known()
        if found is not None:
            return found
        spec.container_body(self.plan, self.tools.site)  # what can't be is refused before anything is made
        try:
            parse(self._image)
        except ValueError as error:
            raise Rejected(str(error)) from error
        await self._check_volumes()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OTHERS_SECONDS
        while loop.time() < deadline:
            mount = await self.tools.storage.prepare(self.plan, self._image)
            launched = await launcher.wanted(self.plan, self._engine, self._image)
            body = spec.container_body(self.plan, self.tools.site, job_storage=mount, launched=launched)
            if self._note:
                body["Labels"][labels.NOTE] = self._note
            try:
                return await self._create(body)
            except EngineError as error:
                if not error.conflict:
                    await self._undo(None)
                    raise
            answer = await self._engine.inspect(self.plan.key)
            found = await self._adopt(answer) if answer is not None else None
            if found is not None:
                return found
            await asyncio.sleep(_LOOK_SECONDS)  # its name is taken before it can be asked for
        raise Unavailable(f"the name {self.plan.key} is taken, and the engine shows no such container")

    async def _create(self, body: Json) -> Started:
        known = self.tools.images.take(self.plan.key)
        image = asyncio.create_task(self._engine.image(self._image) if known is None else _given(known))
        try:
            container = await self._engine.create(self.plan.key, body)
            made = Started(container, self.plan.key, body["Labels"], body["Image"])
            await self._finish(made, await image)
        finally:
            image.cancel()
        return made

    async def _finish(self, made: Started, image: Json | None) -> None:
        """Fill a created container and start it; what can't be started is taken away."""
        try:
            await self._fill(made, image or {})
            self._tell("starting")
            await self._start(made.container)
        except EngineError as error:
            why = reasons.explained(error, self._phase, self._image)
            if isinstance(why, Rejected):
                await self._undo(made.container)
            raise why from error
        except Rejected:
            await self._undo(made.container)
            raise

    async def _fill(self, made: Started, image: Json) -> None:
        user = spec.ImageFacts.of(image).user
        owner = await self.tools.users.owner(str(image.get("Id", "")), user, made.container)
        folders = volumes.task_folders(self.plan, owner)
        if (shared := self.tools.storage.folder(self.plan, owner)) is not None:
            folders.append(shared)
        program = await launcher.files(self.plan)
        root = self.tools.folder_root
        if root is not None and await volumes.fill_here(root, folders):
            if program:
                await self._engine.put_archive(made.container, "/", volumes.tar_of((), program))
            return
        await self.tools.storage.write_token(self.plan, owner, self._image)
        sent = [folder for folder in folders if folder.path != spec.TOKEN_DIR]
        await self._engine.put_archive(made.container, "/", volumes.tar_of(sent, program))

    async def _start(self, container: str) -> None:
        for attempt in range(1, TRIES + 1):
            if self.unwanted:
                raise Rejected("its start was broken off")
            try:
                await self._engine.start(container)
                return
            except EngineError as error:
                if attempt == TRIES or not reasons.fleeting(error):
                    raise
                log.warning("start of %s failed and is tried again: %s", self.plan.key, error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _undo(self, container: str | None) -> None:
        """Take away what a start that failed has left."""
        names = labels.task_volumes(self.plan.workspace, self.plan.job, self.plan.task)
        await self._take_away(container, names)
        try:
            await self.tools.storage.undo(self.plan)
        except BackendError as error:
            log.warning("the storage that %s has made stays for now: %s", self.plan.key, error)

    async def _take_away(self, container: str | None, names: labels.TaskVolumes) -> None:
        """Remove a container and its volumes. What can't be removed now, a sweep finds."""
        try:
            if container is not None:
                await self._engine.remove(container, force=True, volumes=True)
            for name in names.all:
                await self._engine.volume_remove(name)
        except (EngineError, EngineAway) as error:
            log.warning("what %s has left is removed later: %s", self.plan.key, error)

    async def _check_volumes(self) -> None:
        """The engine would make volumes that don't exist, empty."""
        settings: spec.DockerSettings = self.plan.config
        for mount in settings.storage.additional_volume_mounts:
            if mount.kind != "volume" or mount.allow_create_volume:
                continue
            if await self._engine.volume_inspect(mount.volume_name) is None:
                raise Rejected(
                    f"the engine has no volume {mount.volume_name}, which profile {self.plan.profile} "
                    f"mounts at {mount.mount_path}; create it, or set allow_create_volume"
                )

    # A container that is there already

    async def _known(self) -> Started | None:
        """The run's container under a name that somebody else gave it."""
        for seen in self.tools.table.here():
            if seen.marks.get(labels.KEY) == self.plan.key and seen.marks.get(labels.TYPE) == labels.JOB_TYPE:
                answer = await self._engine.inspect(seen.id)
                return None if answer is None else await self._adopt(answer)
        return None

    async def _adopt(self, answer: Json) -> Started | None:
        """A container of this run that was started. One that wasn't, and by its creator won't be, is
        taken away: it may have been made for other devices."""
        marks = (answer.get("Config") or {}).get("Labels") or {}
        if not labels.ours(marks) or marks[labels.KEY] != self.plan.key:
            raise Rejected(
                f"a container that isn't of this job has the name {self.plan.key} already; "
                "rename or remove it, and run the job again"
            )
        made = Started(
            answer["Id"], answer["Name"].removeprefix("/"), marks, answer["Config"].get("Image", "")
        )
        if not _never_started(answer) or await self._started_elsewhere(made, marks):
            return made
        await self._take_away(made.container, labels.task_volumes(*_names_of(marks)))
        return None

    async def _started_elsewhere(self, made: Started, marks: Mapping[str, str]) -> bool:
        """Whether the service that created it has started it by now; False when it won't any more."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OTHERS_SECONDS
        while self.tools.creator.lives(marks.get(labels.CREATOR, "")) and loop.time() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
            answer = await self._engine.inspect(made.container)
            if answer is None:
                raise Unavailable("another service took back the start of this run", retry_after=0.5)
            if not _never_started(answer):
                return True
        return False

    # The container of the run before

    async def _resumed(self) -> Started | None:
        """The paused container started again; None when there is none that fits."""
        before = self.plan.resumes
        answer = await self._engine.inspect(str(before.data["container"])) if before is not None else None
        if before is None:
            return None
        if answer is None:
            self._note = "it begins anew, since the container of the run before is gone"
            return None
        marks = (answer.get("Config") or {}).get("Labels") or {}
        made = Started(
            answer["Id"], answer["Name"].removeprefix("/"), marks, answer["Config"].get("Image", "")
        )
        run = labels.run_of(made.name, marks)
        if run.key == self.plan.key:  # taken up after a crash
            if micros(answer["State"]["StartedAt"]) < run.since:
                await self._start_again(made)
            return made
        if answer["State"]["Status"] not in ("exited", "created", "dead"):
            raise Unavailable("the run before has not ended yet", retry_after=0.5)
        if _devices(answer) != list(self.plan.devices):
            self._note = "it begins anew, since it has other GPUs than the run before"
            self._replaced = made
            return None
        # All that the run before wrote is older than this, all that this one writes is younger.
        now = micros((await self._engine.info()).get("SystemTime"))
        made = replace(made, name=labels.name_of(labels.Run(self.plan.key, now)))
        await self._engine.rename(made.container, made.name)
        await self._start_again(made)
        return made

    async def _drop_replaced(self) -> None:
        if (old := self._replaced) is not None:
            await self._take_away(old.container, labels.task_volumes(*_names_of(old.marks)))

    async def _start_again(self, made: Started) -> None:
        self._tell("starting")
        try:
            await self._refresh_token(made)
            await self._start(made.container)
        except EngineError as error:
            raise reasons.explained(error, self._phase, self._image) from error

    async def _refresh_token(self, made: Started) -> None:
        if not self.plan.token:
            return
        image = await self._engine.image(made.image) or {}
        user = spec.ImageFacts.of(image).user
        owner = await self.tools.users.owner(str(image.get("Id", "")), user, made.container)
        plan = replace(self.plan, task=made.marks[labels.TASK])
        token = [folder for folder in volumes.task_folders(plan, owner) if folder.path == spec.TOKEN_DIR]
        root = self.tools.folder_root
        if root is None or not await volumes.fill_here(root, token):
            await self.tools.storage.write_token(plan, owner, made.image)


class Starting:
    """A start under way, for all who want it; broken off when none does any more."""

    def __init__(self, start: Start, run: Callable[[Start], Coroutine[Any, Any, Handle]]) -> None:
        self._start, self._waiting = start, 0
        self.task: asyncio.Task[Handle] = asyncio.create_task(run(start))

    async def wait(self) -> Handle:
        """Its handle. Raises Rejected and Unavailable."""
        self._waiting += 1
        self._start.unwanted = False
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.task.cancelled():
                raise Unavailable("the service stops") from None
            raise
        finally:
            self._waiting -= 1
            self._start.unwanted = self._waiting == 0

    async def settled(self, seconds: float) -> None:
        """Return when it is over, however it ended. Raises Unavailable when that takes longer."""
        await asyncio.wait({self.task}, timeout=seconds)
        if not self.task.done():
            raise Unavailable("its start is still being broken off", retry_after=1.0)


def _never_started(answer: Json) -> bool:
    return micros(answer["State"].get("StartedAt")) == 0


def _names_of(marks: Mapping[str, str]) -> tuple[str, str, str]:
    return marks.get(labels.WORKSPACE, ""), marks.get(labels.JOB, ""), marks.get(labels.TASK, "")


def _devices(answer: Json) -> list[str]:
    """The GPUs that a container was created with."""
    requests = (answer.get("HostConfig") or {}).get("DeviceRequests") or ()
    return [device for request in requests for device in request.get("DeviceIDs") or ()]

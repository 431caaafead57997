"""The storage that the steps of a job share: a folder of a volume, `jobs/<workspace>/<job>`.

The attempts of a job use the same folder, one after the other. A file beside it says which attempt has
it, so that the removal of an old attempt's storage never takes what a newer one took over, and a
newer one never finds what was to be removed.
"""

import asyncio
import logging
import weakref
from dataclasses import dataclass
from typing import Protocol

from nemo_jobs.backends.api import Json, Plan, Rejected, Unavailable
from nemo_jobs.backends.docker import labels, spec
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.helpers import Helpers
from nemo_jobs.backends.docker.storage_here import FolderHere
from nemo_jobs.backends.docker.volumes import File, Folder, Owner

log = logging.getLogger(__name__)

#: From this version on an engine mounts a folder of a volume by itself.
SUBPATH_API = (1, 45)
_BELIEVED = 10.0  # seconds for which what was seen of a volume counts


@dataclass(frozen=True, slots=True)
class Place:
    """The storage of one job."""

    volume: str
    workspace: str
    job: str

    @property
    def inside(self) -> str:
        return f"jobs/{self.workspace}/{self.job}"

    @property
    def note(self) -> str:
        """The file that says whose it is. No job's name begins with a dot."""
        return f"jobs/{self.workspace}/.{self.job}.attempt"


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a place: the folder, and the attempt that has it."""

    exists: bool = False
    attempt: str | None = None


class Disk(Protocol):
    """A way to the folders inside a volume. Raises EngineError and EngineAway."""

    async def look(self, place: Place) -> Found: ...

    async def claim(self, place: Place, attempt: str) -> None:
        """Make the folder if it isn't there, and write down whose it is."""
        ...

    async def wipe(self, place: Place) -> None:
        """Delete the folder, and what is written down."""
        ...


class JobStorage:
    """The storage of the jobs of one engine."""

    def __init__(self, engine: DockerEngine, helpers: Helpers, owner: str, api: tuple[int, int]) -> None:
        self._engine, self._helpers, self._owner, self._api = engine, helpers, owner, api
        self.folder_root: str | None = None
        self._new: dict[str, Place] = {}
        self._volumes: dict[str, tuple[float, Json]] = {}
        self._locks: weakref.WeakValueDictionary[Place, asyncio.Lock] = weakref.WeakValueDictionary()

    async def prepare(self, plan: Plan, image: str) -> Json | None:
        """Make the storage that a step asks for that of its attempt; how it is mounted, None when the
        step asks for none. `image` is one that the engine has. Raises Rejected when the step needs
        what isn't there."""
        place, path = self.place(plan), spec.storage_path(plan)
        if place is None:
            if path is not None:
                raise Rejected(
                    f"profile {plan.profile} offers no storage for jobs (storage.volume_name is empty)"
                )
            return None
        if path is None and not plan.earlier:
            return None
        marks = {**labels.OURS, labels.INSTANCE: self._owner}
        volume = await self._engine.volume_create(place.volume, labels=marks)
        async with self._lock(place):
            await self._claim(plan, place, self._disk(volume, image), path is not None)
        return None if path is None else self._mount(volume, place, path)

    async def _claim(self, plan: Plan, place: Place, disk: Disk, wanted: bool) -> None:
        found = await disk.look(place)
        if found.exists and found.attempt == plan.attempt_id:
            return
        earlier = {each.attempt_id for each in plan.earlier}
        if found.exists and found.attempt is not None and found.attempt not in earlier:
            log.info("the storage of job %s is that of an attempt whose time is up", plan.job)
            await disk.wipe(place)
            found = Found()
        if not found.exists and plan.needs_storage and wanted and _had_storage(plan, place):
            raise Rejected(
                f"the storage of the attempts before is not there any more (volume {place.volume}, "
                f"{place.inside}); run the job again from its first step"
            )
        if found.exists or wanted:
            await disk.claim(place, plan.attempt_id)
        if wanted and not found.exists:
            self._new[plan.key] = place

    def folder(self, plan: Plan, owner: Owner) -> Folder | None:
        """The folder of the storage, to be given to the task's user; None when it asks for none."""
        place, path = self.place(plan), spec.storage_path(plan)
        if place is None or path is None:
            return None
        return Folder(place.volume, path, owner, inside=place.inside)

    async def undo(self, plan: Plan) -> None:
        """Take away the storage if the failed start of this plan has made it."""
        if (place := self._new.pop(plan.key, None)) is not None:
            settings: spec.DockerSettings = plan.config
            await self.wipe(place, plan.attempt_id, settings.storage.volume_permissions_image, "")

    def settle(self, plan: Plan) -> None:
        """The start has succeeded: the storage stays."""
        self._new.pop(plan.key, None)

    async def wipe(self, place: Place, attempt: str, image: str, seen_image: str) -> None:
        """Delete the storage if it still is that of `attempt`. `image` has the program that deletes,
        `seen_image` is another one that the engine probably has. Raises Unavailable."""
        try:
            if (volume := await self._known(place.volume)) is None:
                return
            disk = self._disk(volume, seen_image or image, image)
            async with self._lock(place):
                found = await disk.look(place)
                if found.attempt == attempt:
                    await disk.wipe(place)
        except EngineAway as error:
            raise Unavailable(str(error)) from error
        except (EngineError, OSError) as error:
            raise Unavailable(f"the storage of job {place.job} can't be deleted: {error}", 30.0) from error

    async def _known(self, name: str) -> Json | None:
        """A volume. Each job asks when its storage goes, whether it had any or not."""
        now = asyncio.get_running_loop().time()
        at, volume = self._volumes.get(name, (0.0, None))
        if volume is None or now - at > _BELIEVED:
            volume = await self._engine.volume_inspect(name)
            self._volumes = {name: (now, volume)} if volume is not None else {}
        return volume

    async def write_token(self, plan: Plan, owner: Owner, image: str) -> None:
        """Write the task's token, if it has one, into its volume, which its container only reads."""
        if not plan.token:
            return
        name = labels.task_volumes(plan.workspace, plan.job, plan.task).token
        folder = Folder(name, "/token", owner, (File(spec.TOKEN_NAME, plan.token.encode()),))
        marks = labels.volume_labels(plan, self._owner)
        async with self._helpers.made("workload-token-write", plan, image, {name: "/token"}, marks) as helper:
            await helper.put([folder])

    @staticmethod
    def place(plan: Plan) -> Place | None:
        """Where the job's storage is on the plan's profile."""
        settings: spec.DockerSettings = plan.config
        name = settings.storage.volume_name
        return Place(name, plan.workspace, plan.job) if name else None

    def _disk(self, volume: Json, image: str, deleting: str = "") -> Disk:
        if self.folder_root is not None and _is_plain(volume):
            return FolderHere(f"{self.folder_root}/{volume['Name']}/_data")
        return self._helpers.disk(image, deleting)

    def _mount(self, volume: Json, place: Place, path: str) -> Json:
        if self._api >= SUBPATH_API:
            return subpath_mount(place, path)
        if not _is_plain(volume):
            raise Rejected(
                f"volume {place.volume} has a driver of its own or options, and this engine can't mount a "
                f"folder of it: that needs API {SUBPATH_API[0]}.{SUBPATH_API[1]}"
            )
        return {"Type": "bind", "Source": f"{volume['Mountpoint']}/{place.inside}", "Target": path}

    def _lock(self, place: Place) -> asyncio.Lock:
        lock = self._locks.get(place)
        if lock is None:
            lock = self._locks[place] = asyncio.Lock()
        return lock


def subpath_mount(place: Place, path: str) -> Json:
    """The folder as engines mount it that can."""
    options = {"NoCopy": True, "Subpath": place.inside}
    return {"Type": "volume", "Source": place.volume, "Target": path, "VolumeOptions": options}


def _is_plain(volume: Json) -> bool:
    """Whether its folder is where it says also while nobody mounts it."""
    return volume.get("Driver") == "local" and not volume.get("Options")


def _had_storage(plan: Plan, place: Place) -> bool:
    """Whether earlier work was known to use this very place."""
    for each in plan.earlier:
        stored = each.handle.data.get("storage") if each.handle is not None else None
        if stored and stored.get("used") and stored.get("volume") == place.volume:
            return True
    return False

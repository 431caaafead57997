"""What a run left as results, from its directory into the file store, before its end is recorded.

The bytes are stored first and become known in one transaction, so that a crash in between leaves
nothing half done: the next start does all of it again. What can't be taken is told and left where
it is; how the step ended never changes by it.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

from nemo_jobs.backends.api import (
    Backend,
    BackendError,
    Collects,
    Handle,
    Left,
    LeftChanged,
    LeftFile,
    LeftItem,
)
from nemo_jobs.domain.model import Json, NemoJobsError, Unavailable
from nemo_jobs.files.objects import ObjectStore, Stored, TooLarge, new_key
from nemo_jobs.store.results import Gathered

log = logging.getLogger(__name__)

#: How long all results of one step may take, in seconds.
GATHER_SECONDS = 3600.0
#: How long a file store that is away is waited for, in seconds.
OUTAGE_SECONDS = 60.0
#: What a dying process still writes is waited for so many seconds longer than it may take to die.
SETTLE_SECONDS = 3.0
_MOST_NOTES, _LONGEST_NOTE = 10, 300

#: Says how many files with how many bytes are about to be stored.
Tell = Callable[[int, int], Awaitable[None]]


class Records(Protocol):
    """What is written to the database about results."""

    async def announce(self, keys: Sequence[str]) -> None:
        """Objects that are about to be stored: they are removed unless they become a file's."""
        ...

    async def abandon(self, keys: Sequence[str]) -> None:
        """Those of these objects that did not become a file's can go."""
        ...

    async def gathered(self, step_id: str, left: Sequence[Gathered]) -> list[str] | None:
        """Make them results, all at once; their names, None when the lease is gone."""
        ...


@dataclass(slots=True)
class Gathering:
    """One run's results on their way."""

    backend: Collects
    handle: Handle
    objects: ObjectStore
    records: Records
    step_id: str
    most_bytes: int
    grace: float  # seconds in which processes that the work left behind may still write
    notes: list[str] = field(default_factory=list)
    _announced: list[str] = field(default_factory=list)
    #: By the item's name too: several names may stand for one file.
    _stored: dict[tuple[str, LeftFile], Stored] = field(default_factory=dict)
    _outage: float = field(default_factory=lambda: OUTAGE_SECONDS)
    _cut_off: bool = False

    async def run(self, tell: Tell) -> bool:
        """Store and record everything; False when the lease is gone. `notes` then say what is
        missing, and why."""
        names: list[str] | None = []
        named = 0
        try:
            left = await self.backend.left(self.handle, self.most_bytes)
            if left is None:
                return True
            found = self._whole(await self._settled(left, tell))
            if found:
                names = await self.records.gathered(self.step_id, found)
            if names:
                named = sum(len(item.files) for item in found)
        except BackendError as error:
            self.notes.append(f"results could not be looked for: {error}")
        except NemoJobsError as error:
            self.notes.append(f"results could not be recorded: {error}")
        if len(self._announced) > named:
            await self.records.abandon(self._announced)
        return names is not None

    def details(self) -> Json:
        """What the step's status details say about it; nothing when all went well."""
        if not self.notes:
            return {}
        shown = [note[:_LONGEST_NOTE] for note in self.notes[:_MOST_NOTES]]
        more = len(self.notes) - len(shown)
        return {"results_note": "; ".join(shown) + (f"; and {more} more" if more else "")}

    async def _settled(self, left: Left, tell: Tell) -> Left:
        """Store all files; those that change meanwhile again, until what may change them is dead."""
        deadline, pause = time.monotonic() + self.grace + SETTLE_SECONDS, 0.1
        files = [file for item in left.items for file in item.files]
        if files:
            await tell(len(files), sum(file.size for file in files))
        try:
            async with asyncio.timeout(GATHER_SECONDS):
                while True:
                    moved = await self._store(left)
                    if not moved:
                        break
                    if time.monotonic() >= deadline:
                        self.notes += [f"{name} was left out: {why}" for name, why in moved.items()]
                        break
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, 2.0)
                    before = {_shown(item, file) for item in left.items for file in item.files}
                    left = await self.backend.left(self.handle, self.most_bytes) or Left()
                    gone = before - {_shown(item, file) for item in left.items for file in item.files}
                    self.notes += [f"{name} was left out: it vanished" for name in sorted(gone)]
        except TimeoutError:
            self._cut_off = True
            self.notes.append(f"the rest was left out: storing took longer than {GATHER_SECONDS:g} s")
        except Unavailable as error:
            self._cut_off = True
            self.notes.append(f"the rest was left out: {error}")
        self.notes += left.notes
        return left

    async def _store(self, left: Left) -> dict[str, str]:
        """Store what is not stored yet; the names of what could not be read, and why."""
        moved = {}
        for item in left.items:
            new = {file: new_key() for file in item.files if (item.name, file) not in self._stored}
            if new:
                await self.records.announce(list(new.values()))
                self._announced += new.values()
            for file, key in new.items():
                try:
                    self._stored[item.name, file] = await self._put(file, key)
                except (LeftChanged, TooLarge) as error:
                    moved[_shown(item, file)] = str(error)
        return moved

    async def _put(self, file: LeftFile, key: str) -> Stored:
        delay = 0.5
        while True:
            try:
                pieces = self.backend.read_left(self.handle, file)
                return await self.objects.put(key, pieces, file.size, file.size)
            except Unavailable as error:
                if self._outage <= 0:
                    raise
                log.warning("results of %s wait for the file store: %s", self.handle.key, error)
                await asyncio.sleep(delay)
                self._outage -= delay
                delay = min(2 * delay, 5.0)

    def _whole(self, left: Left) -> list[Gathered]:
        """The items that are stored: a folder without files that changed or vanished, and of what
        time or the file store did not allow only whole ones."""
        found = []
        for item in left.items:
            known = ((file.path, self._stored.get((item.name, file))) for file in item.files)
            files = tuple((path, stored) for path, stored in known if stored is not None)
            if len(files) == len(item.files) or (files and not self._cut_off):
                found.append(Gathered(item.name, item.folder, files))
        return found


def collects(backend: Backend) -> TypeGuard[Collects]:
    """Whether work of this backend can leave results."""
    return _kind_collects(type(backend))


@functools.cache
def _kind_collects(kind: type) -> bool:  # looking at a protocol takes as long as looking for results
    return issubclass(kind, Collects)


def _shown(item: LeftItem, file: LeftFile) -> str:
    return f"{item.name}/{file.path}" if item.folder else item.name

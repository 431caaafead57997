"""What work left as results, found and read.

Where the engine's disk is this host's, the volume itself is looked through. Elsewhere what was left is
fetched once, into a folder of the service that goes with the work.
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from nemo_jobs.backends import subprocess_results
from nemo_jobs.backends.api import Handle, Json, Left, LeftChanged, LeftFile, Unavailable
from nemo_jobs.backends.docker import labels, spec, volumes
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.creator import Creator
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.stream import ByteStream
from nemo_jobs.backends.docker.unpack import unpack

#: How long looking and fetching may take, in seconds.
LOOK_SECONDS, FETCH_SECONDS = 120.0, 1800.0
_STAT = "x-docker-container-path-stat"
_FOLDER = "docker-results"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where what was left lies on this host now, and what was left out on the way there."""

    root: str
    directory: str
    notes: tuple[str, ...] = ()


class Results:
    """The results of the containers of one engine."""

    def __init__(self, engine: DockerEngine, data_dir: Path, creator: Creator) -> None:
        self._engine, self._creator = engine, creator
        self._all = Path(data_dir) / _FOLDER
        self._folder = self._all / creator.mark.rpartition(":")[2]
        self.folder_root: str | None = None
        self._fetched: dict[str, _Place | None] = {}

    async def start(self) -> None:
        """Remove what services that are gone had fetched."""
        await asyncio.to_thread(self._tidy)

    def _tidy(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            host = self._creator.mark.partition(":")[0]
            for entry in os.scandir(self._all):
                if not self._creator.lives(f"{host}:{entry.name}") and entry.name != self._folder.name:
                    shutil.rmtree(entry.path, ignore_errors=True)

    async def left(self, handle: Handle, most_bytes: int) -> Left | None:
        """As `Collects.left`."""
        place = self._here(handle)
        if place is not None and subprocess_results.is_empty(place.directory):  # nearly always: no thread
            return None
        if place is None and (place := await self._fetch(handle, most_bytes)) is None:
            return None
        path = handle.data["results"]
        known_as = (path, path.removeprefix("/var"))  # in most images /var/run leads to /run
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                found = await asyncio.to_thread(
                    subprocess_results.look_through, place.root, place.directory, most_bytes, known_as
                )
        except TimeoutError as error:
            raise Unavailable(f"looking through the results takes more than {LOOK_SECONDS:g} s") from error
        except FileNotFoundError:
            return None
        except OSError as error:
            return Left((), (f"the results can't be read: {error.strerror}",))
        return replace(found, notes=(*found.notes, *place.notes))

    async def read_left(self, handle: Handle, file: LeftFile) -> AsyncIterator[bytes]:
        """As `Collects.read_left`."""
        place = self._here(handle) or self._fetched.get(handle.key)
        if place is None:
            raise LeftChanged("it is gone")
        pieces = subprocess_results.read(place.root, place.directory, file)
        try:
            while piece := await asyncio.to_thread(next, pieces, b""):
                yield piece
        finally:
            with contextlib.suppress(ValueError):  # a thread still reads it, and closes it when done
                pieces.close()

    async def forget(self, handle: Handle) -> None:
        """The work is removed: what was fetched of it isn't needed any more."""
        place = self._fetched.pop(handle.key, None)
        if place is not None:
            await asyncio.to_thread(shutil.rmtree, place.root, True)

    async def aclose(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder, True)

    def _here(self, handle: Handle) -> _Place | None:
        """The volume, if it can be read from here."""
        if self.folder_root is None:
            return None
        data = handle.data
        name = labels.task_volumes(data["workspace"], data["job"], data["first_task"]).storage
        root = f"{self.folder_root}/{name}/_data"
        return _Place(root, f"{root}/{spec.RESULTS_NAME}")

    async def _fetch(self, handle: Handle, most_bytes: int) -> _Place | None:
        if handle.key in self._fetched:
            return self._fetched[handle.key]
        try:
            async with (
                asyncio.timeout(FETCH_SECONDS),
                self._engine.get_archive(handle.data["container"], handle.data["results"]) as pieces,
            ):
                if _untouched((await pieces.headers()).get(_STAT, "")):
                    place = None
                else:
                    place = await self._unpacked(handle.key, pieces, most_bytes)
        except TimeoutError as error:
            raise Unavailable(f"fetching the results takes more than {FETCH_SECONDS:g} s") from error
        except EngineAway as error:
            raise Unavailable(str(error)) from error
        except EngineError as error:
            if error.missing:
                return None
            raise Unavailable(f"the engine can't give the results: {error}") from error
        except OSError as error:
            raise Unavailable(f"the results can't be kept while they are stored: {error}") from error
        self._fetched[handle.key] = place
        return place

    async def _unpacked(self, key: str, pieces: ByteStream, most_bytes: int) -> _Place:
        root = str(self._folder / key)
        await asyncio.to_thread(_make, root)
        place = _Place(root, f"{root}/results")
        notes = await unpack(pieces, place.directory, most_bytes)
        return replace(place, notes=tuple(notes))


def _make(root: str) -> None:
    """An empty folder for this user alone."""
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root, mode=0o700)


def _untouched(head: str) -> bool:
    """Whether a folder is as it was made, by what the engine tells of it."""
    try:
        told: Json = json.loads(base64.b64decode(head))
        return int(datetime.fromisoformat(told["mtime"]).timestamp()) == volumes.UNTOUCHED
    except (ValueError, KeyError, TypeError):
        return False

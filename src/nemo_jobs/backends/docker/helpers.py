"""Containers that serve others: a look into a volume, a file written there, a folder deleted.

They have no network, and but for deleting no program of theirs is ever started. None stays behind: a
crash in between leaves one that carries our labels, which the sweep finds.
"""

import asyncio
import contextlib
import io
import secrets
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nemo_jobs.backends.api import Json, Plan, Unavailable
from nemo_jobs.backends.docker import labels, volumes
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway, EngineError, one_line

if TYPE_CHECKING:
    from nemo_jobs.backends.docker.storage import Found, Place

_TOP = "/storage"
_MOST_NOTE = 16 << 10
_DELETE_SECONDS = 600.0


class Helper:
    """A container that was created and isn't started."""

    def __init__(self, engine: DockerEngine, container: str) -> None:
        self._engine, self.container = engine, container

    async def put(self, folders: Sequence[volumes.Folder], files: Sequence[volumes.File] = ()) -> None:
        await self._engine.put_archive(self.container, "/", volumes.tar_of(folders, files))

    async def exists(self, path: str) -> bool:
        try:
            async with self._engine.get_archive(self.container, path):
                return True
        except EngineError as error:
            if error.missing:
                return False
            raise

    async def read(self, path: str) -> bytes | None:
        """A small file; None when it isn't there or is no file."""
        data = b""
        try:
            async with self._engine.get_archive(self.container, path) as pieces:
                async for piece in pieces:
                    data += piece
                    if len(data) > _MOST_NOTE:
                        return None
        except EngineError as error:
            if error.missing:
                return None
            raise
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            entry = tar.next()
            file = tar.extractfile(entry) if entry is not None and entry.isreg() else None
            return file.read() if file else None

    async def run(self) -> None:
        """Run its program to the end. Raises Unavailable when it fails."""
        await self._engine.start(self.container)
        try:
            async with asyncio.timeout(_DELETE_SECONDS), self._engine.wait(self.container) as answers:
                code = (await anext(answers)).get("StatusCode")
        except TimeoutError:
            raise Unavailable(f"deleting takes more than {_DELETE_SECONDS:g} s", 60.0) from None
        if code != 0:
            text = b"".join(
                [piece async for piece in self._engine.logs(self.container, follow=False, tail="5")]
            )
            raise Unavailable(
                f"deleting failed with code {code}: {one_line(text.decode('utf-8', 'replace'), 300)}"
            )


class Helpers:
    """Makes helpers on one engine. `fetch` gets an image that isn't there, or raises."""

    def __init__(self, engine: DockerEngine, owner: str, fetch: Callable[[str], Awaitable[None]]) -> None:
        self._engine, self._owner, self._fetch = engine, owner, fetch

    @contextlib.asynccontextmanager
    async def made(
        self,
        kind: str,
        of: "Plan | Place",
        image: str,
        mounts: Mapping[str, str],
        marks: Mapping[str, str],
        command: Sequence[str] = ("-",),
    ) -> AsyncIterator[Helper]:
        """A container with these volumes; it is gone afterwards."""
        name = labels.object_name(kind, of.workspace, of.job, secrets.token_hex(4))
        body = {
            "Image": image,
            "Entrypoint": [command[0]],
            "Cmd": list(command[1:]),
            "User": "0:0",
            "Labels": {
                **labels.OURS,
                labels.INSTANCE: self._owner,
                **marks,
                labels.TYPE: labels.CLEANUP_TYPE,
            },
            "HostConfig": {
                "NetworkMode": "none",
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
                "Mounts": [_mount(volume, path, marks) for volume, path in mounts.items()],
            },
        }
        try:
            container = await self._engine.create(name, body)
        except EngineError as error:
            if not error.missing:
                raise
            await self._fetch(image)
            container = await self._engine.create(name, body)
        try:
            yield Helper(self._engine, container)
        finally:
            with contextlib.suppress(EngineAway, EngineError):
                await self._engine.remove(container, force=True, volumes=True)

    def disk(self, image: str, deleting: str) -> "FolderThere":
        return FolderThere(self, image, deleting or image)


class FolderThere:
    """Folders inside volumes of an engine whose disk can't be reached from here."""

    def __init__(self, helpers: Helpers, image: str, deleting: str) -> None:
        self._helpers, self._image, self._deleting = helpers, image, deleting

    async def look(self, place: "Place") -> "Found":
        from nemo_jobs.backends.docker.storage import Found

        async with self._made("job-init", place, self._image) as helper:
            note = await helper.read(f"{_TOP}/{place.note}")
            exists = await helper.exists(f"{_TOP}/{place.inside}")
        return Found(exists, note.decode("utf-8", "replace") if note else None)

    async def claim(self, place: "Place", attempt: str) -> None:
        folder = volumes.Folder(place.volume, f"{_TOP}/{place.inside}", volumes.Owner())
        note = volumes.File(f"{_TOP}/{place.note}", attempt.encode(), 0o600)
        async with self._made("job-init", place, self._image) as helper:
            await helper.put([folder], [note])

    async def wipe(self, place: "Place") -> None:
        command = ("rm", "-rf", "--", f"{_TOP}/{place.inside}", f"{_TOP}/{place.note}")
        async with self._made("job-cleanup", place, self._deleting, command) as helper:
            await helper.run()

    def _made(
        self, kind: str, place: "Place", image: str, command: Sequence[str] = ("-",)
    ) -> "contextlib.AbstractAsyncContextManager[Helper]":
        return self._helpers.made(kind, place, image, {place.volume: _TOP}, _marks(place), command)


def _marks(place: "Place") -> dict[str, str]:
    # The sweep goes by this label; what a helper is there for has no run of its own.
    return {labels.WORKSPACE: place.workspace, labels.JOB: place.job, labels.KEY: ""}


def _mount(volume: str, path: str, marks: Mapping[str, str]) -> Json:
    options: Json = {"NoCopy": True}
    if marks.get(labels.KEY):
        options["Labels"] = dict(marks)
    return {"Type": "volume", "Source": volume, "Target": path, "VolumeOptions": options}

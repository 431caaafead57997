"""Folders inside a volume whose disk is this host's. No link on the way to one is followed."""

import asyncio
import contextlib
import os
import secrets
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_jobs.backends.docker.storage import Found, Place

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_NOTE = 255


class FolderHere:
    """The folder `top` of a volume."""

    def __init__(self, top: str) -> None:
        self._top = top

    async def look(self, place: "Place") -> "Found":
        return await asyncio.to_thread(self._look, place)

    async def claim(self, place: "Place", attempt: str) -> None:
        await asyncio.to_thread(self._claim, place, attempt)

    async def wipe(self, place: "Place") -> None:
        await asyncio.to_thread(self._wipe, place)

    def _look(self, place: "Place") -> "Found":
        from nemo_jobs.backends.docker.storage import Found

        try:
            parent = self._parent(place, make=False)
        except FileNotFoundError:
            return Found()
        try:
            exists = os.path.isdir(f"/proc/self/fd/{parent}/{place.job}")
            return Found(exists, _read_note(parent, _name(place.note)))
        finally:
            os.close(parent)

    def _claim(self, place: "Place", attempt: str) -> None:
        parent = self._parent(place, make=True)
        try:
            note = _name(place.note)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            part = f"{note}.{secrets.token_hex(4)}"
            file = os.open(part, flags, 0o600, dir_fd=parent)
            try:
                os.write(file, attempt.encode())
            finally:
                os.close(file)
            os.rename(part, note, src_dir_fd=parent, dst_dir_fd=parent)
            with contextlib.suppress(FileExistsError):
                os.mkdir(place.job, 0o700, dir_fd=parent)
        finally:
            os.close(parent)

    def _wipe(self, place: "Place") -> None:
        try:
            parent = self._parent(place, make=False)
        except FileNotFoundError:
            return
        try:
            # Out of the way first: who looks meanwhile finds nothing, not a half of it.
            rest = f".{place.job}.{secrets.token_hex(4)}.gone"
            with contextlib.suppress(FileNotFoundError):
                os.rename(place.job, rest, src_dir_fd=parent, dst_dir_fd=parent)
            for name in os.listdir(parent):  # also what a crash has left of it
                if name.startswith(f".{place.job}.") and name.endswith(".gone"):
                    shutil.rmtree(name, dir_fd=parent)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_name(place.note), dir_fd=parent)
        finally:
            os.close(parent)

    def _parent(self, place: "Place", *, make: bool) -> int:
        """The folder of the workspace, opened."""
        number = os.open(self._top, _FOLDER)
        for name in place.inside.split("/")[:-1]:
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=number)
                inner = os.open(name, _FOLDER, dir_fd=number)
            finally:
                os.close(number)
            number = inner
        return number


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _read_note(parent: int, name: str) -> str | None:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return None
    try:
        return os.read(file, _MOST_NOTE).decode("utf-8", "replace") or None
    finally:
        os.close(file)

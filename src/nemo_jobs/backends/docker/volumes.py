"""The folders of a task: filled before its start, without a program in its container.

Where the engine's disk is this host's, files are written straight into the folders of the volumes;
elsewhere they are sent to the container, which is made but not started yet, as a tar. The engine
unpacks that with a process of its own, which takes several times as long as all the rest.
"""

import asyncio
import contextlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nemo_jobs.backends.api import Json, Plan
from nemo_jobs.backends.docker import labels, spec

#: When folders that are sent were changed last, in seconds since 1970: another time says that the
#: task has put something there.
UNTOUCHED = 946_684_800
_NO_REMAP = ("name=rootless", "name=userns")


@dataclass(frozen=True, slots=True)
class Owner:
    """A user of the image, by number."""

    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class File:
    name: str
    data: bytes
    mode: int = 0o400


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of a volume (`inside`; "" is the volume itself), where the container sees it, and what
    is put there for its owner alone."""

    volume: str
    path: str
    owner: Owner
    files: tuple[File, ...] = ()
    inside: str = ""


def task_folders(plan: Plan, owner: Owner) -> list[Folder]:
    """The folders that each task has, with its configuration and, if it has one, its token."""
    names = labels.task_volumes(plan.workspace, plan.job, plan.task)
    config = File(spec.CONFIG_NAME, config_text(plan.spec.get("config") or {}).encode())
    found = [
        Folder(names.storage, spec.ephemeral_path(plan), owner),
        Folder(names.config, spec.CONFIG_DIR, owner, (config,)),
        Folder(names.storage, spec.results_path(plan), owner, inside=spec.RESULTS_NAME),
    ]
    if plan.token:
        token = File(spec.TOKEN_NAME, plan.token.encode())
        found.append(Folder(names.token, spec.TOKEN_DIR, owner, (token,)))
    return found


def config_text(config: Json) -> str:
    """The step's configuration as its file holds it."""
    text = json.dumps(config, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair: legal in JSON text only as an escape
        return json.dumps(config)
    return text


def folder_root(info: Json, *, local: bool) -> str | None:
    """The folder of all volumes if this process may write into it, by what the engine says of itself."""
    options = info.get("SecurityOptions") or ()
    if not local or os.geteuid() != 0 or any(option.startswith(_NO_REMAP) for option in options):
        return None
    root = f"{info.get('DockerRootDir', '')}/volumes"
    return root if root.startswith("/") and os.path.isdir(root) else None


async def fill_here(root: str, folders: Sequence[Folder]) -> bool:
    """Fill volumes whose folders are below `root`; False when one isn't there, as where the path
    is another disk's."""
    return await asyncio.to_thread(_fill, root, folders)


def _fill(root: str, folders: Sequence[Folder]) -> bool:
    try:
        opened = []
        try:
            for folder in folders:
                top = f"{root}/{folder.volume}/_data"
                if folder.inside == spec.RESULTS_NAME:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(f"{top}/{folder.inside}", 0o700)
                opened.append(open_below(top, folder.inside))
            for number, folder in zip(opened, folders, strict=True):
                _fill_one(number, folder)
        finally:
            for number in opened:
                os.close(number)
    except FileNotFoundError:
        return False
    return True


def open_below(folder: str, inside: str) -> int:
    """Open a folder below another one; no link on the way is followed."""
    number = os.open(folder, _FOLDER)
    for name in filter(None, inside.split("/")):
        try:
            inner = os.open(name, _FOLDER, dir_fd=number)
        finally:
            os.close(number)
        number = inner
    return number


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _fill_one(number: int, folder: Folder) -> None:
    for file in folder.files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.name, dir_fd=number)
        written = os.open(file.name, _NEW_FILE, file.mode, dir_fd=number)
        with os.fdopen(written, "wb") as stream:
            stream.write(file.data)
            os.fchown(written, folder.owner.uid, folder.owner.gid)
    os.fchown(number, folder.owner.uid, folder.owner.gid)
    os.fchmod(number, 0o700)


def tar_of(folders: Iterable[Folder], more: Sequence[File] = ()) -> bytes:
    """The folders with their files, as a tar to be unpacked at / of a container; `more` are files
    there, root's, by their path."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file in more:
            _add(tar, file.name.lstrip("/"), Owner(), file.mode, file.data)
        for folder in folders:
            path = folder.path.lstrip("/")
            _add(tar, path, folder.owner, 0o700, None)
            for file in folder.files:
                _add(tar, f"{path}/{file.name}", folder.owner, file.mode, file.data)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, owner: Owner, mode: int, data: bytes | None) -> None:
    """A file; without data a folder."""
    entry = tarfile.TarInfo(name)
    entry.uid, entry.gid, entry.mode, entry.mtime = owner.uid, owner.gid, mode, UNTOUCHED
    if data is None:
        entry.type = tarfile.DIRTYPE
        tar.addfile(entry)
    else:
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))

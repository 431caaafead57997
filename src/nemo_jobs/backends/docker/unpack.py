"""What a task left, out of the engine's tar into a folder of the service. Nothing leads out of that folder.

Items (the names right below the folder of results) are whole: one that doesn't fit is dropped while
it comes, so that what is stored meanwhile is bounded too.
"""

import asyncio
import contextlib
import io
import os
import shutil
import tarfile
from collections.abc import AsyncIterable
from typing import BinaryIO, cast

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_MEMBERS = 100_000
_DEEPEST = 40
_MOST_NOTES = 100
_PIECE = 1 << 20


async def unpack(pieces: AsyncIterable[bytes], target: str, most_bytes: int) -> list[str]:
    """Unpack a tar of one folder into `target`, which is made; sentences about what was left out.
    Raises what the pieces raise, and OSError."""
    feed = _Feed(asyncio.get_running_loop())
    work = asyncio.create_task(asyncio.to_thread(_unpack, feed, target, most_bytes))
    try:
        async for piece in pieces:
            if work.done():
                break
            await feed.put(piece)
        await feed.put(b"")
        return await work
    finally:
        feed.close()
        if not work.done():
            await asyncio.gather(work, return_exceptions=True)


class _Feed(io.RawIOBase):
    """A file that is read in a thread while its bytes come in on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(4)
        self._rest = b""
        self._over = False

    async def put(self, piece: bytes) -> None:
        while not self._over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):  # the reader may have given up
                    await self._queue.put(piece)
                    return

    def read(self, size: int = -1) -> bytes:
        if not self._rest and not self._over:
            self._rest = asyncio.run_coroutine_threadsafe(self._queue.get(), self._loop).result()
            if not self._rest:
                self.give_up()
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def give_up(self) -> None:
        """Nothing more is read."""
        self._over = True

    def close(self) -> None:
        self._over = True
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(b"")


def _unpack(feed: _Feed, target: str, most_bytes: int) -> list[str]:
    os.mkdir(target, 0o700)
    top = os.open(target, _FOLDER)
    try:
        work = _Unpacking(top, target, most_bytes)
        with tarfile.open(fileobj=cast(BinaryIO, feed), mode="r|", bufsize=_PIECE) as tar:
            for count, member in enumerate(tar):
                if count >= _MOST_MEMBERS:
                    work.note(f"what comes after {_MOST_MEMBERS} files and folders was left out")
                    break
                work.take(tar, member)
        return work.notes
    except tarfile.TarError as error:
        raise OSError(f"the engine's archive can't be read: {error}") from error
    finally:
        feed.give_up()
        os.close(top)


class _Unpacking:
    """One tar on its way to the disk."""

    def __init__(self, top: int, target: str, most_bytes: int) -> None:
        self._top, self._target, self._most = top, target, most_bytes
        self._sizes: dict[str, int] = {}
        self._dropped: set[str] = set()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(text)

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if parts is None or len(parts) > _DEEPEST:
            self.note(f"{member.name[-200:]!a} was left out: its name can't be used, or is too deep")
            return
        if not parts or parts[0] in self._dropped:
            return
        try:
            self._put(tar, member, parts)
        except FileExistsError:
            pass  # a folder that is told twice
        except (FileNotFoundError, NotADirectoryError):
            self.note(f"{'/'.join(parts)[-200:]!a} was left out: the folder that it is in can't be read")

    def _put(self, tar: tarfile.TarFile, member: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
        parent, name = self._open(parts[:-1]), parts[-1]
        try:
            if member.isdir():
                os.mkdir(name, 0o700, dir_fd=parent)
            elif member.issym():
                os.symlink(member.linkname, name, dir_fd=parent)
            elif member.islnk():
                self._link(member, parent, name)
            elif member.isreg():
                self._file(tar, member, parts, parent)
            else:
                self.note(f"{'/'.join(parts)[-200:]!a} was left out: it is neither a file nor a folder")
        finally:
            os.close(parent)

    def _file(
        self, tar: tarfile.TarFile, member: tarfile.TarInfo, parts: tuple[str, ...], parent: int
    ) -> None:
        item = parts[0]
        self._sizes[item] = self._sizes.get(item, 0) + member.size
        if self._sizes[item] > self._most:
            self._drop(item)
            return
        source = tar.extractfile(member)
        with os.fdopen(os.open(parts[-1], _NEW, 0o600, dir_fd=parent), "wb") as file:
            if source is not None:
                shutil.copyfileobj(source, file, _PIECE)

    def _link(self, member: tarfile.TarInfo, parent: int, name: str) -> None:
        """Another name of a file that came before."""
        there = _parts(member.linkname)
        if not there or there[0] in self._dropped:
            raise FileNotFoundError(member.linkname)
        folder = self._open(there[:-1])
        try:
            os.link(there[-1], name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(folder)

    def _drop(self, item: str) -> None:
        self._dropped.add(item)
        self.note(
            f"{ascii(item)[1:-1]} was left out: it has more than the {self._most} bytes that may be stored"
        )
        path = f"{self._target}/{item}"
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _open(self, parts: tuple[str, ...]) -> int:
        """A folder of the target; no link on the way is followed."""
        number = os.dup(self._top)
        for part in parts:
            try:
                inner = os.open(part, _FOLDER, dir_fd=number)
            except OSError as error:
                raise NotADirectoryError(part) from error
            finally:
                os.close(number)
            number = inner
        return number


def _parts(name: str) -> tuple[str, ...] | None:
    """The names below the folder that was asked for; None for a name that leads elsewhere."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    return None if ".." in parts or "\0" in name else parts[1:]

"""Objects as files below one directory, for one host or a shared file system."""

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from nemo_jobs.files.objects import ObjectMissing, ObjectsUnavailable, Stored, TooLarge, checked_key

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Open(Protocol):
    def discard(self) -> None: ...


F = TypeVar("F", bound=_Open)

#: Bytes written or read by one call; a transfer holds two or three of them.
PIECE = 512 * 1024
#: Transfers that use the disk at the same moment.
THREADS = 4
IDENTITY = "store-id"


class LocalObjects:
    """Objects below `root`, made for this user alone. `prepare` comes before anything else.

    An upload goes to a file of its own name, which is locked while its process lives, and gets
    its final name when all of it is on the disk.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._objects, self._partial = root / "objects", root / "partial"
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="files")

    def prepare(self) -> int:
        """Make the directories and remove what killed uploads left; how many those were.
        Raises ObjectsUnavailable."""
        try:
            for folder in (self.root, self._objects, self._partial):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return sum(_swept(Path(entry.path)) for entry in os.scandir(self._partial))
        except OSError as error:
            raise _unusable(self.root, error) from error

    async def put(
        self, key: str, chunks: AsyncIterator[bytes], limit: int | None = None, size: int | None = None
    ) -> Stored:
        target = self._path(key)
        upload = await self._opened(_Upload, self._partial, target)
        try:
            await self._fill(upload, chunks, limit)
            return await self._run(upload.finish, key)
        except BaseException:
            # Behind whatever of it still runs in a thread; nobody has to wait for it.
            self._threads.submit(upload.discard)
            raise

    async def _fill(self, upload: "_Upload", chunks: AsyncIterator[bytes], limit: int | None) -> None:
        """Write while the next bytes are on the way."""
        waiting: list[bytes] = []
        size = held = 0
        writing: asyncio.Future[None] = asyncio.ensure_future(asyncio.sleep(0))
        try:
            async for chunk in chunks:
                size, held = size + len(chunk), held + len(chunk)
                if limit is not None and size > limit:
                    raise TooLarge(limit)
                waiting.append(chunk)
                if held >= PIECE:
                    await writing
                    writing = asyncio.ensure_future(self._run(upload.write, waiting))
                    waiting, held = [], 0
            await writing
        finally:
            writing.cancel()
        if waiting:
            await self._run(upload.write, waiting)

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        source = await self._opened(_Source, self._path(key), start, end)
        ahead = asyncio.ensure_future(self._run(source.read))
        try:
            while piece := await ahead:
                ahead = asyncio.ensure_future(self._run(source.read))
                yield piece
        finally:
            ahead.cancel()
            self._threads.submit(source.discard)

    async def remove(self, key: str) -> None:
        await self._run(lambda: self._path(key).unlink(missing_ok=True))

    async def check(self) -> str | None:
        if not await asyncio.to_thread(os.access, self._partial, os.W_OK | os.X_OK):
            return f"the files' directory {self.root} can't be written"
        return None

    async def identity(self) -> str:
        return await self._run(_identity, self.root / IDENTITY)

    def _path(self, key: str) -> Path:
        return self._objects / checked_key(key)[:2] / key

    async def _opened(self, kind: Callable[..., F], *args: object) -> F:
        """An upload or a source; one that is ready when nobody waits for it any more is closed."""
        opening = asyncio.ensure_future(self._run(kind, *args))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._discard)
            raise

    def _discard(self, opening: "asyncio.Future[F]") -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._threads.submit(opening.result().discard)

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        except FileNotFoundError as error:
            raise ObjectMissing("its bytes are not in the file store") from error
        except OSError as error:
            raise _unusable(self.root, error) from error


class _Upload:
    """A file that has no name yet for anybody else. Its methods run in threads, one at a time."""

    def __init__(self, folder: Path, target: Path) -> None:
        self._lock = threading.Lock()
        self._hash = hashlib.sha256()
        self._size = 0
        self._target = target
        self._path, self._file = _locked(folder)
        self._open = True

    def write(self, chunks: list[bytes]) -> None:
        with self._lock:
            if not self._open:
                return  # given up meanwhile
            for chunk in chunks:
                self._hash.update(chunk)
                _write_all(self._file, chunk)
                self._size += len(chunk)

    def finish(self, key: str) -> Stored:
        """Have it on the disk, then give it its name, and have that on the disk, too."""
        with self._lock:
            os.fsync(self._file)
            folder = self._target.parent
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
                _sync_folder(folder.parent)
            self._path.rename(self._target)
            _sync_folder(folder)
            self._close()
            return Stored(key, self._size, self._hash.hexdigest())

    def discard(self) -> None:
        with self._lock:
            if self._open:
                with contextlib.suppress(OSError):
                    self._path.unlink(missing_ok=True)
                self._close()

    def _close(self) -> None:
        self._open = False
        os.close(self._file)


class _Source:
    """An open object; it stays readable when it is removed meanwhile."""

    def __init__(self, path: Path, start: int, end: int | None) -> None:
        self._lock = threading.Lock()
        self._file: int | None = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        self._at, self._end = start, end

    def read(self) -> bytes:
        with self._lock:
            if self._file is None:
                return b""
            want = PIECE if self._end is None else min(PIECE, self._end - self._at)
            piece = os.pread(self._file, want, self._at) if want > 0 else b""
            self._at += len(piece)
            return piece

    def discard(self) -> None:
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None


def _locked(folder: Path) -> tuple[Path, int]:
    """A new file that is locked: who sweeps leaves it alone."""
    while True:
        path = folder / secrets.token_hex(16)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:
            return path, file
        os.close(file)  # another process that starts just now swept it before it was locked


def _write_all(file: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(file, view) :]


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _swept(path: Path) -> bool:
    """Remove an upload that nobody works on any more."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _identity(path: Path) -> str:
    """What is in the file, which is made if there is none: of several who try, one does."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="ascii").strip()
    made = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        _write_all(file, f"{secrets.token_hex(16)}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    with contextlib.suppress(FileExistsError):
        os.link(made, path)
    made.unlink()
    _sync_folder(path.parent)
    return path.read_text(encoding="ascii").strip()


def _unusable(root: Path, error: OSError) -> ObjectsUnavailable:
    return ObjectsUnavailable(f"the files' directory {root} can't be used: {error.strerror or error}")

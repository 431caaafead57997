"""Folders as gzip tar streams, made while they are sent."""

import asyncio
import tarfile
import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from nemo_jobs.files.objects import ObjectStore, ObjectsUnavailable

#: Bytes that are compressed at once, about, and that one piece of the stream has at least.
BATCH = 256 * 1024
PIECE = 32 * 1024
GZIP = 16 + zlib.MAX_WBITS
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the folder: its path inside it, with slashes; `at` in microseconds since 1970."""

    path: str
    size: int
    at: int
    key: str


async def tar_stream(
    objects: ObjectStore, top: str, members: AsyncIterator[Member], at: int
) -> AsyncIterator[bytes]:
    """A gzip tar with the one directory `top`, of time `at`, and the members in it.

    Memory stays bounded, whatever the size. Raises what reading raises, and ObjectsUnavailable when
    an object is shorter or longer than it should be; what came before is then no whole archive.
    """
    packer = _Packer()
    packer.add(_head(f"{_safe(top)}/", 0, at, tarfile.DIRTYPE))
    async for member in members:
        packer.add(_head(f"{top}/{_safe(member.path)}", member.size, member.at, tarfile.REGTYPE))
        left = member.size
        async with aclosing(objects.read(member.key)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                left -= len(piece)
                packer.add(piece)
                if packer.is_full and (packed := await packer.packed()):
                    yield packed
        if left:
            raise ObjectsUnavailable(f"the bytes of {member.path!r} are not as many as they should be")
        packer.add(bytes(-member.size % _BLOCK))
        if packer.is_full and (packed := await packer.packed()):
            yield packed
    packer.add(bytes(2 * _BLOCK))
    yield await packer.packed(last=True)


class _Packer:
    """Bytes to compress, gathered so that each trip to a thread is worth it."""

    def __init__(self) -> None:
        self._gzip = zlib.compressobj(1, zlib.DEFLATED, GZIP)
        self._waiting: list[bytes] = []
        self._size = 0
        self._ready: list[bytes] = []

    @property
    def is_full(self) -> bool:
        return self._size >= BATCH

    def add(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)

    async def packed(self, last: bool = False) -> bytes:
        """What is ready to be sent; nothing while it is too little."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        self._ready += await asyncio.to_thread(self._compress, waiting, last)
        if not last and sum(map(len, self._ready)) < PIECE:
            return b""
        ready, self._ready = self._ready, []
        return b"".join(ready)

    def _compress(self, waiting: list[bytes], last: bool) -> list[bytes]:
        found = [self._gzip.compress(data) for data in waiting]
        return [*found, self._gzip.flush()] if last else found


def _head(name: str, size: int, at: int, kind: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    info.mtime = at // 1_000_000
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _safe(path: str) -> str:
    """No path that leaves the place where the archive is unpacked gets into one."""
    if any(segment in ("", ".", "..") for segment in path.split("/")) or "\0" in path:
        raise ValueError(f"{path!r} can't be in an archive")
    return path

"""Objects in a bucket: S3-compatible, Google Cloud Storage, Azure; needs the extra `[s3]`."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

from nemo_jobs.files.objects import ObjectMissing, ObjectsUnavailable, Stored, TooLarge, checked_key

#: A part of an upload, in bytes; an upload holds a few of them. Stores take at most 10,000 parts.
PART = 8 * 1024 * 1024
PARTS = 9_000
AT_ONCE = 2
#: Bytes that a reader gets at a time, at least.
PIECE = 256 * 1024
IDENTITY = "store-id"


class BucketObjects:
    """Objects of an obstore store; `shown` names it to people and holds no secret."""

    def __init__(self, store: Any, shown: str) -> None:
        self._store, self._shown = store, shown

    def __str__(self) -> str:
        return self._shown

    async def put(
        self, key: str, chunks: AsyncIterator[bytes], limit: int | None = None, size: int | None = None
    ) -> Stored:
        import obstore

        counted = _Counted(chunks, limit)
        part = max(PART, -(-(size or 0) // PARTS))
        try:
            async with _told(self._shown):
                await obstore.put_async(
                    self._store, _path(key), counted.pieces(), chunk_size=part, max_concurrency=AT_ONCE
                )
        except Exception:
            if counted.failed is not None:  # what went wrong is the source's
                raise counted.failed from None
            raise
        return Stored(key, counted.size, counted.hash.hexdigest())

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        import obstore

        if end is not None and end <= start:
            return
        async with _told(self._shown):
            if start == 0 and end is None:
                found = await obstore.get_async(self._store, _path(key))
            else:
                span: Any = {"offset": start} if end is None else (start, end)
                found = await obstore.get_async(self._store, _path(key), options={"range": span})
        pieces = aiter(found.stream(min_chunk_size=PIECE))
        while True:
            async with _told(self._shown):
                try:
                    piece = bytes(await anext(pieces))
                except StopAsyncIteration:
                    return
            yield piece

    async def remove(self, key: str) -> None:
        import obstore

        with contextlib.suppress(ObjectMissing):
            async with _told(self._shown):
                await obstore.delete_async(self._store, _path(key))

    async def check(self) -> str | None:
        try:
            await self.identity()
        except ObjectsUnavailable as error:
            return str(error)
        return None

    async def identity(self) -> str:
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotSupportedError

        with contextlib.suppress(ObjectMissing):
            return await self._identity()
        made = secrets.token_hex(16).encode()
        async with _told(self._shown):
            try:
                await obstore.put_async(self._store, IDENTITY, made, mode="create")
            except AlreadyExistsError:
                pass
            except NotSupportedError:  # a store without conditional writes: the first one wins
                await obstore.put_async(self._store, IDENTITY, made)
        return await self._identity()

    async def _identity(self) -> str:
        import obstore

        async with _told(self._shown):
            found = await obstore.get_async(self._store, IDENTITY)
            return bytes(await found.bytes_async()).decode("ascii", "replace").strip()


class _Counted:
    """Bytes on their way to the bucket: their number, their digest, and what their source raised."""

    def __init__(self, chunks: AsyncIterator[bytes], limit: int | None) -> None:
        self._chunks, self._limit = chunks, limit
        self.size = 0
        self.hash = hashlib.sha256()
        self.failed: BaseException | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._chunks:
                self.size += len(chunk)
                if self._limit is not None and self.size > self._limit:
                    raise TooLarge(self._limit)
                if len(chunk) > PIECE:
                    await asyncio.to_thread(self.hash.update, chunk)
                else:
                    self.hash.update(chunk)
                yield chunk
        except BaseException as error:
            self.failed = error
            raise


def _path(key: str) -> str:
    return f"objects/{checked_key(key)[:2]}/{key}"


@contextlib.asynccontextmanager
async def _told(shown: str) -> AsyncIterator[None]:
    """The store's errors in our words."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing("its bytes are not in the file store") from error
    except (BaseError, OSError) as error:
        raise ObjectsUnavailable(f"the file store {shown} can't be used: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines: Iterator[str] = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)[:300]

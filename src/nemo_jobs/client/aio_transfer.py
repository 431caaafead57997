"""Bytes in and out for the async client. Files are read and written in threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from nemo_jobs.client.aio_connection import AsyncResponse
from nemo_jobs.client.errors import ConnectionFailed
from nemo_jobs.client.transfer import RESUMES, About, Source, broken, part_of, remove


class AsyncSource:
    """What an upload sends, without blocking the loop while it is read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.length = source.length
        self.again = source.again

    async def pieces(self) -> AsyncIterator[bytes]:
        """The content from its beginning."""
        content = self._source.content
        if isinstance(content, AsyncIterable):
            async for piece in content:
                yield piece
            return
        walk = self._source.pieces()
        while (part := await asyncio.to_thread(_next, walk)) is not None:
            yield part


def _next(walk: Iterator[bytes]) -> bytes | None:
    return next(walk, None)


class AsyncDownload:
    """Content on its way from the service; nothing of it is kept in memory.

    Iterate over it with `async for`, `await read()` it whole, or `await write_to_file()`. A
    connection that breaks is opened again where it broke, if the service can do that; otherwise
    `ConnectionFailed` is raised. Close it, or use it in an `async with`.
    """

    def __init__(
        self, response: AsyncResponse, reopen: Callable[[Mapping[str, str]], Awaitable[AsyncResponse]]
    ) -> None:
        self._response = response
        self._reopen = reopen
        self.about = About(response.headers)

    @property
    def headers(self) -> Mapping[str, str]:
        """The head of the answer; names in lower case."""
        return self._response.headers

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """The content in the pieces in which it arrives."""
        received = resumed = 0
        while True:
            try:
                async for piece in self._response.pieces():
                    received += len(piece)
                    resumed = 0
                    yield piece
                self._response.close()
                return
            except (OSError, ConnectionFailed) as error:
                self._response.close()
                resumed += 1
                if not self.about.can_resume or resumed > RESUMES:
                    raise broken(error) from error
            self._response = await self._reopen(self.about.rest(received))
            self.about.check_rest(self._response.status, self._response.headers, received)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self.iter_bytes()

    async def read(self) -> bytes:
        """All of it."""
        return b"".join([piece async for piece in self.iter_bytes()])

    async def write_to_file(self, path: str | os.PathLike[str]) -> str:
        """Write it to a file, which appears whole or not at all; gives its path.

        A folder as `path` takes the file under the name that the service suggests.
        """
        try:
            target = await asyncio.to_thread(self.about.target, path)
            part = part_of(target)
            try:
                file = await _opened(part)
                try:
                    async for piece in self.iter_bytes():
                        await asyncio.to_thread(file.write, piece)
                finally:
                    await asyncio.to_thread(file.close)
                await asyncio.to_thread(os.replace, part, target)
            except BaseException:
                remove(part)
                raise
        finally:
            self.close()
        return target

    def close(self) -> None:
        """Let go of the connection; what has not been read is lost."""
        self._response.close()

    async def __aenter__(self) -> AsyncDownload:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()


async def _opened(path: str) -> Any:
    """A new file to write. When the caller is cancelled meanwhile, it is closed again."""
    opening = asyncio.ensure_future(asyncio.to_thread(open, path, "xb"))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        (await opening).close()
        raise

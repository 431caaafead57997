"""Bytes in and out, a piece at a time: what is sent as a body, and what is downloaded."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, cast

from nemo_jobs.client.connection import Response
from nemo_jobs.client.errors import BadAnswer, ClientError, ConnectionFailed

PIECE = 256 << 10
#: How often in a row a download is opened again without getting anything.
RESUMES = 3
Sendable = bytes | str | os.PathLike[str] | BinaryIO | Iterable[bytes] | AsyncIterable[bytes]


class Source:
    """What an upload sends: bytes, the path of a file, an open binary file, or an iterable of bytes
    (for the async client also an async one).

    `again` says whether it can be sent a second time: an iterable can't. `length` is in bytes,
    None when it is not known before the end.
    """

    def __init__(self, content: Sendable) -> None:
        self.content: Any = content
        self._start = 0
        self.length: int | None = None
        self.again = True
        if isinstance(content, bytes | bytearray | memoryview):
            self.content = bytes(content)
            self.length = len(content)
        elif isinstance(content, str | os.PathLike):
            self.length = os.stat(content).st_size  # noqa: PTH116 - pathlib is slow to load
        elif hasattr(content, "read"):
            self._measure(cast(BinaryIO, content))
        else:
            self.again = False

    def pieces(self) -> Iterator[bytes]:
        """The content from its beginning. Raises `ClientError` when it can't be read, or ends early."""
        try:
            yield from self._pieces()
        except OSError as error:
            raise ClientError(f"what is to be sent can't be read: {error}") from error

    def _pieces(self) -> Iterator[bytes]:
        content = self.content
        if isinstance(content, bytes):
            for start in range(0, len(content), PIECE):
                yield content[start : start + PIECE]
        elif isinstance(content, str | os.PathLike):
            with open(content, "rb") as file:  # noqa: PTH123 - pathlib is slow to load
                yield from self._from_file(file)
        elif hasattr(content, "read"):
            if self.again:
                content.seek(self._start)
            yield from self._from_file(content)
        elif isinstance(content, Iterable):
            yield from content
        else:
            raise TypeError(
                f"{type(content).__name__} can't be sent by this client; give bytes, a path or a file"
            )

    def _measure(self, file: BinaryIO) -> None:
        try:
            self._start = file.tell()
            self.length = file.seek(0, os.SEEK_END) - self._start
            file.seek(self._start)
        except (OSError, ValueError):
            self.again = False

    def _from_file(self, file: BinaryIO) -> Iterator[bytes]:
        """What was announced and no more: a file that grows meanwhile is sent as it was."""
        left = self.length
        while left is None or left:
            piece = file.read(PIECE if left is None else min(PIECE, left))
            if not piece:
                break
            left = None if left is None else left - len(piece)
            yield piece
        if left:
            raise ClientError(f"the file became shorter while it was sent: {left} bytes are missing")


class Download:
    """Content on its way from the service; nothing of it is kept in memory.

    Iterate over it, `read()` it whole, or `write_to_file()`. A connection that breaks is opened
    again where it broke, if the service can do that; otherwise `ConnectionFailed` is raised.
    Close it, or use it in a `with`.
    """

    def __init__(self, response: Response, reopen: Callable[[Mapping[str, str]], Response]) -> None:
        self._response = response
        self._reopen = reopen
        self.about = About(response.headers)

    @property
    def headers(self) -> Mapping[str, str]:
        """The head of the answer; names in lower case."""
        return self._response.headers

    def iter_bytes(self) -> Iterator[bytes]:
        """The content in the pieces in which it arrives."""
        received = resumed = 0
        while True:
            try:
                for piece in self._response.pieces():
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
            self._response = self._reopen(self.about.rest(received))
            self.about.check_rest(self._response.status, self._response.headers, received)

    __iter__ = iter_bytes

    def read(self) -> bytes:
        """All of it."""
        return b"".join(self.iter_bytes())

    def write_to_file(self, path: str | os.PathLike[str]) -> str:
        """Write it to a file, which appears whole or not at all; gives its path.

        A folder as `path` takes the file under the name that the service suggests.
        """
        try:
            target = self.about.target(path)
            part = part_of(target)
            try:
                with open(part, "xb") as file:  # noqa: PTH123 - pathlib is slow to load
                    for piece in self.iter_bytes():
                        file.write(piece)
                os.replace(part, target)  # noqa: PTH105
            except BaseException:
                remove(part)
                raise
        finally:
            self.close()
        return target

    def close(self) -> None:
        """Let go of the connection; what has not been read is lost."""
        self._response.close()

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class About:
    """What the head of a download tells: `name`, `size` in bytes, `etag`; None when it doesn't."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        length = headers.get("content-length", "")
        self.size = int(length) if length.isdecimal() else None
        self.etag = headers.get("etag")
        self.content_type = headers.get("content-type")
        self.name = suggested_name(headers.get("content-disposition", ""))
        strong = self.etag is not None and not self.etag.startswith("W/")
        self.can_resume = strong and self.size is not None and headers.get("accept-ranges") == "bytes"

    def rest(self, received: int) -> dict[str, str]:
        """Headers that ask for what is missing, if the content is still the same."""
        return {"range": f"bytes={received}-", "if-range": self.etag or ""}

    def check_rest(self, status: int, headers: Mapping[str, str], received: int) -> None:
        """Raise `BadAnswer` unless the answer goes on where the last one broke."""
        if status != 206 or not headers.get("content-range", "").startswith(f"bytes {received}-"):
            raise BadAnswer("the content has changed while it was downloaded; start again")

    def target(self, path: str | os.PathLike[str]) -> str:
        """The file to write for a path that may be a folder."""
        place = os.fspath(path)
        if not os.path.isdir(place):  # noqa: PTH112
            return place
        if not self.name:
            raise ClientError(f"{place} is a folder and the service suggests no name; give a file name")
        return os.path.join(place, self.name)  # noqa: PTH118


def suggested_name(disposition: str) -> str | None:
    """The file name of a `content-disposition` header, without anything that could leave a folder."""
    found = ""
    for part in disposition.split(";")[1:]:
        key, _, value = part.strip().partition("=")
        if key.lower() == "filename*" and value.lower().startswith("utf-8''"):
            from urllib.parse import unquote

            found = unquote(value[7:])
            break
        if key.lower() == "filename":
            found = value.strip('"').replace('\\"', '"')
    found = found.replace("\\", "/").rpartition("/")[2]
    return found if found not in ("", ".", "..") and found.isprintable() else None


def part_of(target: str) -> str:
    """Where a file lies until it is whole: beside its place."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name[:100]}.{os.urandom(4).hex()}.part")  # noqa: PTH118


def remove(path: str) -> None:
    """Remove a file that may not be there."""
    try:
        os.unlink(path)  # noqa: PTH108
    except FileNotFoundError:
        pass


def broken(error: OSError | ConnectionFailed) -> ConnectionFailed:
    """The failure of a connection in the middle of a download."""
    if isinstance(error, ConnectionFailed):
        return error
    return ConnectionFailed(f"the connection broke in the middle of a download: {error}")


def files_below(folder: str) -> Iterator[tuple[str, str]]:
    """The regular files below a folder: path within it, and whole path. Links are not followed."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = os.path.join(place, name)  # noqa: PTH118
            if not os.path.islink(file) and os.path.isfile(file):  # noqa: PTH113, PTH114
                yield os.path.relpath(file, folder).replace(os.sep, "/"), file

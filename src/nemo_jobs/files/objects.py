"""What the service needs of a place for bytes. Objects are written once and never changed."""

import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from nemo_jobs.domain.model import NotFound, Unavailable


class ObjectMissing(NotFound):
    """There is no object of this key."""


class ObjectsUnavailable(Unavailable):
    """The store can't be used now; the text says why."""


class TooLarge(ValueError):
    """More bytes came than the limit allows. `limit` is the limit, in bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} bytes came")
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Stored:
    """What was written: `digest` is the sha256 of the bytes, in hex."""

    key: str
    size: int
    digest: str


class ObjectStore(Protocol):
    """A local directory or a bucket. Keys are made by `new_key` and contain no name of a user."""

    async def put(
        self, key: str, chunks: AsyncIterator[bytes], limit: int | None = None, size: int | None = None
    ) -> Stored:
        """Write an object: it appears whole, or not at all when `chunks` raises, more than
        `limit` bytes come (TooLarge) or the process dies. `size`, if it is known, is a hint.
        Memory stays bounded. Raises ObjectsUnavailable."""
        ...

    def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Bytes `start` to `end` (exclusive), in pieces; whoever stops early must `aclose()` it.
        Raises ObjectMissing or ObjectsUnavailable, before the first piece if the object is not there."""
        ...

    async def remove(self, key: str) -> None:
        """Remove it; one that is gone is no error. Raises ObjectsUnavailable."""
        ...

    async def check(self) -> str | None:
        """None when it can be used, else why not."""
        ...

    async def identity(self) -> str:
        """What makes this store another one than the rest; made at the first use. Raises
        ObjectsUnavailable."""
        ...


_KEY = re.compile(r"[0-9a-f]{32}")


def new_key() -> str:
    """A key that was never used before."""
    return secrets.token_hex(16)


def checked_key(key: str) -> str:
    """The key itself. Raises ValueError for what `new_key` can't have made: no other text
    becomes part of a path."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is no key of an object")
    return key

"""What the service needs of a place for bytes. Objects are written once and never changed."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


class ObjectMissing(Exception):
    """There is no object of this key."""


class ObjectsUnavailable(Exception):
    """The store can't be used now; the text says why."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What was written: `digest` is the sha256 of the bytes, in hex."""

    key: str
    size: int
    digest: str


class ObjectStore(Protocol):
    """A local directory or a bucket. Keys are made by the service and contain no name of a user."""

    async def put(self, key: str, chunks: AsyncIterator[bytes], limit: int | None = None) -> Stored:
        """Write an object: it appears whole, or not at all when `chunks` raises, more than
        `limit` bytes come (ValueError) or the process dies. Memory stays bounded."""
        ...

    def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Bytes `start` to `end` (exclusive), in pieces. Raises ObjectMissing."""
        ...

    async def remove(self, key: str) -> None:
        """Remove it; one that is gone is no error."""
        ...

    async def check(self) -> str | None:
        """None when it can be used, else why not."""
        ...

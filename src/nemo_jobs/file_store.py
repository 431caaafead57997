"""Opening the file store that a database and its services agree on."""

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_jobs.domain.model import Unavailable
from nemo_jobs.files.local import LocalObjects
from nemo_jobs.files.objects import ObjectStore, ObjectsUnavailable, Stored
from nemo_jobs.files.opening import open_objects
from nemo_jobs.store.agreement import agreed, settled
from nemo_jobs.store.db import Database
from nemo_jobs.store.tables_access import STORE_CHECK

if TYPE_CHECKING:
    from nemo_jobs.config import Settings

log = logging.getLogger(__name__)

_ANOTHER = (
    "{shown} is not the file store that this database belongs to. All services on one database need the "
    "same store: set files.storage.url to one bucket, or to a directory that they share. If it is the same "
    "store after a restore or a move, put {identity} into its {where} and start again"
)


async def open_file_store(settings: "Settings", data_dir: Path, db: Database) -> ObjectStore:
    """The configured store, which is the one of this database. Raises Unavailable with what to do."""
    objects = open_objects(settings, data_dir)
    problem = await objects.check()
    if problem is not None:
        raise Unavailable(problem)
    if (settings.files.storage.url or "").startswith("memory:"):
        log.warning("files.storage.url is memory: all files are lost when the service stops")
        return objects
    store = AgreedStore(objects, db)
    named = settings.files.storage.url is not None
    if named or await db.read(settled, STORE_CHECK) is not None:
        try:
            await store.agree()
        except ObjectsUnavailable as error:
            raise Unavailable(str(error)) from None
    return store


class AgreedStore:
    """A store that is used only where it is the one of its database.

    Services that nobody gave a store each have a directory of their own, and may share a database
    as long as none of them keeps a file: with the first file, that one's directory is the store.
    """

    def __init__(self, objects: ObjectStore, db: Database) -> None:
        self._objects, self._db = objects, db
        self._agreed = False

    async def agree(self) -> None:
        """Make this the store of the database, if it has none. Raises ObjectsUnavailable when it
        has another one."""
        if self._agreed:
            return
        identity = await self._objects.identity()
        wanted = await self._db.write(agreed, STORE_CHECK, identity)
        if wanted != identity:
            raise ObjectsUnavailable(_told(self._objects, wanted))
        self._agreed = True

    async def put(
        self, key: str, chunks: AsyncIterator[bytes], limit: int | None = None, size: int | None = None
    ) -> Stored:
        await self.agree()
        return await self._objects.put(key, chunks, limit, size)

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        await self.agree()
        async with aclosing(self._objects.read(key, start, end)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                yield piece

    async def remove(self, key: str) -> None:
        await self.agree()
        await self._objects.remove(key)

    async def check(self) -> str | None:
        return await self._objects.check()

    async def identity(self) -> str:
        return await self._objects.identity()


def _told(objects: ObjectStore, identity: str) -> str:
    if isinstance(objects, LocalObjects):
        return _ANOTHER.format(shown=objects.root, identity=identity, where="file store-id")
    return _ANOTHER.format(shown=objects, identity=identity, where="object store-id")

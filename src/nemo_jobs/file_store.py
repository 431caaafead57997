"""Opening the file store that a database and its services agree on."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_jobs.domain.model import Unavailable
from nemo_jobs.files.local import LocalObjects
from nemo_jobs.files.objects import ObjectStore
from nemo_jobs.files.opening import open_objects
from nemo_jobs.store.agreement import agreed
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
    identity = await objects.identity()
    wanted = await db.write(agreed, STORE_CHECK, identity)
    if wanted != identity:
        raise Unavailable(_told(objects, wanted))
    return objects


def _told(objects: ObjectStore, identity: str) -> str:
    if isinstance(objects, LocalObjects):
        return _ANOTHER.format(shown=objects.root, identity=identity, where="file store-id")
    return _ANOTHER.format(shown=objects, identity=identity, where="object store-id")

"""From bytes to a file of a fileset: the one way by which files are written.

A note of the object is stored before the first byte and taken back with the file's row. Whatever
ends an upload in between, the object is removed later, and nobody ever sees half a file.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Unavailable
from nemo_jobs.files.objects import ObjectStore, new_key
from nemo_jobs.store import files
from nemo_jobs.store.db import Database
from nemo_jobs.store.files import FileRecord


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file goes. `path` has passed `domain.paths.checked_path`."""

    workspace: str
    fileset: str
    path: str


async def upload(
    db: Database,
    objects: ObjectStore,
    clock: Clock,
    place: Place,
    chunks: AsyncIterator[bytes],
    *,
    actor: str,
    limit: int | None = None,
    size: int | None = None,
) -> FileRecord:
    """Write a file, also over one that is there. Raises NotFound for the fileset, Conflict when the
    path can't be a file, TooLarge above `limit` bytes, Unavailable, and what `chunks` raises."""
    key = new_key()
    target = await db.write(
        files.begin_upload, place.workspace, place.fileset, place.path, key, clock.now(), durable=False
    )
    try:
        stored = await objects.put(key, chunks, limit, size)
        return await db.write(files.put_file, target.id, place.path, stored, clock.now(), actor)
    except BaseException:
        # If this fails, too, the note itself runs out one day.
        with contextlib.suppress(Unavailable):
            await asyncio.shield(db.write(files.end_upload, key, clock.now(), durable=False))
        raise

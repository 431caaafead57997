"""Removing objects that no file names any more, and what is left of uploads that were cut."""

import asyncio
import logging

from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Unavailable
from nemo_jobs.files.objects import ObjectStore
from nemo_jobs.store import files
from nemo_jobs.store.db import Database

log = logging.getLogger(__name__)

EVERY_SECONDS = 5.0
REMOVALS_A_ROUND = 100


class ObjectSweeper:
    """Removes from the file store what is due. One that fails is tried again later, and later."""

    def __init__(self, db: Database, objects: ObjectStore, clock: Clock) -> None:
        self._db, self._objects, self._clock = db, objects, clock
        self._problem: str | None = None

    def problems(self) -> list[str]:
        """Why removals fail, while they do."""
        return [] if self._problem is None else [f"removing files failed: {self._problem}"]

    async def run(self) -> None:
        while True:
            removed = await self.remove_due()
            await asyncio.sleep(0.1 if removed == REMOVALS_A_ROUND else EVERY_SECONDS)

    async def remove_due(self) -> int:
        """Carry out the removals that are due; how many were tried."""
        now = self._clock.now()
        if not await self._db.read(files.any_removal_due, now, point=True):
            return 0
        due = await self._db.write(files.claim_removals, now, REMOVALS_A_ROUND)
        gone: list[str] = []
        try:
            for key in due:
                await self._objects.remove(key)
                gone.append(key)
            self._problem = None
        except Unavailable as error:
            # The rest of the round would fail as well; each comes again at its own time.
            self._problem = str(error)
            log.warning("files that nothing names are removed later: %s", error)
        finally:
            await self._db.write(files.forget_removals, gone, durable=False)
        return len(due)

"""What is done in the background, slowly: removing ended work, orphans, old jobs, small chunks."""

import asyncio
import logging

from nemo_jobs.backends import api
from nemo_jobs.backends.api import Handle
from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Unavailable
from nemo_jobs.domain.retention import DEFAULT, Retention
from nemo_jobs.engine import plans
from nemo_jobs.engine.orphans import Orphans
from nemo_jobs.engine.reach import Reach
from nemo_jobs.store import compaction, idempotency, jobs, run_ends, steps, storage, tokens
from nemo_jobs.store.db import Database
from nemo_jobs.store.steps import TaskChange

log = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
REMOVALS_A_ROUND = 50
#: Jobs whose storage is given back in one transaction.
RECLAIMED_AT_ONCE = 100
#: Rounds between two looks for orphans and for jobs past their retention.
SELDOM = 300
DAY = 86_400_000_000


class Sweeper:
    """Removes what the outbox lists, workloads that no record knows, and jobs past retention."""

    def __init__(
        self,
        db: Database,
        reach: Reach,
        clock: Clock,
        host: str,
        retention_days: int | None,
        keeps: Retention = DEFAULT,
    ) -> None:
        self._db, self._reach, self._clock, self._host = db, reach, clock, host
        self._retention, self._keeps = retention_days, keeps
        self.orphans = Orphans(db, reach, clock)
        self._failing: dict[str, str] = {}

    def problems(self) -> list[str]:
        """Removals that keep failing."""
        return [f"removing {key} failed: {why}" for key, why in list(self._failing.items())[:5]]

    async def run(self) -> None:
        rounds = 0
        while True:
            await self.reclaim_storage()
            removed = await self.remove_due()
            await self._db.write(compaction.compact_ended, 20)
            if rounds % SELDOM == SELDOM - 1:
                await self.orphans.sweep()
                await self.prune()
                await self._db.write(tokens.purge, self._clock.now(), durable=False)
                await self._db.write(idempotency.forget_keys, self._clock.now(), durable=False)
            rounds += 1
            await asyncio.sleep(0.2 if removed == REMOVALS_A_ROUND else EVERY_SECONDS)

    async def remove_due(self) -> int:
        """Carry out the removals that are due; how many were tried."""
        due = await self._db.read(steps.due_removals, self._host, self._clock.now(), REMOVALS_A_ROUND)
        open_ended = await self._db.read(run_ends.open_ended, [item.key for item in due]) if due else set()
        for item in due:
            handle = Handle.from_json(item.handle)
            backend = self._reach.get(handle.backend)
            if backend is None:
                continue
            seen: tuple[TaskChange, ...] = ()
            try:
                if item.key in open_ended:
                    seen = plans.task_changes((await backend.observe([handle]))[handle.key], None)
                await backend.remove(handle, wipe_storage=item.wipe_storage)
            except (api.BackendError, OSError) as error:
                self._failing[item.key] = str(error)
                pause = min(60, 2 ** min(item.tries, 6)) * 1_000_000
                await self._db.write(steps.retry_removal, item.key, self._clock.now() + pause)
                continue
            self._failing.pop(item.key, None)
            if item.key in open_ended:
                await self._db.write(run_ends.settle_tasks, item.key, seen, self._clock.now())
            await self._db.write(steps.forget_removal, item.key, item.wipe_storage, durable=False)
        return len(due)

    async def reclaim_storage(self) -> int:
        """Give back the storage of jobs whose time is up; of how many."""
        now = self._clock.now()
        if not await self._db.read(storage.any_due, now):
            return 0
        gone = 0
        while (some := await self._db.write(storage.reclaim_due, now, self._keeps, RECLAIMED_AT_ONCE)) > 0:
            gone += some
            if some < RECLAIMED_AT_ONCE:
                break
        log.info("the storage of %d jobs is not kept any longer", gone)
        return gone

    async def prune(self) -> None:
        """Delete ended jobs that are older than the retention, if one is set."""
        if self._retention is None:
            return
        before = self._clock.now() - self._retention * DAY
        try:
            while gone := await self._db.write(jobs.prune, before, 100, False):
                log.info("%d jobs older than %d days were deleted", len(gone), self._retention)
        except Unavailable as error:
            log.warning("old jobs are deleted later: %s", error)

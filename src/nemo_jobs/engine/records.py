"""The followers' door to the database: under one lease, and patient while it is away."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from nemo_jobs.backends.api import Rejected
from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.gpus import wanted
from nemo_jobs.domain.model import Json, StepRecord, Unavailable
from nemo_jobs.store import files, gpus, results, steps
from nemo_jobs.store.db import Database
from nemo_jobs.store.results import Gathered
from nemo_jobs.store.steps import Applied, LogBatch, Outcome
from nemo_jobs.store.storage import Inheritance, inheritance

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Starts whose tokens are known here, should they be tried again.
_REMEMBERED = 1024


class LeasedStarts:
    """What a start asks, under the lease `token`. A database that is away is waited for."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        token: str,
        task_tokens: bool = False,
        pool_of: Callable[[StepRecord], str | None] = lambda step: None,
    ) -> None:
        self._db, self._clock, self._token = db, clock, token
        self._pool_of = pool_of
        self._task_tokens = task_tokens
        self._given: dict[tuple[str, int], str] = {}

    async def inheritance(self, step: StepRecord) -> Inheritance:
        return await self._patiently(inheritance, step)

    async def run_before(self, step_id: str) -> Json | None:
        return await self._patiently(steps.run_before, step_id)

    async def task_token(self, step: StepRecord) -> str:
        """The token for the task of a step that is about to start; empty while none is asked for.

        A start that is tried again here gets the same one, and elsewhere another: what may run
        already keeps its own."""
        if not self._task_tokens:
            return ""
        from nemo_jobs.store import tokens

        run = (step.id, step.generation)
        if run in self._given:
            return self._given[run]
        made = tokens.new_token(tokens.TASK_PREFIX)
        principal, now = f"task:{step.job}", self._clock.now()
        await self._patiently(tokens.add_for_attempt, tokens.hash_of(made), step.attempt_id, principal, now)
        if len(self._given) >= _REMEMBERED:
            self._given.pop(next(iter(self._given)))
        self._given[run] = made
        return made

    async def take_devices(self, step: StepRecord) -> tuple[str, ...] | None:
        """The GPUs of a step that is about to start; empty for one that wants none of a pool, which
        asks nothing of the database. None: it isn't its turn yet, or the lease is gone; it keeps its
        place in the queue, and a wake-up ("work", its id) tells when its turn has come. Raises Rejected
        for a host process that asks for some where nobody gives any out, and for a GPU step that asks
        for none."""
        number = wanted(step.spec["executor"])
        pool = self._pool_of(step) if number or step.provider == "gpu" else None
        if number and pool is None and step.provider == "subprocess":
            raise Rejected(f"asks for {number} GPUs, and this service has no pool of GPUs")
        if pool is not None and not number:
            raise Rejected("asks for no GPU; ask for at least 1, or use provider cpu")
        if pool is None:
            return ()
        now = self._clock.now()
        return await self._patiently(gpus.take_devices, pool, self._token, step.id, now)

    async def release_devices(self, step: StepRecord) -> None:
        """Nothing of the step runs, and it needs no devices for now: others may have them. It also
        leaves the queue."""
        if wanted(step.spec["executor"]):
            await self._patiently(gpus.release_devices, self._token, step.id, durable=False)

    async def _patiently(self, fn: Callable[..., T], *args: object, durable: bool = True) -> T:
        delay = 0.2
        while True:
            try:
                return await self._db.write(fn, *args, durable=durable)
            except Unavailable as error:
                log.warning("the database can't be written now, trying again: %s", error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)


class LeasedRecords(LeasedStarts):
    """Store calls under the lease `token`. A database that is away is waited for: what happened
    to the work is recorded later, never dropped."""

    async def reload(self, step_id: str) -> StepRecord | None:
        return await self._patiently(steps.reload, self._token, step_id)

    async def peek(self, step_id: str) -> StepRecord | None:
        return await self._patiently(steps.peek, step_id)

    async def apply(self, step_id: str, outcome: Outcome, *, durable: bool) -> Applied | None:
        now = self._clock.now()
        return await self._patiently(steps.apply, self._token, step_id, outcome, now, durable=durable)

    async def append(self, step_id: str, batch: LogBatch) -> int | None:
        return await self._patiently(steps.append_logs, self._token, step_id, batch)

    async def last_report(self, step_id: str) -> int | None:
        return await self._patiently(steps.last_report, step_id)

    async def announce(self, keys: Sequence[str]) -> None:
        await self._patiently(files.announce, keys, self._clock.now())

    async def abandon(self, keys: Sequence[str]) -> None:
        await self._patiently(results.abandon, keys, self._clock.now(), durable=False)

    async def gathered(self, step_id: str, left: Sequence[Gathered]) -> list[str] | None:
        return await self._patiently(results.collect, self._token, step_id, left, self._clock.now())

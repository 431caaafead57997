"""What a follower works with: the database under its lease, and what all followers share."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nemo_jobs.backends.api import PlatformInfo
from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Json, StepRecord
from nemo_jobs.domain.retention import DEFAULT, Retention
from nemo_jobs.files.objects import ObjectStore
from nemo_jobs.store.results import Gathered
from nemo_jobs.store.steps import Applied, LogBatch, Outcome
from nemo_jobs.store.storage import Inheritance
from nemo_jobs.vault.secrets import Secrets


class StartRecords(Protocol):
    """What a start asks of the database, under the step's lease."""

    async def inheritance(self, step: StepRecord) -> Inheritance: ...

    async def run_before(self, step_id: str) -> Json | None: ...

    async def task_token(self, step: StepRecord) -> str: ...

    async def take_devices(self, step: StepRecord) -> tuple[str, ...] | None: ...

    async def release_devices(self, step: StepRecord) -> None: ...


class Records(StartRecords, Protocol):
    """What a follower may do to the database, always under its lease. Waits out a database
    that is away; None means that the lease is gone."""

    async def reload(self, step_id: str) -> StepRecord | None: ...

    async def peek(self, step_id: str) -> StepRecord | None: ...

    async def apply(self, step_id: str, outcome: Outcome, *, durable: bool) -> Applied | None: ...

    async def append(self, step_id: str, batch: LogBatch) -> int | None: ...

    async def last_report(self, step_id: str) -> int | None: ...

    async def announce(self, keys: Sequence[str]) -> None: ...

    async def abandon(self, keys: Sequence[str]) -> None: ...

    async def gathered(self, step_id: str, left: Sequence[Gathered]) -> list[str] | None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all followers share."""

    records: Records
    clock: Clock
    platform: PlatformInfo
    host: str
    log_limit: int
    retention: Retention = DEFAULT
    objects: ObjectStore | None = None  # where results are kept
    secrets: Secrets | None = None


class LeaseLost(Exception):
    """Somebody else looks after the step now."""


class Alarm:
    """What a follower sleeps on. `requested` says that the record is to be read again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()
        self.requested = False

    def ring(self, *, request: bool = False) -> None:
        """Wake it; with `request` because somebody may have changed the record."""
        self.requested = self.requested or request
        self._event.set()

    async def rest(self, until: int, *, look: bool = True) -> None:
        """Until `until`, or until it rings; then, with `look`, the record is read again."""
        seconds = max(0.0, (until - self._clock.now()) / 1e6)
        # A timer of our own: one that cancels the waiting costs several times as much.
        timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up, look)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
        self._event.clear()

    def _time_is_up(self, look: bool) -> None:
        self.ring(request=look)  # the wake-up may have been lost

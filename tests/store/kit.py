"""What the store's tests share: short ways to make jobs and move them."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.domain.model import JobRecord, Json, StepRecord
from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.store import jobs, steps
from nemo_jobs.store.db import Database
from nemo_jobs.store.jobs import NewJob
from nemo_jobs.store.steps import Applied, Chunk, LogBatch, Outcome, TaskChange

SUBMITTED, STARTED, SUCCEEDED = Trigger.SUBMITTED, Trigger.STARTED, Trigger.SUCCEEDED
SECOND = 1_000_000
LEASE = 30 * SECOND


def step_spec(name: str, profile: str = "default", provider: str = "subprocess") -> Json:
    return {
        "name": name,
        "environment": None,
        "config": {},
        "executor": {"provider": provider, "profile": profile, "command": ["true"]},
        "lifecycle": {"staleness_timeout_seconds": 0},
    }


def new_job(name: str, *step_names: str, workspace: str = "default", **given: Any) -> NewJob:
    specs = given.pop("steps", None) or [step_spec(step) for step in step_names or ("main",)]
    fields: dict[str, Any] = {
        "source": "test",
        "spec": "{}",
        "fileset": f"job-fileset-{name}",
        "auth_context": '{"principal_id":""}',
        **given,
    }
    return NewJob(workspace, name, platform_spec={"steps": specs, "secrets": None}, **fields)


def handle_of(step: StepRecord) -> Json:
    return {"backend": "subprocess", "key": step.key, "version": 1, "data": {"host": "h1", "pid": 4711}}


@dataclass
class Store:
    """A database with a clock and one engine's lease."""

    db: Database
    clock: ManualClock = field(default_factory=ManualClock)
    token: str = "token-1"
    host: str = "h1"
    names: "itertools.count[int]" = field(default_factory=itertools.count)

    def now(self) -> int:
        self.clock.advance(0.001)
        return self.clock.now()

    async def write(self, fn: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        return await self.db.write(fn, *args, **kw)

    async def read(self, fn: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        return await self.db.read(fn, *args, **kw)

    async def create(self, name: str | None = None, *step_names: str, **given: Any) -> JobRecord:
        new = new_job(name or f"job-{next(self.names)}", *step_names, **given)
        made: JobRecord = await self.db.write(jobs.create_job, new, self.now(), "tester")
        return made

    async def job(self, name: str, workspace: str = "default") -> JobRecord:
        found: JobRecord = await self.db.read(jobs.get_job, workspace, name)
        return found

    async def step(self, job: str, name: str = "main") -> StepRecord:
        found: StepRecord = await self.db.read(jobs.get_step, "default", job, name)
        return found

    async def request(self, job: str, trigger: Trigger) -> JobRecord:
        after: JobRecord = await self.db.write(jobs.request, "default", job, trigger, self.now(), "tester")
        return after

    async def claim(self, profile: str = "default", limit: int = 10, **given: Any) -> list[StepRecord]:
        now = self.now()
        lease = {"owner": "o1", "token": self.token, "host": self.host, "now": now, "until": now + LEASE}
        found: list[StepRecord] = await self.db.write(
            steps.claim_waiting, "subprocess", profile, **{**lease, "limit": limit, **given}
        )
        return found

    async def claim_due(self, **given: Any) -> list[StepRecord]:
        now = self.now()
        lease = {"owner": "o1", "token": self.token, "host": self.host, "now": now, "until": now + LEASE}
        found: list[StepRecord] = await self.db.write(steps.claim_due, **{**lease, "limit": 10, **given})
        return found

    async def apply(self, step: StepRecord, *triggers: Trigger, **outcome: Any) -> Applied | None:
        durable = outcome.pop("durable", True)
        applied: Applied | None = await self.db.write(
            steps.apply, self.token, step.id, Outcome(triggers, **outcome), self.now(), durable=durable
        )
        return applied

    async def moved(self, step: StepRecord, *triggers: Trigger, **outcome: Any) -> StepRecord:
        applied = await self.apply(step, *triggers, **outcome)
        assert applied is not None
        return applied.step

    async def running(self, name: str | None = None, *step_names: str, **given: Any) -> StepRecord:
        """A job whose first step is active, with a handle."""
        job = await self.create(name, *step_names, **given)
        claimed = next(step for step in await self.claim() if step.job_id == job.id)
        return await self.moved(claimed, SUBMITTED, STARTED, **self.started(claimed))

    def started(self, step: StepRecord) -> Json:
        return {
            "handle": handle_of(step),
            "host": self.host,
            "generation": step.generation,
            "tasks": (TaskChange("task-1", 0, State.ACTIVE, {"pid": 4711}),),
        }

    async def ended(self, name: str | None = None, trigger: Trigger = SUCCEEDED) -> JobRecord:
        """A job of one step that has ended."""
        step = await self.running(name)
        await self.apply(step, trigger)
        return await self.job(step.job)


def batch(
    *texts: str, at: int = 1000, task: str = "task-1", stream: str = "stdout", cursor: int = 0
) -> LogBatch:
    """One chunk of lines."""
    data = "".join(f"{text}\n" for text in texts).encode()
    return LogBatch((Chunk(task, stream, at, len(texts), data),), {"at": cursor})

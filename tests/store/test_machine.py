"""Random histories of requests, outcomes and reports; after each act everything must hold."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.domain.model import Conflict, JobRecord, StepRecord
from nemo_jobs.domain.retention import DEFAULT
from nemo_jobs.domain.states import TERMINAL, WORKING, State, Trigger, rollup
from nemo_jobs.store import attempts, jobs, rerun, steps, storage, workspaces
from nemo_jobs.store.attempts import AttemptQuery
from nemo_jobs.store.db import Database, Tx
from nemo_jobs.store.rerun import Rerun
from nemo_jobs.store.steps import Outcome, TaskChange
from tests.bed.postgres import PostgresServer
from tests.store.conftest import TEMPLATE
from tests.store.kit import LEASE, SECOND, Store, batch, handle_of, new_job
from tests.store.test_reports import patch, put

ENGINE = [t for t in Trigger if t not in (Trigger.CANCEL, Trigger.PAUSE, Trigger.RESUME)]
REQUESTS = [Trigger.CANCEL, Trigger.PAUSE, Trigger.RESUME]
LIKELY = [
    (Trigger.SUBMITTED,),
    (Trigger.SUBMITTED, Trigger.STARTED),
    (Trigger.SUBMITTED, Trigger.STARTED, Trigger.SUCCEEDED),
    (Trigger.SUCCEEDED,),
    (Trigger.STOPPED,),
]
TRIGGERS = st.sampled_from(LIKELY) | st.lists(st.sampled_from(ENGINE), max_size=3).map(tuple)
NAMES = st.sampled_from(["a-1", "b-2", "c-3"])


class Histories(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.db = Database.open(self.url)
        self.store = Store(self.db, self.clock)
        self.ended: dict[str, State] = {}
        self.versions: dict[str, int] = {}
        self.run(self.db.start())
        self.run(self.db.write(_empty))
        self.run(self.db.write(workspaces.ensure_defaults, self.clock.now()))

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.db.aclose())
        self.loop.close()

    @rule(name=NAMES, count=st.integers(1, 3))
    def create(self, name: str, count: int) -> None:
        new = new_job(name, *(f"s-{n}" for n in range(count)))
        with contextlib.suppress(Conflict):
            self.run(self.db.write(jobs.create_job, new, self.store.now(), "t"))

    @rule(name=NAMES, trigger=st.sampled_from(REQUESTS))
    def request(self, name: str, trigger: Trigger) -> None:
        if self.has(name):
            self.run(self.store.request(name, trigger))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if not self.has(name):
            return
        job = self.run(self.store.job(name))
        if State(job.state) in TERMINAL:
            self.run(self.db.write(jobs.delete_job, "default", name, self.store.now()))
        else:
            with pytest.raises(Conflict):
                self.run(self.db.write(jobs.delete_job, "default", name, self.store.now()))

    @rule(name=NAMES, from_last=st.booleans())
    def rerun(self, name: str, from_last: bool) -> None:
        if not self.has(name):
            return
        tree = self.run(self.db.read(jobs.status_tree, "default", name))
        asked = Rerun("t", "{}", tree.steps[-1][0].name if from_last else None)
        try:
            after = self.run(self.db.write(rerun.rerun, "default", name, asked, self.store.now()))
        except Conflict as error:
            assert State(tree.job.state) not in TERMINAL or "storage" in str(error)
        else:
            assert State(tree.job.state) in TERMINAL and after == self.run(self.store.job(name))

    @rule(seconds=st.sampled_from([0, 5 * 3600, 8 * 24 * 3600]))
    def reclaim(self, seconds: int) -> None:
        """Of a paused job it is an end too, and what is reclaimed has its removals on the list."""
        self.clock.advance(seconds)
        self.run(self.db.write(storage.reclaim_due, self.store.now(), DEFAULT, 10))

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        for step in self.run(self.store.claim(limit=limit)):
            assert step.state in (State.CREATED, State.RESUMING)
        for step in self.run(self.store.claim_due(limit=limit)):
            assert step.state in WORKING

    @precondition(lambda self: self.held())
    @rule(data=st.data(), triggers=TRIGGERS)
    def outcome(self, data: Any, triggers: tuple[Trigger, ...]) -> None:
        step = data.draw(st.sampled_from(self.held()))
        reason, message = data.draw(
            st.sampled_from([("", ""), ("running", "it runs"), ("lost", "gone"), ("image_pull", "7 %")])
        )
        # The next run has its number while it is prepared, and a handle only when it was started.
        number = step.generation + (step.state is State.RESUMING)
        kept, before = data.draw(st.booleans()), self.removals()
        outcome = Outcome(
            triggers,
            reason,
            message,
            handle=handle_of(step._replace(generation=number)) if data.draw(st.booleans()) else None,
            generation=number,
            kept=kept,
            tasks=(TaskChange("task-1", 0, data.draw(st.sampled_from(State)), {"n": 1}),),
            logs=batch("line") if data.draw(st.booleans()) else None,
            removal_after=data.draw(st.sampled_from([None, 0, SECOND])),
            claim_next=data.draw(st.booleans()),
        )
        applied = self.run(self.db.write(steps.apply, "token-1", step.id, outcome, self.store.now()))
        assert applied is not None
        added = self.removals() - before
        if applied.step.state in TERMINAL:
            stored = self.run(self.db.read(steps.run_before, step.id))
            assert stored is None or stored["key"] in added | before
        elif applied.step.state is not State.PAUSED or kept:
            assert not added
        if stored := self.run(self.db.read(steps.run_before, step.id)):
            # What may still be there is known under each of its names, so that nobody sweeps it away.
            first = stored["key"].rpartition("-")[0] + "-0"
            assert self.run(self.db.read(steps.known_keys, [first, stored["key"]])) == {first, stored["key"]}

    @rule(name=NAMES, state=st.sampled_from(State))
    def report_step(self, name: str, state: State) -> None:
        if not self.has(name):
            return
        tree = self.run(self.db.read(jobs.status_tree, "default", name))
        with contextlib.suppress(Conflict):
            self.run(patch(self.store, state, name, tree.steps[-1][0].name))

    @rule(name=NAMES, state=st.sampled_from(State), task=st.sampled_from(["task-1", "task-2"]))
    def report_task(self, name: str, state: State, task: str) -> None:
        if not self.has(name):
            return
        tree = self.run(self.db.read(jobs.status_tree, "default", name))
        self.run(put(self.store, state, task, name, tree.steps[-1][0].name, status_details={"p": 1}))

    @rule(seconds=st.sampled_from([1, LEASE // SECOND + 1]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @invariant()
    def everything_holds(self) -> None:
        self.run(self.db.read(self.check))

    def check(self, tx: Tx) -> None:
        found, total, _ = jobs.list_jobs(tx, jobs.JobQuery("default", page_size=1000))
        assert total == len(found)
        counted = Counter(job.state for job in found)
        kept = tx.run(sa.text("SELECT state, sum(n) FROM job_count GROUP BY state"))
        assert {state: int(n) for state, n in kept if n} == dict(counted)
        for job in found:
            tree = jobs.status_tree(tx, "default", job.name)
            states = [step.state for step, _ in tree.steps]
            total_steps = tree.steps[0][0].steps_total
            assert job.state == rollup(states, total_steps)
            assert all(state is State.COMPLETED for state in states[:-1])
            assert [step.ordinal for step, _ in tree.steps] == list(range(len(states)))
            assert job.message == tree.steps[-1][0].message and job.reason == tree.steps[-1][0].reason
            self.check_attempts(tx, job)
            for step, tasks in tree.steps:
                self.check_step(step)
                if step.state in (State.ERROR, State.CANCELLED):
                    assert all(task.state in TERMINAL for task in tasks)
        summed = "SELECT coalesce(sum(n), 0) FROM log_chunk c WHERE c.attempt_id = a.id"
        lines = tx.run(sa.text(f"SELECT a.log_lines, ({summed}) FROM attempt a"))
        assert all(stored == int(there) for stored, there in lines)

    def check_attempts(self, tx: Tx, job: JobRecord) -> None:
        found, total, _ = attempts.list_attempts(
            tx, "default", job.name, AttemptQuery(sort="seq", page_size=1000)
        )
        assert [one.seq for one in found] == list(range(total))
        assert found[-1].id == job.attempt_id and found[-1].state == job.state
        assert all(not one.is_current and State(one.state) in TERMINAL for one in found[:-1])
        for one in found[:-1]:
            query = jobs.StepQuery(workspace="default", job=job.name, attempt_id=one.id, page_size=1000)
            for step in jobs.list_steps(tx, query)[0]:
                self.check_step(step)
                assert step.state in TERMINAL
        due = tx.one(sa.text("SELECT storage_due_at FROM job WHERE id = :id"), {"id": job.id})
        rests = State(job.state) in TERMINAL or job.state == State.PAUSED
        assert due is not None and (due[0] is None or rests)

    def check_step(self, step: StepRecord) -> None:
        assert step.due_at > 0 and step.reason and step.active_used >= 0
        assert step.since >= step.created_at and step.updated_at >= step.created_at
        assert step.db_version >= self.versions.get(step.id, 1)
        self.versions[step.id] = step.db_version
        assert self.ended.get(step.id, step.state) is step.state
        if step.state in TERMINAL:
            self.ended[step.id] = step.state
            assert step.lease_token is None
        assert (step.active_since is not None) == (step.state is State.ACTIVE)

    def removals(self) -> set[str]:
        return {
            row[0] for row in self.run(self.db.read(lambda tx: tx.run(sa.text("SELECT key FROM removal"))))
        }

    def has(self, name: str) -> bool:
        row = self.run(
            self.db.read(lambda tx: tx.one(sa.text("SELECT 1 FROM job WHERE name = :n"), {"n": name}))
        )
        return row is not None

    def held(self) -> list[StepRecord]:
        found, _ = self.run(self.db.read(jobs.list_steps, jobs.StepQuery(page_size=100)))
        return [step for step in found if step.lease_token == "token-1"]


def _empty(tx: Tx) -> None:
    for table in ("job", "job_count", "removal", "event"):
        tx.count(sa.text(f"DELETE FROM {table}"))


@pytest.fixture(params=["sqlite", "postgresql"])
def machine(request: pytest.FixtureRequest) -> Iterator[type[Histories]]:
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'jobs.db'}"
        if request.param == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            url = server.new_database(TEMPLATE)
        yield type("OnThisDatabase", (Histories,), {"url": url})


def test_random_histories_keep_every_promise(machine: type[Histories]) -> None:
    quick = settings(
        max_examples=15 if "sqlite" in machine.url else 6,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=quick)

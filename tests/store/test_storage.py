"""When the storage that a job's steps share is given back."""

import asyncio
import json
from dataclasses import replace

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.model import Conflict, Invalid
from nemo_jobs.domain.retention import DEFAULT, HOUR, Kept, Retention
from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.store import jobs, rerun, steps, storage
from nemo_jobs.store.rerun import Rerun
from tests.store.kit import SECOND, SUCCEEDED, Store
from tests.store.test_reports import patch

#: Rules whose times can be told apart.
KEEPS = Retention(
    paused=100, most_paused=500, failed=40, profiles={("subprocess", "default"): Kept(completed=10, ended=30)}
)


async def reclaimed(store: Store, keeps: Retention = KEEPS) -> int:
    gone: int = await store.write(storage.reclaim_due, store.now(), keeps, 10)
    return gone


async def wiped(store: Store) -> list[str]:
    found = await store.read(steps.due_removals, store.host, store.now(), 100)
    return [removal.key for removal in found if removal.wipe_storage]


@pytest.mark.parametrize(
    ("trigger", "seconds"),
    [(SUCCEEDED, 10), (Trigger.FAILED, 40), (Trigger.CANCEL, 30)],
)
async def test_an_end_decides_how_long_storage_is_kept(store: Store, trigger: Trigger, seconds: int) -> None:
    step = await store.running("j")
    if trigger is Trigger.CANCEL:
        await store.request("j", trigger)
        trigger = Trigger.STOPPED
    await store.apply(step, trigger, retention=KEEPS, removal_after=SECOND)
    store.clock.advance(seconds - 1)
    assert not await store.read(storage.any_due, store.now()) and await reclaimed(store) == 0
    store.clock.advance(1)
    assert await store.read(storage.any_due, store.now()) and await reclaimed(store) == 1
    assert await wiped(store) == [step.key]
    details = json.loads((await store.job("j")).status_details)
    assert details["storage_reclaimed_at"].endswith("Z")
    assert await reclaimed(store) == 0


async def test_the_longer_of_two_times_holds_for_a_failure(store: Store) -> None:
    for keeps, seconds in (
        (KEEPS, 40),
        (replace(KEEPS, failed=5), 30),
    ):
        assert keeps.due(State.ERROR, ("subprocess", "default"), 0) == seconds * SECOND
    assert DEFAULT.due(State.ERROR, ("any", "profile"), 0) == 4 * HOUR * SECOND


async def test_a_workload_goes_before_the_storage_of_its_job(store: Store) -> None:
    step = await store.running("j")
    await store.apply(step, Trigger.FAILED, retention=KEEPS, removal_after=5 * SECOND)
    store.clock.advance(6)
    (removal,) = await store.read(steps.due_removals, "h1", store.now(), 10)
    assert not removal.wipe_storage
    await store.write(steps.forget_removal, removal.key)
    store.clock.advance(40)
    assert await reclaimed(store) == 1 and await wiped(store) == [step.key]


async def paused(store: Store, **control: int) -> None:
    step = await store.running("j", control=json.dumps(control) if control else None)
    await store.request("j", Trigger.PAUSE)
    await store.apply(step, Trigger.STOPPED, retention=KEEPS)
    assert (await store.job("j")).state == "paused"


@pytest.mark.parametrize(("own", "seconds"), [(None, 100), (0, 0), (7, 7), (10_000, 500)])
async def test_a_paused_job_is_cancelled_when_its_storage_goes(
    store: Store, own: int | None, seconds: int
) -> None:
    await paused(store, **({} if own is None else {"pause_ttl_seconds": own}))
    if seconds:
        store.clock.advance(seconds - 1)
        assert await reclaimed(store) == 0
        store.clock.advance(1)
    assert await reclaimed(store) == 1
    job = await store.job("j")
    assert (job.state, job.reason) == ("cancelled", "storage_expired")
    assert f"paused for {seconds} s" in job.message
    assert "storage_reclaimed_at" in json.loads(job.status_details)
    assert len(await wiped(store)) == 1
    total = await store.read(lambda tx: tx.run(sa.text("SELECT state, sum(n) FROM job_count GROUP BY state")))
    assert {state: int(n) for state, n in total if n} == {"cancelled": 1}
    store.clock.advance(1000)
    before = await store.job("j")
    await reclaimed(store)
    assert await store.job("j") == before


async def test_a_job_that_was_resumed_keeps_its_storage(store: Store) -> None:
    await paused(store)
    store.clock.advance(99)
    await store.request("j", Trigger.RESUME)
    store.clock.advance(1000)
    assert await reclaimed(store) == 0 and await wiped(store) == []


async def test_a_rerun_takes_the_storage_along_and_its_time_begins_anew(store: Store) -> None:
    step = await store.running("j")
    await store.apply(step, Trigger.FAILED, retention=KEEPS, removal_after=SECOND)
    store.clock.advance(39)
    await store.write(rerun.rerun, "default", "j", Rerun("me", "{}"), store.now())
    store.clock.advance(1000)
    assert await reclaimed(store) == 0
    await store.request("j", Trigger.CANCEL)  # before it started: the storage is where it was
    store.clock.advance(HOUR + 1)
    assert await reclaimed(store) == 1
    assert await wiped(store) == [step.key]


async def test_the_time_after_a_pause_is_changed_without_a_new_start(store: Store) -> None:
    await paused(store)
    store.clock.advance(50)
    change = ("default", "j", 60, KEEPS, store.now())
    changed = await store.write(storage.set_pause_ttl, *change)
    assert json.loads(changed.control) == {"pause_ttl_seconds": 60} and changed == await store.job("j")
    unchanged = await store.write(storage.set_pause_ttl, "default", "j", None, KEEPS, store.now())
    assert unchanged == changed
    with pytest.raises(Invalid, match=r"pause_ttl_seconds is 501; at most 500 s"):
        await store.write(storage.set_pause_ttl, "default", "j", 501, KEEPS, store.now())
    store.clock.advance(9)
    assert await reclaimed(store) == 0
    store.clock.advance(1)
    assert await reclaimed(store) == 1
    with pytest.raises(Conflict, match="storage of job 'j' is gone"):
        await store.write(storage.set_pause_ttl, "default", "j", 60, KEEPS, store.now())


async def test_a_lower_maximum_holds_for_jobs_that_are_paused_already(store: Store) -> None:
    await paused(store)
    assert await store.write(storage.shorten_pauses, KEEPS) == 0
    assert await store.write(storage.shorten_pauses, replace(KEEPS, most_paused=20)) == 1
    store.clock.advance(20)
    assert await reclaimed(store) == 1


async def test_a_job_that_never_ran_has_nothing_to_give_back(store: Store) -> None:
    await store.create("j")
    await store.request("j", Trigger.CANCEL)
    store.clock.advance(HOUR + 1)
    assert await reclaimed(store) == 1
    assert "storage_reclaimed_at" not in json.loads((await store.job("j")).status_details)


async def test_an_end_from_outside_keeps_storage_by_the_same_rules(store: Store) -> None:
    await store.running("j")
    await patch(store, State.ERROR, retention=KEEPS)
    store.clock.advance(39)
    assert await reclaimed(store) == 0
    store.clock.advance(1)
    assert await reclaimed(store) == 1


async def test_looking_for_what_is_due_reads_an_index_of_what_may_be(store: Store) -> None:
    """Not all jobs: there may be hundreds of thousands that ended."""
    query = "SELECT id FROM job WHERE storage_due_at <= 5 ORDER BY storage_due_at LIMIT 10"
    if store.db.dialect == "sqlite":
        plan = await store.read(lambda tx: tx.run(sa.text(f"EXPLAIN QUERY PLAN {query}")))
    else:
        plan = await store.read(
            lambda tx: [
                tx.count(sa.text("SET LOCAL enable_seqscan = off")),
                *tx.run(sa.text(f"EXPLAIN {query}")),
            ]
        )
    assert "job_storage_due" in str(plan)


async def test_the_job_with_control_is_stored_as_given(store: Store) -> None:
    made = await store.create("j", control='{"pause_ttl_seconds":5}')
    assert made.control == '{"pause_ttl_seconds":5}' and await store.job("j") == made
    found, _, _ = await store.read(jobs.list_jobs, jobs.JobQuery("default"))
    assert found == [made]


async def test_a_rerun_and_the_end_of_storage_come_one_after_the_other(store: Store) -> None:
    """Whichever is first: what was kept is there, or it is said to be gone."""
    kept = gone = 0
    for number in range(12):
        step = await store.running(f"j-{number}", "one", "two")
        await store.apply(step, SUCCEEDED, retention=KEEPS, claim_next=False)
        (last,) = await store.claim()
        await store.apply(last, Trigger.SUBMITTED, Trigger.STARTED, Trigger.FAILED, retention=KEEPS)
    store.clock.advance(41)
    now = store.now()
    names = [f"j-{number}" for number in range(12)]
    asked = Rerun("me", "{}", "two")
    reruns = [store.write(rerun.rerun, "default", name, asked, now) for name in names]
    given_back = [store.write(storage.reclaim_due, now, KEEPS, 1) for _ in range(6)]
    answers = await asyncio.gather(*reruns[:6], *given_back, *reruns[6:], return_exceptions=True)
    assert all(isinstance(answer, int | tuple | Conflict) for answer in answers), answers
    for name in names:
        job = await store.job(name)
        details = json.loads(job.status_details)
        kept += job.state == "active"
        gone += job.state == "error"
        assert (job.state == "error") == ("storage_reclaimed_at" in details)
    assert kept + gone == 12 and kept >= 6

"""Reruns and ends from outside, with the engine at work."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from nemo_jobs.domain.names import task_name
from nemo_jobs.domain.retention import Kept, Retention
from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.store import attempts, jobs, rerun, steps
from nemo_jobs.store.attempts import AttemptQuery
from nemo_jobs.store.rerun import Rerun
from tests.engine.bench import WORKSPACE, Bench, open_place


@pytest.fixture
async def bench(tmp_path) -> AsyncIterator[Bench]:
    made = Bench(await open_place(f"{tmp_path}/nemo-jobs.db", ttl_seconds_after_finished=100))
    yield made
    await made.close()


async def again(bench: Bench, name: str = "moth", from_step: str | None = None) -> str:
    asked = Rerun("test", "{}", from_step)
    job = await bench.db.write(rerun.rerun, WORKSPACE, name, asked, bench.place.clock.now())
    return job.attempt_id


async def swept(bench: Bench) -> None:
    """Wait until every removal that is due was carried out and forgotten; the engine may be at one."""
    engine = bench.engine or await bench.start()
    for _ in range(200):
        await engine._sweeper.remove_due()
        if not await bench.db.read(steps.due_removals, "here", bench.place.clock.now(), 10):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("removals are left")


async def report(bench: Bench, state: State, name: str = "moth", step: str = "step-0") -> None:
    await bench.db.write(
        jobs.update_step_status,
        WORKSPACE,
        name,
        step,
        state=state,
        expected_step_id=None,
        status_details={},
        error_details=None,
        now=bench.place.clock.now(),
        actor="test",
    )


async def test_the_storage_goes_along_and_what_is_left_of_the_old_attempt_goes(bench: Bench) -> None:
    engine = await bench.start()
    await bench.create("moth", {}, {"FAKE_EXIT_CODE": "3"}, {})
    first = (await bench.until("moth", "error")).attempt_id
    world = bench.place.world
    assert world.storage == {first}
    second = await again(bench, from_step="step-1")
    job = await bench.until("moth", "error")
    assert job.attempt_id == second and world.storage == {second}
    # One start for each run: the step before was not started again.
    assert sorted(world.starts.values()) == [1, 1, 1]
    sweeper = engine._sweeper
    bench.place.clock.advance(101)
    await sweeper.reclaim_storage()
    await swept(bench)
    assert world.works == {} and world.storage == {second}
    bench.place.clock.advance(4 * 3600)
    assert await sweeper.reclaim_storage() == 1
    await swept(bench)
    assert world.storage == set()
    third = await again(bench)
    job = await bench.until("moth", "error")
    assert job.attempt_id == third and world.storage == {third}


async def test_a_rerun_that_needs_storage_that_somebody_deleted_fails_and_says_so(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {}, {"FAKE_EXIT_CODE": "3"})
    await bench.until("moth", "error")
    bench.place.world.storage.clear()
    await again(bench, from_step="step-1")
    job = await bench.until("moth", "error")
    assert (job.reason, "not there any more" in job.message) == ("rejected", True)
    await again(bench, from_step="step-0")
    assert (await bench.until("moth", "error")).reason == "exit_nonzero"


async def test_a_crash_between_rerun_and_start_starts_it_once(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_EXIT_CODE": "3"})
    await bench.until("moth", "error")
    await bench.crash()
    second = await again(bench)
    await bench.start()
    await bench.until("moth", "error")
    await bench.crash()
    await bench.start()
    assert bench.place.world.storage == {second}
    assert sorted(bench.place.world.starts.values()) == [1, 1]


async def test_a_paused_job_is_cancelled_with_its_storage(bench: Bench) -> None:
    engine = await bench.start()
    engine._sweeper._keeps = keeps = Retention(profiles={("subprocess", "default"): Kept()})
    await bench.create("moth", {"FAKE_RUN_SECONDS": "forever"})
    await bench.until("moth", "active")
    await bench.ask("moth", Trigger.PAUSE)
    await bench.until("moth", "paused")
    bench.place.clock.advance(keeps.paused - 1)
    assert await engine._sweeper.reclaim_storage() == 0
    bench.place.clock.advance(2)
    assert await engine._sweeper.reclaim_storage() == 1
    await swept(bench)
    job = await bench.job("moth")
    assert (job.state, job.reason) == ("cancelled", "storage_expired")
    assert bench.place.world.storage == set()


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("state", [State.COMPLETED, State.PAUSED])
async def test_an_end_from_outside_ends_the_work_and_its_task(
    bench: Bench, state: State, crash: bool
) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "forever"})
    await bench.until("moth", "active")
    if crash:
        await bench.crash()
    await report(bench, state)
    (task,) = await bench.db.read(jobs.list_tasks, WORKSPACE, "moth", "step-0")
    assert task.state is State.ACTIVE  # it lives: its own report of the end would still count
    await swept(bench)
    (task,) = await bench.db.read(jobs.list_tasks, WORKSPACE, "moth", "step-0")
    assert task.state is State.CANCELLED
    assert f"reported as {state}" in task.status_details["message"]
    assert bench.place.world.works == {}
    assert (await bench.job("moth")).state == state


async def test_a_task_that_ended_by_itself_is_told_as_it_ended(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "5", "FAKE_EXIT_CODE": "4"})
    await bench.until("moth", "active")
    await bench.crash()
    await report(bench, State.COMPLETED)
    bench.place.clock.advance(10)
    await swept(bench)
    (task,) = await bench.db.read(jobs.list_tasks, WORKSPACE, "moth", "step-0")
    assert (task.state, task.status_details["exit_code"]) == (State.ERROR, 4)


async def test_a_job_resumed_after_a_pause_from_outside_has_a_task_of_its_own(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "50"})
    await bench.until("moth", "active")
    await report(bench, State.PAUSED)
    await bench.ask("moth", Trigger.RESUME)
    await bench.until("moth", "active")
    await swept(bench)
    found = await bench.db.read(jobs.list_tasks, WORKSPACE, "moth", "step-0")
    assert sorted(task.state for task in found) == [State.ACTIVE, State.CANCELLED]
    step = await bench.db.read(jobs.get_step, WORKSPACE, "moth", "step-0")
    assert {task.name: task.state for task in found}[task_name(step.key)] is State.ACTIVE
    await bench.move_until("moth", "completed")


async def test_what_was_asked_for_while_a_removal_ran_is_still_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wipe that comes while the workload is being removed is not forgotten with it."""
    engine = await bench.start()
    await bench.create("moth")
    job = await bench.until("moth", "completed")
    bench.place.clock.advance(101)
    backend = engine._reach.get("subprocess")
    assert backend is not None
    remove = backend.remove

    async def slow(handle, *, wipe_storage=False):
        await remove(handle, wipe_storage=wipe_storage)
        if not wipe_storage:
            await bench.db.write(jobs.delete_job, WORKSPACE, "moth", bench.place.clock.now())

    monkeypatch.setattr(backend, "remove", slow)
    await engine._sweeper.remove_due()
    assert bench.place.world.storage == {job.attempt_id}
    await swept(bench)
    assert bench.place.world.storage == set()


async def test_attempts_of_a_job_that_runs_again_and_again_stay_apart(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_OUTPUT": "a\n"})
    for _ in range(4):
        await bench.until("moth", "completed")
        await again(bench)
    await bench.until("moth", "completed")
    found, total, _ = await bench.db.read(attempts.list_attempts, WORKSPACE, "moth", AttemptQuery())
    assert [one.seq for one in found] == [4, 3, 2, 1, 0] and total == 5
    assert all(one.state == "completed" and json.loads(one.status_details) == {} for one in found)

"""The engine from claim to end, with a scripted backend and a real database."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from nemo_jobs.domain.model import run_key
from nemo_jobs.domain.profiles import ProfileSet
from nemo_jobs.domain.states import Trigger
from nemo_jobs.engine.engine import Engine
from nemo_jobs.engine.follow import Follower
from nemo_jobs.store import jobs, logs
from nemo_jobs.testing import FakeBackend
from tests.engine.bench import WORKSPACE, Bench, details, open_place


@pytest.fixture
async def bench(tmp_path, request) -> AsyncIterator[Bench]:
    marker = request.node.get_closest_marker("config")
    place = await open_place(f"{tmp_path}/nemo-jobs.db", **(marker.kwargs if marker else {}))
    made = Bench(place)
    yield made
    await made.close()


async def lines_of(bench: Bench, name: str) -> list[str]:
    job = await bench.job(name)
    flt = logs.LogFilter(None, None)
    found, total, _ = await bench.db.read(logs.page, job.attempt_id, flt, 0, 10000)
    assert total == len(found)
    return [line.text for line in found]


async def tree_of(bench: Bench, name: str):
    tree = await bench.db.read(jobs.status_tree, WORKSPACE, name)
    return tree.steps


async def test_a_job_of_two_steps_runs_one_after_the_other(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_OUTPUT": "one\n"}, {"FAKE_OUTPUT": "two\nthree"})
    job = await bench.until("moth", "completed")
    assert job.reason == "finished"
    assert await lines_of(bench, "moth") == ["one", "two", "three"]
    assert list(bench.place.world.starts.values()) == [1, 1]


async def test_a_failed_step_ends_the_job_and_says_why(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_EXIT_CODE": "9"}, {"FAKE_OUTPUT": "never"})
    job = await bench.until("moth", "error")
    assert (job.reason, job.message) == ("exit_nonzero", "step-0 ended with code 9")
    assert details(job.error_details)["exit_code"] == 9
    assert len(bench.place.world.starts) == 1
    ((step, tasks),) = await tree_of(bench, "moth")
    assert step.status_details["reason"] == "exit_nonzero"
    assert step.status_details["exit_code"] == 9
    assert tasks[0].status_details["exit_code"] == 9


async def test_a_rejected_step_is_an_error_at_once(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_SUBMIT_ERROR": "rejected"})
    job = await bench.until("moth", "error")
    assert job.reason == "rejected"


async def test_a_backend_that_is_away_is_waited_for_with_the_reason_shown(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_SUBMIT_ERROR": "unavailable:2"})
    job = await bench.until_told("moth", "backend_unavailable")
    assert job.state == "created"
    await bench.move_until("moth", "completed")


@pytest.mark.config(max_concurrent=1)
async def test_c007_a_cancelled_job_that_waited_never_starts(bench: Bench) -> None:
    await bench.start()
    await bench.create("first", {"FAKE_RUN_SECONDS": "10"})
    await bench.until("first", "active")
    await bench.create("second")
    assert (await bench.job("second")).reason == "queued"
    assert await bench.ask("second", Trigger.CANCEL) == "cancelled"
    assert await bench.ask("second", Trigger.CANCEL) == "cancelled"
    await bench.create("third")
    await bench.move_until("third", "completed")
    assert len(bench.place.world.starts) == 2


async def test_c010_cancel_waits_until_the_end_is_proven(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "forever", "FAKE_IGNORE_STOP": "1"})
    await bench.until("moth", "active")
    assert await bench.ask("moth", Trigger.CANCEL) == "cancelling"
    while not bench.place.world.calls["stop"]:
        await asyncio.sleep(0)
    await bench.move(5)
    assert (await bench.job("moth")).state == "cancelling"
    await bench.move(6)
    job = await bench.until("moth", "cancelled")
    assert job.reason == "cancelled_by_user"


async def test_pause_and_resume_make_a_new_run_and_paused_time_does_not_count(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "20"})
    await bench.until("moth", "active")
    assert await bench.ask("moth", Trigger.PAUSE) == "pausing"
    await bench.until("moth", "paused")
    await bench.move(100_000)
    assert await bench.ask("moth", Trigger.RESUME) == "resuming"
    await bench.until("moth", "active")
    await bench.move_until("moth", "completed")
    assert sorted(bench.place.world.starts.values()) == [1, 1]


@pytest.mark.config(ttl_seconds_active=100)
async def test_the_active_limit_ends_the_work_and_names_itself(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "forever", "FAKE_IGNORE_STOP": "1"})
    await bench.until("moth", "active")
    await bench.move(101)
    await asyncio.sleep(0.05)
    assert (await bench.job("moth")).state == "active"
    await bench.move(11)
    job = await bench.until("moth", "error")
    assert job.reason == "active_timeout"
    assert "100 s" in job.message


async def test_a_step_has_a_limit_of_its_own(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "forever"}, lifecycle={"timeout_seconds": 7})
    await bench.until("moth", "active")
    await bench.move(8)
    job = await bench.until("moth", "error")
    assert job.reason == "active_timeout"
    assert "lifecycle.timeout_seconds" in job.message


@pytest.mark.config(ttl_seconds_before_active=30)
async def test_work_that_never_runs_ends_by_the_limit_before_active(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_WAIT_SECONDS": "forever"})
    await bench.until("moth", "pending")
    await bench.move(31)
    job = await bench.until("moth", "error")
    assert job.reason == "before_active_timeout"


async def test_a_silent_task_is_stale(bench: Bench) -> None:
    await bench.start()
    lifecycle = {"staleness_timeout_seconds": 30}
    await bench.create("moth", {"FAKE_RUN_SECONDS": "forever"}, lifecycle=lifecycle)
    await bench.until("moth", "active")
    await bench.move(31)
    assert (await bench.until("moth", "error")).reason == "stale"


async def test_work_that_vanished_is_lost(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "forever", "FAKE_LOST": "5"})
    await bench.until("moth", "active")
    await bench.move(6)
    assert (await bench.until("moth", "error")).reason == "lost"


async def test_c026_a_new_engine_takes_up_running_work(bench: Bench) -> None:
    await bench.start()
    script = {"FAKE_RUN_SECONDS": "60", "FAKE_LINES": "60", "FAKE_EXIT_CODE": "3"}
    await bench.create("moth", script)
    await bench.until("moth", "active")
    await bench.move(20)
    await bench.crash()
    await bench.move(45)
    await bench.start()
    job = await bench.until("moth", "error")
    assert job.message == "step-0 ended with code 3"
    assert await lines_of(bench, "moth") == [f"line {number}" for number in range(60)]
    assert list(bench.place.world.starts.values()) == [1]


async def test_work_started_just_before_a_crash_is_taken_up_and_not_started_again(bench: Bench) -> None:
    await bench.start()
    bench.place.world.away = ""
    await bench.create("moth", {"FAKE_RUN_SECONDS": "60"})
    while not bench.place.world.starts:
        await asyncio.sleep(0)
    await bench.crash()
    await bench.start()
    assert await bench.ask("moth", Trigger.CANCEL) == "cancelling"
    await bench.until("moth", "cancelled")
    assert list(bench.place.world.starts.values()) == [1]


async def test_polling_alone_gives_the_same_result_as_wake_ups(bench: Bench) -> None:
    engine = await bench.start()
    engine._unhook()
    await bench.create("moth", {"FAKE_OUTPUT": "a\n"}, {"FAKE_OUTPUT": "b\n"})
    await bench.move_until("moth", "completed")
    assert await lines_of(bench, "moth") == ["a", "b"]


async def test_c078_a_step_whose_profile_was_removed_ends_with_the_reason(bench: Bench) -> None:
    await bench.create("moth")
    bench.place = replace(bench.place, profiles=ProfileSet({}))
    await bench.start()
    job = await bench.until("moth", "error")
    assert job.reason == "profile_removed"
    assert "subprocess/default" in job.message


@pytest.mark.config(on_shutdown="stop")
async def test_a_profile_may_end_its_work_with_the_service(bench: Bench) -> None:
    engine = await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "forever"})
    await bench.until("moth", "active")
    await engine.stop()
    assert engine.running_on_host() == 0
    await bench.start()
    assert (await bench.until("moth", "error")).reason == "service_stopped"


async def test_work_goes_on_after_an_ordinary_stop(bench: Bench) -> None:
    engine = await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "60"})
    await bench.until("moth", "active")
    await engine.stop()
    assert engine.running_on_host() == 1
    await bench.start()
    await bench.move_until("moth", "completed")
    assert list(bench.place.world.starts.values()) == [1]


async def test_c056_a_log_past_its_limit_ends_in_a_marker_and_the_job_runs_on(bench: Bench) -> None:
    bench.place.log_limit = 1000
    await bench.start()
    script = {"FAKE_OUTPUT": ("y" * 99 + "\n") * 21, "FAKE_LINES": "50", "FAKE_RUN_SECONDS": "50"}
    await bench.create("moth", script)
    await bench.until("moth", "active")
    await asyncio.sleep(0.1)
    await bench.move_until("moth", "completed")
    found = await lines_of(bench, "moth")
    assert found[-1] == "[nemo-jobs] log limit of 1000 bytes reached; later output is discarded"
    assert len(found) < 71


@pytest.mark.config(cleanup_completed_jobs_immediately=True)
async def test_ended_work_is_removed_and_its_storage_with_the_last_step(bench: Bench) -> None:
    engine = await bench.start()
    await bench.create("moth", {}, {})
    await bench.until("moth", "completed")
    assert engine is not None
    for _ in range(400):
        if not bench.place.world.works and not bench.place.world.storage:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"left: {bench.place.world.works}, {bench.place.world.storage}")


async def test_c095_a_backend_that_can_not_be_used_is_the_reason_of_those_that_wait(bench: Bench) -> None:
    bench.place.world.away = "the disk is full"
    await bench.create("moth")
    await bench.start()
    for _ in range(200):
        if (await bench.job("moth")).reason == "backend_unavailable":
            break
        await asyncio.sleep(0.01)
    assert "the disk is full" in (await bench.job("moth")).message
    bench.place.world.away = ""
    assert bench.engine is not None
    await bench.engine._reach.probe_all()
    await bench.move_until("moth", "completed")
    assert list(bench.place.world.starts.values()) == [1]


@pytest.mark.config(ttl_seconds_after_finished=2)
async def test_a_pause_frees_the_run_and_keeps_what_the_job_stored(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "forever"})
    await bench.until("moth", "active")
    await bench.ask("moth", Trigger.PAUSE)
    await bench.until("moth", "paused")
    await bench.move(10)
    for _ in range(400):
        if not bench.place.world.works:
            break
        await asyncio.sleep(0.01)
    assert not bench.place.world.works
    assert bench.place.world.storage == {(await bench.job("moth")).attempt_id}


async def all_looked_at(engine: Engine, bench: Bench) -> None:
    """Until the engine knows that nothing waits."""
    profile = bench.place.profiles.get("subprocess", "default")
    assert profile is not None
    while engine._places.may_wait(profile):
        await asyncio.sleep(0)


async def created_held(bench: Bench, name: str) -> bool:
    """Create a job the way the API does beside an engine; whether it was held from the start."""
    engine = bench.engine
    assert engine is not None
    coming = engine.arrive("subprocess", "default")
    assert coming is not None
    arrival, lease = coming
    now, step = bench.place.clock.now(), None
    if lease is None:
        await bench.db.write(jobs.create_job, bench.new_job(name), now, "test")
    else:
        _, step = await bench.db.write(jobs.create_held, bench.new_job(name), lease, now, "test")
    engine.arrived(arrival, step)
    return lease is not None


async def test_a_job_that_finds_a_place_is_held_from_its_creation(bench: Bench) -> None:
    engine = await bench.start()
    await all_looked_at(engine, bench)
    assert await created_held(bench, "moth")
    assert (await bench.until("moth", "completed")).reason == "finished"
    assert list(bench.place.world.starts.values()) == [1]


@pytest.mark.config(max_concurrent=1)
async def test_who_comes_later_never_passes_one_that_waits(bench: Bench) -> None:
    engine = await bench.start()
    await all_looked_at(engine, bench)
    await bench.create("first", {"FAKE_RUN_SECONDS": "5"})
    await bench.until("first", "active")
    for name in ("second", "third"):
        bench.place.clock.advance(0.001)
        assert not await created_held(bench, name)
    for name in ("first", "second", "third"):
        await bench.move_until(name, "completed", step=1.0)
    steps = [(await tree_of(bench, name))[0][0].id for name in ("first", "second", "third")]
    assert list(bench.place.world.starts) == [run_key(step, 0) for step in steps]


async def test_a_step_that_nobody_follows_is_taken_up_with_a_heartbeat(bench: Bench) -> None:
    engine = await bench.start()
    await all_looked_at(engine, bench)
    coming = engine.arrive("subprocess", "default")
    assert coming is not None and coming[1] is not None
    arrival, lease = coming
    await bench.db.write(jobs.create_held, bench.new_job("moth"), lease, bench.place.clock.now(), "test")
    engine.arrived(arrival, None)  # as after a commit whose answer was lost
    await asyncio.sleep(0.05)
    assert (await bench.job("moth")).state == "created"
    await engine._beat()
    assert (await bench.until("moth", "completed")).reason == "finished"


async def test_output_stored_before_the_start_was_recorded_is_not_stored_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> bool:
        await asyncio.Event().wait()
        return False

    monkeypatch.setattr(FakeBackend, "trim", AsyncMock())  # what is stored is still there
    monkeypatch.setattr(Follower, "_record", never)
    await bench.start()
    await bench.create("moth", {"FAKE_OUTPUT": "one\ntwo\n", "FAKE_RUN_SECONDS": "5"})
    async with asyncio.timeout(10):
        while await lines_of(bench, "moth") != ["one", "two"]:
            await asyncio.sleep(0.002)
    assert (await bench.job("moth")).state == "created"  # the service dies before it says more
    await bench.crash()
    monkeypatch.undo()
    monkeypatch.setattr(FakeBackend, "trim", AsyncMock())
    # Another service takes the waiting step and starts it again under the same key.
    monkeypatch.setattr("nemo_jobs.engine.engine.adopt_started", AsyncMock())
    await bench.start()
    await bench.move_until("moth", "completed", step=1.0)
    assert await lines_of(bench, "moth") == ["one", "two"]
    assert list(bench.place.world.starts.values()) == [1]

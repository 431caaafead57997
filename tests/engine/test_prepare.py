"""Work that has to be prepared, starts that last, pauses that keep what ran, engines that are away."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from nemo_jobs.domain.states import Trigger
from nemo_jobs.engine import prepare
from nemo_jobs.engine.orphans import ORPHAN_GRACE
from nemo_jobs.store import jobs
from nemo_jobs.testing_containers import ContainerWorld, FakeContainers
from tests.engine.bench import WORKSPACE, Bench, details, open_place


@pytest.fixture
async def bench(tmp_path, request) -> AsyncIterator[Bench]:
    marker = request.node.get_closest_marker("config")
    place = await open_place(f"{tmp_path}/nemo-jobs.db", **(marker.kwargs if marker else {}))
    place.world, place.backend = ContainerWorld(), FakeContainers
    made = Bench(place)
    yield made
    await made.close()


def world(bench: Bench) -> ContainerWorld:
    assert isinstance(bench.place.world, ContainerWorld)
    return bench.place.world


async def step_of(bench: Bench, name: str):
    return (await bench.db.read(jobs.status_tree, WORKSPACE, name)).steps[-1][0]


async def called(bench: Bench, method: str, more: int = 1) -> None:
    """Until the backend was asked so many times more."""
    calls, wanted = world(bench).calls, world(bench).calls[method] + more
    while calls[method] < wanted:
        await asyncio.sleep(0.001)


async def test_c003_a_step_is_pending_and_says_how_far_its_preparation_is(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_PREPARE_SECONDS": "100", "FAKE_OUTPUT": "hello\n"})
    job = await bench.until_told("moth", "image_pull", "0 of 100 s")
    assert job.state == "pending"
    await bench.move(40)
    job = await bench.until_told("moth", "image_pull", "40 of 100 s")
    assert (job.state, world(bench).calls["submit"]) == ("pending", 0)
    await bench.move(60)
    await bench.until("moth", "completed")
    assert list(world(bench).starts.values()) == [1]


async def test_c003_what_cannot_be_had_ends_the_step_at_once_with_the_reason(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_PREPARE_ERROR": "rejected"})
    job = await bench.until("moth", "error")
    assert (job.reason, job.message) == ("image_pull", "step-0: there is no such image")
    assert not world(bench).starts


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("what", ["FAKE_PREPARE_SECONDS", "FAKE_SUBMIT_SECONDS"])
async def test_c007_cancelled_while_it_is_prepared_or_started_it_never_runs(
    bench: Bench, what: str, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "LAST_CHANCE", 0.01)
    monkeypatch.setattr(prepare, "TELL_SECONDS", 0.01)
    await bench.start()
    await bench.create("moth", {what: "forever"})
    await bench.until("moth", "pending")
    if killed:
        await bench.crash()
    assert await bench.ask("moth", Trigger.CANCEL) == "cancelling"
    if killed:
        bench.place.clock.advance(60)
        await bench.start()
    job = await bench.until("moth", "cancelled")
    assert job.message == "cancelled before it started"
    assert not world(bench).starts


async def test_a_start_that_lasts_tells_its_stages_and_goes_on_after_a_crash(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "TELL_SECONDS", 0.01)
    await bench.start()
    await bench.create("moth", {"FAKE_SUBMIT_SECONDS": "20", "FAKE_RUN_SECONDS": "5"})
    job = await bench.until_told("moth", "starting", "creating the container")
    assert job.state == "pending"
    await bench.crash()
    bench.place.clock.advance(5)
    await bench.start()
    await bench.move_until("moth", "completed")
    assert list(world(bench).starts.values()) == [1]


@pytest.mark.config(ttl_seconds_active=1000)
async def test_c018_a_start_that_was_broken_off_and_happens_all_the_same_is_found_and_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "LAST_CHANCE", 0.01)
    monkeypatch.setattr(prepare, "TELL_SECONDS", 0.01)
    await bench.start()
    script = {"FAKE_SUBMIT_SECONDS": "forever", "FAKE_SUBMIT_LATE": "1", "FAKE_RUN_SECONDS": "forever"}
    await bench.create("moth", script)
    await bench.until("moth", "pending")
    await bench.ask("moth", Trigger.CANCEL)
    await bench.until("moth", "cancelled")
    assert list(world(bench).starts.values()) == [1]
    (work,) = world(bench).works.values()
    assert work.stop_at is not None


@pytest.mark.config(ttl_seconds_before_active=60)
@pytest.mark.parametrize("what", ["FAKE_PREPARE_SECONDS", "FAKE_SUBMIT_SECONDS"])
async def test_the_limit_before_it_runs_holds_for_preparing_and_starting(
    bench: Bench, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "LAST_CHANCE", 0.01)
    monkeypatch.setattr(prepare, "TELL_SECONDS", 0.01)
    await bench.start()
    await bench.create("moth", {what: "forever"})
    await bench.until("moth", "pending")
    for _ in range(5):
        await bench.move(11)
        assert (await bench.job("moth")).state == "pending"
    job = await bench.move_until("moth", "error")
    assert job.reason == "before_active_timeout"
    assert "60 s" in job.message and "ttl_seconds_before_active" in job.message
    assert not world(bench).works


async def test_a_pause_while_it_is_prepared_is_one_and_it_goes_on_later(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_PREPARE_SECONDS": "50"})
    await bench.until("moth", "pending")
    await bench.ask("moth", Trigger.PAUSE)
    await bench.until("moth", "paused")
    bench.place.clock.advance(1000)
    await bench.ask("moth", Trigger.RESUME)
    await bench.move_until("moth", "completed", step=20)
    assert list(world(bench).starts.values()) == [1]


async def test_c051_preparing_waits_for_an_engine_that_is_away_and_says_so(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_PREPARE_SECONDS": "10"})
    await bench.until("moth", "pending")
    world(bench).away = "the engine is gone"
    await bench.move(5)
    job = await bench.until_told("moth", "backend_unavailable", "the engine is gone")
    assert job.state == "pending"
    for _ in range(4):
        await bench.move(40)
    world(bench).away = ""
    await bench.move_until("moth", "completed", step=31)


async def test_c051_running_work_keeps_its_state_while_the_engine_is_away_and_says_when_it_is_back(
    bench: Bench,
) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "900"})
    await bench.until("moth", "active")
    world(bench).away = "the engine is gone"
    await bench.move(61)
    job = await bench.until_told("moth", "backend_unavailable", "the engine is gone")
    assert job.state == "active"
    await bench.move(61)
    assert (await bench.job("moth")).state == "active"
    world(bench).away = ""
    await bench.move(31)
    job = await bench.until_told("moth", "running", "running")
    assert job.state == "active"
    await bench.move_until("moth", "completed", step=300)


async def test_a_container_that_somebody_paused_keeps_its_state_and_says_so(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "900"})
    await bench.until("moth", "active")
    world(bench).suspended[(await step_of(bench, "moth")).key] = "its container is paused"
    await bench.move(1)
    job = await bench.until_told("moth", "suspended", "its container is paused")
    assert job.state == "active"
    world(bench).suspended.clear()
    await bench.move(1)
    await bench.until_told("moth", "running", "running")


async def test_a_pause_keeps_the_container_and_resuming_goes_on_with_it(bench: Bench) -> None:
    engine = await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "50"})
    for times in (1, 2):
        await bench.until("moth", "active")
        await bench.ask("moth", Trigger.PAUSE)
        await bench.until("moth", "paused")
        for _ in range(3):  # nothing that cleans up takes it away, however long it is paused
            await bench.move(7200)
            await engine._sweeper.remove_due()
            await engine._sweeper.orphans.sweep()
        assert len(world(bench).works) == 1
        await bench.ask("moth", Trigger.RESUME)
        await bench.until("moth", "active")
        assert list(world(bench).resumed.values()) == [times]
    await engine._sweeper.orphans.sweep()
    await bench.move_until("moth", "completed", step=60)
    assert len(world(bench).works) == 1
    await _sweep(bench)
    assert not world(bench).works


async def test_a_resumed_container_stays_as_long_as_others_after_its_end(bench: Bench) -> None:
    engine = await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "50", "FAKE_EXIT_CODE": "3"})
    await bench.until("moth", "active")
    await bench.ask("moth", Trigger.PAUSE)
    await bench.until("moth", "paused")
    await bench.ask("moth", Trigger.RESUME)
    await bench.move_until("moth", "error", step=60)
    for _ in range(3):
        await engine._sweeper.orphans.sweep()
        bench.place.clock.advance(ORPHAN_GRACE)
    await engine._sweeper.remove_due()
    assert len(world(bench).works) == 1
    bench.place.clock.advance(3600)
    await engine._sweeper.remove_due()
    assert not world(bench).works


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_resumed_run_that_was_not_recorded_is_not_started_again(bench: Bench, crashes: bool) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "50"})
    await bench.until("moth", "active")
    await bench.ask("moth", Trigger.PAUSE)
    await bench.until("moth", "paused")
    await bench.ask("moth", Trigger.RESUME)
    await called(bench, "submit")
    if crashes:
        await bench.crash()
        await bench.start()
    await bench.move_until("moth", "completed", step=60)
    assert set(world(bench).starts.values()) == {1}
    assert sum(world(bench).resumed.values()) == 1


async def test_cancelled_while_paused_its_container_goes(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "50"})
    await bench.until("moth", "active")
    await bench.ask("moth", Trigger.PAUSE)
    await bench.until("moth", "paused")
    await bench.ask("moth", Trigger.CANCEL)
    await bench.move_until("moth", "cancelled")
    await _sweep(bench)
    assert not world(bench).works


async def test_a_step_whose_backend_is_not_here_keeps_its_state_until_it_comes(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {"FAKE_RUN_SECONDS": "50"})
    await bench.until("moth", "active")
    await bench.crash()
    bench.place.clock.advance(60)
    engine = await bench.start(backends={})
    job = await bench.until_told("moth", "backend_unavailable")
    assert job.state == "active"
    assert details((await step_of(bench, "moth")).error_details) == {}
    await engine.add(FakeContainers(bench.place.clock, world(bench)))
    await bench.move_until("moth", "completed", step=20)
    assert list(world(bench).starts.values()) == [1]


async def _sweep(bench: Bench) -> None:
    assert bench.engine is not None
    bench.place.clock.advance(8 * 3600)
    await bench.engine._sweeper.reclaim_storage()
    await bench.engine._sweeper.remove_due()

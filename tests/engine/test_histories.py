"""Random histories: whatever is asked and whenever the engine dies, every job comes to its end,
no run is started twice, and no line is lost or doubled."""

import asyncio
import contextlib
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_jobs.domain.model import Conflict
from nemo_jobs.domain.states import Trigger
from nemo_jobs.engine import prepare
from nemo_jobs.store import attempts, jobs, logs, rerun
from nemo_jobs.store.attempts import AttemptQuery
from nemo_jobs.store.rerun import Rerun
from nemo_jobs.testing_containers import ContainerWorld, FakeContainers
from tests.engine.bench import WORKSPACE, Bench, open_place

SCRIPTS = [
    {"FAKE_OUTPUT": "a\nb\n"},
    {"FAKE_RUN_SECONDS": "7", "FAKE_LINES": "7"},
    {"FAKE_EXIT_CODE": "4", "FAKE_RUN_SECONDS": "3"},
    {"FAKE_RUN_SECONDS": "forever", "FAKE_IGNORE_STOP": "1"},
    {"FAKE_SUBMIT_ERROR": "unavailable:2"},
    {"FAKE_SUBMIT_ERROR": "rejected"},
    {"FAKE_WAIT_SECONDS": "4", "FAKE_RUN_SECONDS": "2"},
    {"FAKE_RUN_SECONDS": "30", "FAKE_LOST": "2"},
]
#: What only containers do: they are prepared, start slowly, and go on after a pause.
OF_CONTAINERS = [
    {"FAKE_PREPARE_SECONDS": "8", "FAKE_OUTPUT": "a\nb\n"},
    {"FAKE_PREPARE_SECONDS": "forever"},
    {"FAKE_PREPARE_SECONDS": "1", "FAKE_PREPARE_ERROR": "unavailable:2", "FAKE_RUN_SECONDS": "5"},
    {"FAKE_PREPARE_ERROR": "rejected"},
    {"FAKE_SUBMIT_SECONDS": "4", "FAKE_RUN_SECONDS": "7", "FAKE_LINES": "7"},
    {"FAKE_SUBMIT_SECONDS": "forever"},
    {"FAKE_SUBMIT_SECONDS": "forever", "FAKE_SUBMIT_LATE": "1", "FAKE_RUN_SECONDS": "forever"},
    {"FAKE_PREPARE_SECONDS": "3", "FAKE_SUBMIT_SECONDS": "3", "FAKE_SUBMIT_LATE": "1"},
]


def actions(scripts) -> st.SearchStrategy:
    return st.one_of(
        st.tuples(st.just("create"), st.lists(st.sampled_from(scripts), min_size=1, max_size=3)),
        st.tuples(
            st.sampled_from(["cancel", "pause", "resume", "rerun", "rerun_last", "delete"]), st.integers(0, 5)
        ),
        st.tuples(st.just("move"), st.sampled_from([0.5, 3.0, 40.0])),
        st.tuples(st.just("crash"), st.booleans()),
        st.tuples(st.just("turns"), st.integers(0, 12)),
        st.tuples(st.just("away"), st.booleans()),
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(actions(SCRIPTS), min_size=3, max_size=14))
def test_every_history_ends_well(history) -> None:
    asyncio.run(asyncio.wait_for(_play(history), 50))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=st.lists(actions(SCRIPTS + OF_CONTAINERS), min_size=3, max_size=14))
def test_every_history_of_containers_ends_well(history) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "LAST_CHANCE", 0.005)
        patch.setattr(prepare, "TELL_SECONDS", 0.005)
        asyncio.run(asyncio.wait_for(_play(history, containers=True), 50))


async def _play(history, *, containers: bool = False) -> None:
    with tempfile.TemporaryDirectory() as folder:
        limits = {"ttl_seconds_active": 60, "ttl_seconds_before_active": 90}
        place = await open_place(f"{folder}/nemo-jobs.db", max_concurrent=2, **limits)
        if containers:
            place.world, place.backend = ContainerWorld(), FakeContainers
        bench = Bench(place)
        await bench.start()
        names: list[str] = []
        for action, argument in history:
            await _do(bench, names, action, argument)
        await _do(bench, names, "away", False)
        await _settle(bench, names)
        await _check(bench, names)
        await _clean(bench, names)
        await bench.close()


async def _do(bench: Bench, names: list[str], action: str, argument) -> None:
    if action == "create":
        bench.made += 1
        names.append(f"job-{bench.made}")
        await bench.create(names[-1], *argument)
    elif action == "move":
        await bench.move(argument)
    elif action == "turns":
        for _ in range(argument):
            await asyncio.sleep(0)
    elif action == "crash":
        await bench.crash()
        if argument:
            bench.place.clock.advance(5)
        await bench.start()
    elif action == "away":
        bench.place.world.away = "it is away" if argument else ""
        assert bench.engine is not None
        await bench.engine._reach.probe_all()
    elif names and action == "delete":
        with contextlib.suppress(Conflict):
            name = names[argument % len(names)]
            await bench.db.write(jobs.delete_job, WORKSPACE, name, bench.place.clock.now())
            names.remove(name)
    elif names and action.startswith("rerun"):
        await _rerun(bench, names[argument % len(names)], from_last=action == "rerun_last")
    elif names:
        await bench.ask(names[argument % len(names)], Trigger(action))


async def _rerun(bench: Bench, name: str, *, from_last: bool) -> None:
    """From the start, or from the step that ended last; of one that has not ended it is refused."""
    tree = await bench.db.read(jobs.status_tree, WORKSPACE, name)
    asked = Rerun("test", "{}", tree.steps[-1][0].name if from_last else None)
    ended = tree.job.state in ("completed", "error", "cancelled")
    try:
        job = await bench.db.write(rerun.rerun, WORKSPACE, name, asked, bench.place.clock.now())
    except Conflict:
        assert not ended
    else:
        assert job.attempt_id != tree.job.attempt_id  # it may have ended since it was looked at


async def _settle(bench: Bench, names: list[str]) -> None:
    for _ in range(80):
        states = {(await bench.job(name)).state for name in names}
        if states <= {"completed", "error", "cancelled", "paused"}:
            return
        await bench.move(10)
        await asyncio.sleep(0.02)
    jobs_left = [await bench.job(name) for name in names]
    raise AssertionError(f"stuck: {[(job.name, job.state, job.message) for job in jobs_left]}")


async def _check(bench: Bench, names: list[str]) -> None:
    assert all(times == 1 for times in bench.place.world.starts.values()), bench.place.world.starts
    for name in names:
        tree = await bench.db.read(jobs.status_tree, WORKSPACE, name)
        if tree.job.state == "completed":
            assert all(step.state == "completed" for step, _ in tree.steps)
        found, total, _ = await bench.db.read(
            attempts.list_attempts, WORKSPACE, name, AttemptQuery(sort="seq")
        )
        assert [one.seq for one in found] == list(range(total))
        assert [one.is_current for one in found] == [False] * (total - 1) + [True]
        assert all(one.state in ("completed", "error", "cancelled") for one in found[:-1])
        await _check_logs(bench, [one.id for one in found])
        # Storage is with one attempt at most, whatever moved it and whenever that was interrupted.
        assert len(bench.place.world.storage & {one.id for one in found}) <= 1


async def _clean(bench: Bench, names: list[str]) -> None:
    """Long after the end of everything nothing is left of it, whether the jobs were deleted or not."""
    for name in names:
        await bench.ask(name, Trigger.CANCEL)
    await _settle(bench, names)
    assert bench.engine is not None
    sweeper = bench.engine._sweeper
    for _ in range(4):
        bench.place.clock.advance(40 * 24 * 3600)
        await sweeper.reclaim_storage()
        await sweeper.orphans.sweep()
        await sweeper.remove_due()
    assert not bench.place.world.works and not bench.place.world.storage


async def _check_logs(bench: Bench, attempt_ids: list[str]) -> None:
    for attempt_id in attempt_ids:
        found, total, _ = await bench.db.read(logs.page, attempt_id, logs.LogFilter(None, None), 0, 10000)
        assert [line.seq for line in found] == list(range(total))
        by_task: dict[str, list[str]] = {}
        for line in found:
            by_task.setdefault(line.task, []).append(line.text)
        for lines in by_task.values():
            assert lines == ["a", "b"] or lines == [f"line {n}" for n in range(len(lines))]

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from nemo_jobs.domain.model import Conflict, Invalid, NotFound, StepRecord, TaskRecord
from nemo_jobs.domain.states import TERMINAL, WRITABLE, State, Trigger
from nemo_jobs.store import jobs, reports, steps
from tests.store.kit import SUBMITTED, SUCCEEDED, Store

#: How a step gets into each state by writes from outside.
WAYS: dict[State, tuple[State, ...]] = {
    State.CREATED: (),
    State.PENDING: (State.PENDING,),
    State.ACTIVE: (State.ACTIVE,),
    State.PAUSING: (State.PAUSING,),
    State.PAUSED: (State.PAUSED,),
    State.RESUMING: (State.PAUSED, State.RESUMING),
    State.CANCELLING: (State.CANCELLING,),
    State.COMPLETED: (State.ACTIVE, State.COMPLETED),
    State.ERROR: (State.ERROR,),
    State.CANCELLED: (State.CANCELLED,),
}


async def patch(store: Store, state: State, job: str = "j", step: str = "main", **given: Any) -> StepRecord:
    fields = {"expected_step_id": None, "status_details": {}, "error_details": None, **given}
    after: StepRecord = await store.write(
        jobs.update_step_status, "default", job, step, state=state, **fields, now=store.now(), actor="me"
    )
    return after


async def put(
    store: Store, state: State, name: str = "task-a", job: str = "j", step: str = "main", **given: Any
) -> TaskRecord:
    fields = {"status_details": None, "error_details": None, "error_stack": None, **given}
    after: TaskRecord = await store.write(
        jobs.put_task, "default", job, step, name, state=state, **fields, now=store.now(), actor="me"
    )
    return after


async def test_what_is_said_of_a_step_has_a_limit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MAX_DETAILS", 1000)
    await store.create("j", "main")
    await patch(store, State.ACTIVE, status_details={"a": "x" * 400})
    too_much: tuple[dict[str, Any], ...] = (
        {"status_details": {"b": "x" * 600}},
        {"error_details": {"message": "x" * 600}},
        {"status_details": {"b": "x" * 300}, "error_details": {"message": "x" * 300}},
    )
    for more in too_much:
        with pytest.raises(
            Invalid, match=r"details of step 'main' would have \d+ bytes; at most 1000 are kept"
        ):
            await patch(store, State.ERROR, "j", "main", **more)
    step = await patch(store, State.ERROR, status_details={"a": "y"}, error_details={"message": "x" * 900})
    assert step.state is State.ERROR
    assert (await patch(store, State.ERROR)).error_details == {"message": "x" * 900}


@pytest.mark.parametrize("before", State)
async def test_a_step_takes_exactly_the_states_that_the_contract_allows(store: Store, before: State) -> None:
    for number, after in enumerate(State):
        name = f"j-{number}"
        await store.create(name)
        for state in WAYS[before]:
            await patch(store, state, name)
        was = await store.step(name)
        if after is before or after in WRITABLE[before]:
            now = await patch(store, after, name)
            assert now.state is after and now == await store.step(name)
            assert (await store.job(name)).state == after
            assert (now.db_version == was.db_version) == (after is before)
        else:
            with pytest.raises(Conflict, match=f"step 'main' can't become {after}: it is {before}"):
                await patch(store, after, name)
            assert await store.step(name) == was


async def test_details_and_error_of_a_step(store: Store) -> None:
    await store.create("j")
    await patch(store, State.ACTIVE, status_details={"a": 1, "b": 1})
    after = await patch(store, State.ACTIVE, status_details={"b": 2}, error_details={"x": 1})
    assert {**after.status_details, "a": 1, "b": 2} == after.status_details
    after = await patch(store, State.ERROR, status_details={"message": "it broke"})
    assert after.error_details == {"x": 1} and after.message == "it broke" and after.reason == "reported"
    assert (await store.job("j")).error_details == '{"x":1}'


async def test_an_outside_end_makes_the_next_step_and_wakes_its_engine(store: Store) -> None:
    step = await store.running("j", "one", "two")
    await patch(store, State.COMPLETED, step="one")
    assert (await store.step("j", "two")).state is State.CREATED
    assert await store.read(steps.reload, store.token, step.id) is None
    (removal,) = await store.read(steps.due_removals, "h1", store.now(), 10)
    assert removal.key == step.key


async def test_c100_an_ended_step_is_not_raised_from_the_dead(store: Store) -> None:
    await store.ended("j")
    before = await store.job("j"), await store.step("j")
    with pytest.raises(Conflict, match="can't become active: it is completed"):
        await patch(store, State.ACTIVE)
    with pytest.raises(Conflict, match="not other-step"):
        await patch(store, State.COMPLETED, expected_step_id="other-step")
    late = await put(store, State.ACTIVE, "task-1", status_details={"epoch": 9})
    assert late.state is State.ACTIVE or late.state is State.COMPLETED
    assert (await store.job("j")).state == before[0].state and await store.step("j") == before[1]


async def test_c100_of_writers_at_the_same_time_one_moves_the_step(store: Store) -> None:
    await store.create("j")
    await patch(store, State.ACTIVE)
    targets = [State.COMPLETED, State.ERROR, State.CANCELLED, State.PAUSED] * 5
    results = await asyncio.gather(*(patch(store, target) for target in targets), return_exceptions=True)
    after = await store.step("j")
    assert after.state is not State.ACTIVE
    for target, result in zip(targets, results, strict=True):
        if isinstance(result, StepRecord):
            assert result.state is target
        else:
            assert isinstance(result, Conflict), result
    hops = [e for e in await store.read(jobs.events, 0, 1000, after.job_id) if e.kind == "step"]
    for first, second in pairwise(hops):
        assert first.to_state == second.from_state


async def test_a_step_of_a_missing_job_or_name(store: Store) -> None:
    with pytest.raises(NotFound, match="no job 'j'"):
        await patch(store, State.ACTIVE)
    await store.create("j")
    with pytest.raises(NotFound, match="no step 'other' in job 'j' of workspace 'default'"):
        await patch(store, State.ACTIVE, step="other")
    with pytest.raises(NotFound, match="no step 'other'"):
        await store.read(jobs.list_tasks, "default", "j", "other")
    with pytest.raises(NotFound, match="no task 'task-x' in step 'main' of job 'j'"):
        await store.read(jobs.get_task, "default", "j", "main", "task-x")


async def test_a_task_is_created_by_its_first_report(store: Store) -> None:
    await store.running("j")
    made = await put(store, State.ACTIVE, status_details={"epoch": 1}, error_stack="a\0b")
    assert (made.state, made.status_details, made.created_by) == (State.ACTIVE, {"epoch": 1}, "me")
    assert made.error_stack == "a\ufffdb" and made.reported_at is not None
    assert await store.read(jobs.get_task, "default", "j", "main", "task-a") == made
    assert await store.read(jobs.get_task, "default", "j", "main", made.id) == made
    assert (await put(store, State.PENDING, "task-b")).status_details == {}


async def test_what_the_tasks_of_a_step_are_and_say_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status of a job shows all of it."""
    monkeypatch.setattr(reports, "MAX_SAID", 1000)
    await store.running("j")
    first = await put(store, State.ACTIVE, error_stack="x" * 600)
    with pytest.raises(Invalid, match=r"'main' would have \d+ characters; at most 1000 are kept"):
        await put(store, State.ACTIVE, "task-b", error_stack="x" * 400)
    with pytest.raises(Invalid, match="would have"):
        await put(store, State.ERROR, error_details={"x": "y" * 400})
    found = await store.read(jobs.list_tasks, "default", "j", "main")
    assert [task for task in found if task.name == "task-a"] == [first]
    assert "task-b" not in [task.name for task in found]
    monkeypatch.setattr(reports, "MAX_TASKS", len(found))
    with pytest.raises(Invalid, match=f"has {len(found)} tasks already, which is the most"):
        await put(store, State.ACTIVE, "task-z")
    assert (await put(store, State.ACTIVE)).error_stack == "x" * 600


async def test_progress_travels_up_to_the_job_and_backend_data_do_not(store: Store) -> None:
    await store.running("j")
    await put(store, State.ACTIVE, status_details={"percentage_done": 35})
    await put(store, State.ACTIVE, status_details={"epoch": 2})
    assert (await store.job("j")).status_details == '{"percentage_done":35,"epoch":2}'


async def test_a_report_with_nothing_new_is_a_sign_of_life_but_no_version(store: Store) -> None:
    step = await store.running("j")
    assert await store.read(steps.last_report, step.id) is None
    first = await put(store, State.ACTIVE, status_details={"epoch": 1})
    store.clock.advance(5)
    second = await put(store, State.ACTIVE, status_details={"epoch": 1})
    assert second.db_version == first.db_version and second.updated_at == first.updated_at
    assert second.reported_at > first.reported_at  # type: ignore[operator]
    assert await store.read(steps.last_report, step.id) == second.reported_at


@pytest.mark.parametrize("before", State)
async def test_a_late_or_wrong_report_is_answered_with_the_task_as_it_is(store: Store, before: State) -> None:
    await store.running("j")
    for number, state in enumerate(State):
        name = f"report-{number}"
        made = await put(store, before, name, status_details={"a": 1}, error_details={"e": 1})
        after = await put(store, state, name, status_details={"b": 2})
        if state is before or state in WRITABLE[before]:
            assert after.state is state and after.status_details == {"a": 1, "b": 2}
        elif before is State.ERROR:
            assert after.state is State.ERROR and after.status_details == {"a": 1, "b": 2}
        else:
            assert after.state is before and after.status_details == {"a": 1}
            assert after.db_version == made.db_version


@pytest.mark.parametrize("end", [State.ERROR, State.CANCELLED])
async def test_reports_after_the_end_of_the_step(store: Store, end: State) -> None:
    await store.create("j")
    await put(store, State.ACTIVE, "open", status_details={"a": 1})
    await put(store, State.COMPLETED, "done")
    await patch(store, end, error_details={"message": "why"} if end is State.ERROR else None)
    details = (await store.job("j")).status_details
    opened = await put(store, State.ACTIVE, "open", status_details={"b": 1})
    assert opened.state is end and opened.status_details["a"] == 1 and "b" not in opened.status_details
    assert (await put(store, State.ACTIVE, "done", status_details={"b": 1})).status_details == {}
    unknown = await put(store, State.ACTIVE, "unknown", status_details={"b": 1})
    assert unknown.state is end and "step 'main'" in unknown.status_details["message"]
    ended = await put(store, State.COMPLETED, "ended-itself")
    assert ended.state is State.COMPLETED
    assert (await store.job("j")).status_details == details
    for task in await store.read(jobs.list_tasks, "default", "j", "main"):
        assert task.state in TERMINAL


async def test_an_outside_write_while_an_engine_holds_the_step_is_seen_by_it(store: Store) -> None:
    await store.create("j")
    (step,) = await store.claim()
    await patch(store, State.ACTIVE)
    after = await store.moved(step, SUBMITTED, SUCCEEDED)
    assert after.state is State.COMPLETED
    assert (await store.request("j", Trigger.CANCEL)).state == "completed"


async def test_details_of_a_step_that_others_followed_leave_the_job_alone(store: Store) -> None:
    await store.create("j", "one", "two")
    await patch(store, State.ACTIVE, step="one")
    await patch(store, State.COMPLETED, step="one")
    await patch(store, State.ERROR, step="two", error_details={"message": "it broke"})
    before = await store.job("j")
    after = await patch(store, State.COMPLETED, step="one", status_details={"message": "late", "n": 1})
    assert after.status_details["n"] == 1 and after.message == "late"
    assert await store.job("j") == before
    assert before.error_details == '{"message":"it broke"}'

import asyncio

import pytest

from nemo_jobs.domain.retention import DEFAULT
from nemo_jobs.domain.states import TRANSITIONS, State, Trigger
from nemo_jobs.store import jobs, steps, storage
from nemo_jobs.store.steps import Outcome, TaskChange
from tests.store.kit import LEASE, SECOND, STARTED, SUBMITTED, SUCCEEDED, Store, batch, handle_of, step_spec

FAR = 1 << 60


async def test_waiting_steps_are_claimed_oldest_first_and_once(store: Store) -> None:
    made = [(await store.create(f"j-{n}")).id for n in range(5)]
    first = await store.claim(limit=2)
    second = await store.claim(limit=10)
    assert [step.job_id for step in first + second] == made
    assert await store.claim() == []
    assert all(step.lease_token == store.token for step in first)


async def test_a_claim_looks_at_profile_host_and_due_time(store: Store) -> None:
    await store.create("other-1", steps=[step_spec("main", "big")])
    await store.create("mine-1")
    assert [step.job for step in await store.claim("big", bind=True)] == ["other-1"]
    store.clock.advance(LEASE / SECOND + 1)
    assert await store.claim("big", host="h2") == []  # h1 may have started it
    assert await store.claim("big", host=None) == []
    (mine,) = await store.claim()
    assert mine.host is None
    await store.write(steps.release, store.token, None, store.now() + 5 * SECOND)
    assert await store.claim() == []
    store.clock.advance(6)
    assert [step.job for step in await store.claim(host="h2")] == ["mine-1"]
    assert [step.job for step in await store.claim("big", host="h2")] == ["other-1"]  # h1 let go


async def test_a_step_whose_storage_lies_on_a_host_stays_there_when_it_is_let_go(store: Store) -> None:
    step = await store.running("j", "one", "two")
    await store.apply(step, SUCCEEDED)
    await store.write(steps.release, store.token, None, store.now())
    assert await store.claim(host="h2") == []
    assert [found.name for found in await store.claim(host="h1")] == ["two"]


async def test_leases_change_neither_version_nor_time(store: Store) -> None:
    await store.create("j")
    before = await store.step("j")
    await store.claim()
    await store.write(steps.heartbeat, store.token, store.now() + LEASE)
    await store.write(steps.release, store.token, [before.id], store.now())
    after = await store.step("j")
    assert (after.db_version, after.updated_at) == (before.db_version, before.updated_at)


async def test_a_lapsed_lease_can_be_taken_and_the_old_holder_changes_nothing(store: Store) -> None:
    step = await store.running("j")
    assert await store.claim_due(token="token-2") == []
    store.clock.advance(LEASE / SECOND + 1)
    (taken,) = await store.claim_due(token="token-2")
    assert taken.id == step.id and taken.lease_token == "token-2"
    assert await store.apply(step, SUCCEEDED) is None
    assert await store.write(steps.append_logs, store.token, step.id, batch("late")) is None
    assert await store.read(steps.reload, store.token, step.id) is None
    assert (await store.step("j")).state is State.ACTIVE
    assert await store.write(steps.heartbeat, store.token, FAR) == 0
    assert await store.write(steps.heartbeat, "token-2", FAR) == 1


async def test_due_steps_are_claimed_when_nobody_holds_them(store: Store) -> None:
    step = await store.running("j")
    await store.apply(step, due_at=store.now() + 100 * SECOND)
    await store.write(steps.release, store.token, [step.id], store.now() + 100 * SECOND)
    assert await store.claim_due() == []
    store.clock.advance(101)
    assert await store.claim_due(host="h2") == []
    assert [found.id for found in await store.claim_due()] == [step.id]


async def test_steps_asked_to_end_before_they_started_are_claimed_too(store: Store) -> None:
    await store.create("a-1")
    await store.create("b-1")
    await store.claim()
    for name, trigger in (("a-1", Trigger.CANCEL), ("b-1", Trigger.PAUSE)):
        await store.request(name, trigger)
    await store.write(steps.release, store.token, None, store.now())
    assert [found.state for found in await store.claim_due()] == [State.CANCELLING, State.PAUSING]


async def test_one_step_can_be_claimed_by_id(store: Store) -> None:
    await store.create("j")
    step = await store.step("j")
    lease = {"owner": "o1", "token": "t9", "now": store.now(), "until": store.now() + LEASE}
    claimed = await store.write(steps.claim_one, step.id, **lease)
    assert claimed is not None and claimed.lease_token == "t9"
    assert await store.write(steps.claim_one, step.id, **{**lease, "token": "t8"}) is None
    assert await store.write(steps.claim_one, "platform-job-step-none", **lease) is None


async def test_void_leases_frees_what_an_owner_held(store: Store) -> None:
    await store.create("j")
    await store.claim()
    await store.write(steps.void_leases, "somebody-else")
    assert await store.claim() == []
    await store.write(steps.void_leases, "o1")
    assert len(await store.claim()) == 1


async def test_a_whole_life_in_one_write_walks_every_state(store: Store) -> None:
    job = await store.create("j")
    (step,) = await store.claim()
    task = TaskChange("task-1", 0, State.COMPLETED, {"exit_code": 0})
    after = await store.moved(step, SUBMITTED, STARTED, SUCCEEDED, handle=handle_of(step), tasks=(task,))
    assert after.state is State.COMPLETED and after.db_version == 4 and after.lease_token is None
    hops = [(e.kind, e.from_state, e.to_state) for e in await store.read(jobs.events, 0, 100, job.id)]
    assert hops == [
        ("job", None, "created"),
        ("step", "created", "pending"),
        ("job", "created", "pending"),
        ("step", "pending", "active"),
        ("job", "pending", "active"),
        ("step", "active", "completed"),
        ("job", "active", "completed"),
    ]
    assert (await store.job("j")).state == "completed"


async def test_reason_and_message_are_mirrored_everywhere(store: Store) -> None:
    step = await store.running("j")
    told = {"reason": "exit_nonzero", "message": "main ended with code 3"}
    task = TaskChange("task-1", 0, State.ERROR, {"exit_code": 3}, None, "Traceback\0")
    after = await store.moved(
        step,
        Trigger.FAILED,
        **told,
        error_details={"message": told["message"], "exit_code": 3},
        tasks=(task,),
    )
    job = await store.job("j")
    assert (job.state, job.reason, job.message, job.since) == ("error", *told.values(), after.since)
    assert job.error_details == '{"message":"main ended with code 3","exit_code":3}'
    assert {**after.status_details, **told} == after.status_details
    (seen,) = await store.read(jobs.list_tasks, "default", "j", "main")
    assert seen.status_details == {"pid": 4711, **told, "exit_code": 3}
    assert seen.error_stack == "Traceback\ufffd"


async def test_since_moves_only_with_reason_or_state(store: Store) -> None:
    step = await store.running("j")
    first = await store.moved(step, reason="running", message="it runs")
    second = await store.moved(step, reason="running", message="it still runs")
    assert second.since == first.since and second.db_version == first.db_version + 1
    third = await store.moved(step, reason="stopping", message="ends")
    assert third.since > second.since


async def test_what_changes_nothing_is_no_new_version(store: Store) -> None:
    step = await store.running("j")
    told = {"reason": "running", "message": "it runs", "status_details": {"pid": 1}}
    first = await store.moved(step, **told)
    job = await store.job("j")
    again = await store.moved(step, **told, due_at=store.now() + 7)
    assert (again.db_version, again.updated_at) == (first.db_version, first.updated_at)
    assert await store.job("j") == job
    assert (await store.step("j")).due_at == again.due_at


async def test_a_trigger_without_meaning_is_skipped_and_the_handle_kept(store: Store) -> None:
    step = await store.running("j")
    await store.request("j", Trigger.CANCEL)
    after = await store.moved(step, SUBMITTED, STARTED, handle={**handle_of(step), "data": {"pid": 2}})
    assert after.state is State.CANCELLING and after.handle is not None and after.handle["data"] == {"pid": 2}


async def test_nothing_is_written_when_the_state_is_not_the_expected_one(store: Store) -> None:
    step = await store.running("j")
    await store.request("j", Trigger.CANCEL)
    applied = await store.apply(step, SUCCEEDED, expect=State.ACTIVE, logs=batch("x"))
    assert applied is not None and not applied.written and applied.step.state is State.CANCELLING
    applied = await store.apply(step, SUCCEEDED, expect=State.CANCELLING, logs=batch("x"))
    assert applied is not None and applied.written and applied.step.state is State.CANCELLED


async def test_the_next_step_follows_under_the_same_lease_and_on_the_same_host(store: Store) -> None:
    step = await store.running("j", "one", "two", "three")
    applied = await store.apply(step, SUCCEEDED)
    assert applied is not None and applied.next_step is not None
    second = applied.next_step
    assert (second.name, second.ordinal, second.state, second.host) == ("two", 1, State.CREATED, "h1")
    assert second.lease_token == store.token
    assert second == await store.step("j", "two")
    job = await store.job("j")
    assert (job.state, job.reason) == ("active", "queued")
    applied = await store.apply(second, SUBMITTED, STARTED, SUCCEEDED, claim_next=False)
    assert applied is not None and applied.next_step is not None and applied.next_step.lease_token is None
    (third,) = await store.claim()
    assert third.id == applied.next_step.id
    await store.apply(third, SUBMITTED, STARTED, SUCCEEDED)
    assert (await store.job("j")).state == "completed"


async def test_time_spent_active_is_counted_over_a_pause(store: Store) -> None:
    step = await store.running("j")
    store.clock.advance(10)
    await store.request("j", Trigger.PAUSE)
    after = await store.moved(step, Trigger.STOPPED)
    assert after.active_since is None and 10 <= after.active_used / SECOND < 10.1
    store.clock.advance(1000)
    await store.request("j", Trigger.RESUME)
    (again,) = await store.claim()
    after = await store.moved(again, SUBMITTED, STARTED, **store.started(again))
    assert after.active_since is not None and 10 <= after.active_used / SECOND < 10.1


async def test_a_paused_step_gives_up_its_workload_but_not_its_storage(store: Store) -> None:
    step = await store.running("j")
    await store.request("j", Trigger.PAUSE)
    paused = await store.moved(step, Trigger.STOPPED, logs=batch("x"))
    assert paused.handle is None and paused.lease_token is None and paused.log_cursor is None
    assert paused.generation == step.generation + 1 and paused.key != step.key
    assert await store.step("j") == paused
    (removal,) = await store.read(steps.due_removals, "h1", FAR, 10)
    assert removal.key == step.key and not removal.wipe_storage
    await store.write(steps.forget_removal, step.key)
    # Cancelled after that, the storage of the first run is still known.
    await store.request("j", Trigger.CANCEL)
    (claimed,) = await store.claim_due()
    await store.apply(claimed, Trigger.STOPPED)
    store.clock.advance(3600)
    assert await store.write(storage.reclaim_due, store.now(), DEFAULT, 10) == 1
    (removal,) = await store.read(steps.due_removals, "h1", FAR, 10)
    assert removal.key == step.key and removal.wipe_storage


async def test_removals_wait_for_their_time_and_their_host(store: Store) -> None:
    step = await store.running("j")
    await store.apply(step, SUCCEEDED, removal_after=60 * SECOND)
    assert await store.read(steps.due_removals, "h1", store.now(), 10) == []
    store.clock.advance(61)
    assert await store.read(steps.due_removals, "h2", store.now(), 10) == []
    (removal,) = await store.read(steps.due_removals, "h1", store.now(), 10)
    await store.write(steps.retry_removal, removal.key, store.now() + 5 * SECOND)
    assert await store.read(steps.due_removals, "h1", store.now(), 10) == []
    store.clock.advance(6)
    (again,) = await store.read(steps.due_removals, "h1", store.now(), 10)
    assert again.tries == 1
    await store.write(steps.forget_removal, removal.key)
    await store.write(steps.forget_removal, removal.key)
    assert await store.read(steps.due_removals, "h1", FAR, 10) == []


@pytest.mark.parametrize("end", [Trigger.FAILED, Trigger.STOPPED])
async def test_open_tasks_end_with_their_step(store: Store, end: Trigger) -> None:
    step = await store.running("j")
    done = TaskChange("task-2", 1, State.COMPLETED, {"exit_code": 0})
    await store.apply(step, tasks=(done,))
    if end is Trigger.STOPPED:
        await store.request("j", Trigger.CANCEL)
    await store.apply(step, end, error_details={"message": "broken"} if end is Trigger.FAILED else None)
    first, second = await store.read(jobs.list_tasks, "default", "j", "main")
    assert second.state is State.COMPLETED
    word = "error" if end is Trigger.FAILED else "cancelled"
    assert (
        first.state == word
        and first.status_details["message"] == f"ended because step 'main' ended as {word}"
    )
    assert first.status_details["pid"] == 4711
    assert first.error_details == ({"message": "broken"} if word == "error" else None)


async def test_an_ended_task_stays_as_it_ended(store: Store) -> None:
    step = await store.running("j")
    await store.apply(step, tasks=(TaskChange("task-1", 0, State.ERROR, {"exit_code": 1}),))
    await store.apply(step, tasks=(TaskChange("task-1", 0, State.ACTIVE, {"exit_code": None}),))
    (task,) = await store.read(jobs.list_tasks, "default", "j", "main")
    assert task.state is State.ERROR and task.status_details["exit_code"] == 1


async def test_c058_a_clock_that_was_set_back_makes_no_negative_times(store: Store) -> None:
    step = await store.running("j")
    late = await store.step("j")
    outcome = Outcome((SUCCEEDED,), tasks=(TaskChange("task-1", 0, State.COMPLETED, {}),))
    hour_ago = store.now() - 3600 * SECOND
    applied = await store.write(steps.apply, store.token, step.id, outcome, hour_ago)
    after = applied.step
    assert after.updated_at >= late.updated_at and after.since >= late.since and after.active_used >= 0
    job = await store.job("j")
    assert job.updated_at >= job.created_at and job.since >= late.since
    (task,) = await store.read(jobs.list_tasks, "default", "j", "main")
    assert task.updated_at >= task.created_at


async def test_known_keys_are_those_that_work_or_wait_for_removal(store: Store) -> None:
    running = await store.running("a-1")
    ended = await store.running("b-1")
    await store.apply(ended, SUCCEEDED)
    gone = await store.running("c-1")
    await store.apply(gone, SUCCEEDED)
    await store.write(steps.forget_removal, gone.key)
    await store.create("d-1")
    waiting = await store.step("d-1")
    keys = [running.key, ended.key, gone.key, waiting.key, "nj-unknown-0", "something"]
    assert await store.read(steps.known_keys, keys) == {running.key, ended.key, waiting.key}
    assert await store.read(steps.known_keys, []) == set()
    found = await store.read(steps.waiting_of, [running.id, waiting.id, "none"])
    assert [step.id for step in found] == [waiting.id]


async def test_waiting_steps_are_counted_by_profile(store: Store) -> None:
    await store.running()
    for profile in ("default", "big", "big"):
        await store.create(steps=[step_spec("main", profile)])
    counts = await store.read(steps.waiting_counts)
    assert counts == {("subprocess", "big"): 2, ("subprocess", "default"): 1}


async def test_wake_ups_tell_of_new_work_requests_and_lines(store: Store) -> None:
    heard: list[tuple[str, str]] = []
    unhook = store.db.on_wake(lambda topic, key: heard.append((topic, key)))
    job = await store.create("j", "one", "two")
    step = await store.step("j", "one")
    await _settled(heard, {("work", step.id), ("job", job.id)})
    (claimed,) = await store.claim()
    await store.apply(claimed, SUBMITTED, STARTED, **store.started(claimed))
    await store.write(steps.append_logs, store.token, step.id, batch("x"))
    await _settled(heard, {("job", job.id), ("logs", job.attempt_id)})
    applied = await store.apply(claimed, SUCCEEDED, claim_next=False)
    assert applied is not None and applied.next_step is not None
    await _settled(heard, {("work", applied.next_step.id), ("job", job.id)})
    unhook()
    await store.request("j", Trigger.CANCEL)
    await asyncio.sleep(0.01)
    assert heard == []


async def _settled(heard: list[tuple[str, str]], expected: set[tuple[str, str]]) -> None:
    async with asyncio.timeout(5):
        while set(heard) != expected:
            await asyncio.sleep(0.001)
    heard.clear()


async def test_events_are_read_in_pieces_without_a_gap(store: Store) -> None:
    for _ in range(3):
        await store.ended()
    everything = await store.read(jobs.events, 0, 1000)
    pieces, last = [], 0
    while more := await store.read(jobs.events, last, 2):
        pieces += more
        last = more[-1].id
    assert pieces == everything
    for event in everything:
        before, after = event.from_state, event.to_state
        assert before is None or State(after) in TRANSITIONS[State(before)].values()

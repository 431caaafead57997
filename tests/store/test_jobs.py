import pytest

from nemo_jobs.domain.model import Conflict, NotFound
from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.store import jobs, projects, steps, workspaces
from tests.store.kit import LEASE, SECOND, STARTED, SUBMITTED, SUCCEEDED, Store, new_job


async def test_a_new_job_is_found_by_name_and_by_id_in_its_workspace_alone(store: Store) -> None:
    await store.write(projects.create_project, "default", "pond", None, store.now(), "tester")
    made = await store.create("moth", project="pond", description="d", ownership='{"a":1}')
    assert made.state == "created" and made.reason == "queued" and made.message
    assert await store.job("moth") == made
    assert await store.job(made.id) == made
    with pytest.raises(NotFound, match="no job 'moth' in workspace 'system'"):
        await store.job("moth", "system")
    with pytest.raises(NotFound):
        await store.job(made.id, "system")


async def test_a_held_job_is_as_one_that_was_created_and_claimed(store: Store) -> None:
    lease = jobs.Lease("owner", "token", store.now() + LEASE, "host")
    made, step = await store.write(jobs.create_held, new_job("moth"), lease, store.now(), "tester")
    assert await store.job("moth") == made
    assert await store.read(steps.held, "token") == [step]
    assert (step.lease_token, step.host, step.state) == ("token", "host", State.CREATED)
    assert await store.claim() == []
    with pytest.raises(Conflict):
        await store.write(jobs.create_held, new_job("moth"), lease, store.now(), "tester")
    assert len(await store.read(steps.held, "token")) == 1


async def test_a_name_comes_before_an_id(store: Store) -> None:
    first = await store.create("first")
    await store.read(jobs.get_job, "default", first.id)
    second = new_job(first.id)
    made = await store.write(jobs.create_job, second, store.now(), "tester")
    assert (await store.job(first.id)).id == made.id


async def test_a_taken_name_is_a_conflict_and_stores_nothing(store: Store) -> None:
    await store.create("moth")
    with pytest.raises(Conflict, match="'moth' is taken in workspace 'default'"):
        await store.create("moth")
    assert (await store.read(jobs.list_jobs, jobs.JobQuery("default")))[1] == 1
    await store.create("moth", workspace="system")


async def test_an_unknown_workspace_is_named(store: Store) -> None:
    with pytest.raises(NotFound, match="'nowhere'"):
        await store.create("moth", workspace="nowhere")


async def test_text_that_no_database_can_hold_is_stored_as_near_as_possible(store: Store) -> None:
    made = await store.create("odd", description="a\0b", source="s\ud800x", spec='{"k":"\\u0000"}')
    found = await store.job("odd")
    assert made.name == "odd"
    assert found.description == "a\ufffdb" and found.source == "s?x"
    assert found.spec == '{"k":"\\u0000"}'
    with pytest.raises(NotFound):
        await store.job("no\0such")


async def test_a_deeply_nested_spec_is_stored_whole(store: Store) -> None:
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    steps_of = [
        {"name": "main", "config": {"deep": deep}, "executor": {"provider": "subprocess", "profile": "p"}}
    ]
    await store.create("deep", steps=steps_of)
    assert (await store.step("deep")).spec["config"] == {"deep": deep}


@pytest.mark.parametrize(
    ("trigger", "before", "after"),
    [
        (Trigger.CANCEL, "created", "cancelled"),
        (Trigger.CANCEL, "pending", "cancelling"),
        (Trigger.CANCEL, "active", "cancelling"),
        (Trigger.CANCEL, "pausing", "cancelling"),
        (Trigger.CANCEL, "paused", "cancelling"),
        (Trigger.CANCEL, "resuming", "cancelling"),
        (Trigger.CANCEL, "cancelling", "cancelling"),
        (Trigger.CANCEL, "completed", "completed"),
        (Trigger.CANCEL, "error", "error"),
        (Trigger.CANCEL, "cancelled", "cancelled"),
        (Trigger.PAUSE, "created", "pausing"),
        (Trigger.PAUSE, "pending", "pausing"),
        (Trigger.PAUSE, "active", "pausing"),
        (Trigger.PAUSE, "paused", "paused"),
        (Trigger.PAUSE, "completed", "completed"),
        (Trigger.RESUME, "paused", "resuming"),
        (Trigger.RESUME, "active", "active"),
        (Trigger.RESUME, "created", "created"),
        (Trigger.RESUME, "error", "error"),
    ],
)
async def test_requests_by_state(store: Store, trigger: Trigger, before: str, after: str) -> None:
    await _bring_to(store, State(before))
    job = await store.job("j")
    assert job.state == before
    again = await store.request("j", trigger)
    assert again.state == after
    assert (await store.step("j")).state == after
    if before == after:
        assert again == job
    else:
        assert again.updated_at > job.updated_at


async def _bring_to(store: Store, state: State) -> None:
    await store.create("j")
    if state is State.CREATED:
        return
    if state is State.CANCELLED:
        await store.request("j", Trigger.CANCEL)
        return
    (step,) = await store.claim()
    step = await store.moved(step, SUBMITTED, **store.started(step))
    if state is State.PENDING:
        return
    await store.apply(step, STARTED)
    path = {
        State.ACTIVE: (),
        State.COMPLETED: (SUCCEEDED,),
        State.ERROR: (Trigger.FAILED,),
        State.PAUSING: (Trigger.PAUSE,),
        State.PAUSED: (Trigger.PAUSE, Trigger.STOPPED),
        State.RESUMING: (Trigger.PAUSE, Trigger.STOPPED, Trigger.RESUME),
        State.CANCELLING: (Trigger.CANCEL,),
    }[state]
    for trigger in path:
        if trigger in (Trigger.PAUSE, Trigger.RESUME, Trigger.CANCEL):
            await store.request("j", trigger)
        else:
            await store.apply(step, trigger)


async def test_c007_cancel_of_a_job_that_has_not_started_is_final_at_once(store: Store) -> None:
    first, waiting, third = [await store.create(name, "main") for name in ("a-1", "b-2", "c-3")]
    (step,) = await store.claim(limit=1)
    assert step.job_id == first.id
    cancelled = await store.request("b-2", Trigger.CANCEL)
    assert (cancelled.state, cancelled.reason) == ("cancelled", "cancelled_by_user")
    assert [found.job_id for found in await store.claim()] == [third.id]
    assert waiting.id not in {r.job_id for r in await store.read(steps.due_removals, "h1", 1 << 60, 10)}
    assert await store.request("b-2", Trigger.CANCEL) == cancelled


async def test_c007_cancel_while_its_holder_may_be_starting_it_waits_for_the_holder(store: Store) -> None:
    await store.create("j")
    (step,) = await store.claim()
    assert (await store.request("j", Trigger.CANCEL)).state == "cancelling"
    # The holder comes back with a handle: it is kept, the state is not turned back.
    after = await store.moved(step, SUBMITTED, STARTED, **store.started(step))
    assert after.state is State.CANCELLING and after.handle is not None
    after = await store.moved(step, Trigger.STOPPED)
    assert after.state is State.CANCELLED
    assert len(await store.read(steps.due_removals, "h1", 1 << 60, 10)) == 1


async def test_cancel_after_the_lease_ran_out_still_wants_the_proof(store: Store) -> None:
    """The holder may have died right after it started the work."""
    await store.create("j")
    (step,) = await store.claim()
    store.clock.advance(LEASE / SECOND + 1)
    assert (await store.request("j", Trigger.CANCEL)).state == "cancelling"
    lease = {"owner": "o2", "token": "t9", "host": "h1", "now": store.now(), "until": store.now() + LEASE}
    assert [found.id for found in await store.write(steps.claim_due, **lease, limit=5)] == [step.id]


async def test_cancel_between_two_steps(store: Store) -> None:
    step = await store.running("j", "one", "two")
    applied = await store.apply(step, SUCCEEDED, claim_next=False)
    assert applied is not None and applied.next_step is not None
    assert (await store.job("j")).state == "active"
    job = await store.request("j", Trigger.CANCEL)
    assert job.state == "cancelled"
    assert [s.state for s, _ in (await store.read(jobs.status_tree, "default", "j")).steps] == [
        "completed",
        "cancelled",
    ]


async def test_status_details_are_merged_at_the_top_level(store: Store) -> None:
    job = await store.create("j")
    await store.write(jobs.merge_status_details, "default", "j", {"a": 1, "b": {"x": 1}}, store.now())
    await store.write(jobs.merge_status_details, "default", job.id, {"b": {"y": 2}}, store.now())
    after = await store.job("j")
    assert after.status_details == '{"a":1,"b":{"y":2}}'
    assert after.updated_at > job.updated_at
    await store.write(jobs.merge_status_details, "default", "j", {"a": 1}, store.now())
    assert await store.job("j") == after
    with pytest.raises(NotFound, match="no job 'x'"):
        await store.write(jobs.merge_status_details, "default", "x", {}, store.now())


@pytest.mark.parametrize(
    "state", [s for s in State if s not in (State.COMPLETED, State.ERROR, State.CANCELLED)]
)
async def test_c075_a_job_that_is_open_is_not_deleted(store: Store, state: State) -> None:
    await _bring_to(store, state)
    with pytest.raises(Conflict, match=f"job 'j' can't be deleted: its step 'main' is {state}; cancel"):
        await store.write(jobs.delete_job, "default", "j", store.now())
    assert (await store.job("j")).state == state


async def test_c075_delete_takes_everything_and_frees_the_name(store: Store) -> None:
    step = await store.running("j")
    await store.apply(step, SUCCEEDED, removal_after=3600 * SECOND)
    job = await store.job("j")
    assert await store.read(steps.due_removals, "h1", store.now(), 10) == []
    await store.write(jobs.delete_job, "default", "j", store.now())
    with pytest.raises(NotFound):
        await store.job("j")
    (removal,) = await store.read(steps.due_removals, "h1", store.now(), 10)
    assert removal.key == step.key and removal.wipe_storage
    for table in ("attempt", "step", "task", "log_chunk"):
        assert await _count(store, table) == 0
    again = await store.create("j")
    assert again.id != job.id
    (trace, *_) = await store.read(jobs.events, 0, 100, job_id=job.id)
    assert (trace.kind, trace.from_state, trace.to_state, trace.reason) == (
        "job",
        "completed",
        None,
        "deleted",
    )


async def test_delete_wipes_storage_also_when_the_workload_is_long_gone(store: Store) -> None:
    step = await store.running("j")
    await store.apply(step, SUCCEEDED)
    await store.write(steps.forget_removal, step.key)
    await store.write(jobs.delete_job, "default", "j", store.now())
    (removal,) = await store.read(steps.due_removals, "h1", store.now(), 10)
    assert removal.key == step.key and removal.wipe_storage and removal.handle["data"]["pid"] == 4711


async def test_prune_takes_only_old_ended_jobs(store: Store) -> None:
    old = [await store.ended(f"old-{n}") for n in range(3)]
    await store.running("still-running")
    store.clock.advance(1000)
    border = store.now()
    young = await store.ended("young")
    would = await store.write(jobs.prune, border, 10, True)
    assert [job.id for job in would] == [job.id for job in old]
    assert [job.id for job in await store.write(jobs.prune, border, 2, False)] == [old[0].id, old[1].id]
    assert [job.id for job in await store.write(jobs.prune, border, 10, False)] == [old[2].id]
    found, total, _ = await store.read(jobs.list_jobs, jobs.JobQuery("default"))
    assert total == 2 and found[0].id == young.id


async def test_workspaces(store: Store) -> None:
    made = await store.write(workspaces.create_workspace, "lab", "d", store.now(), "me")
    assert (made.name, made.description, made.created_by) == ("lab", "d", "me")
    with pytest.raises(Conflict, match="'lab' exists already"):
        await store.write(workspaces.create_workspace, "lab", None, store.now(), "me")
    changed = await store.write(workspaces.update_workspace, "lab", "new", store.now(), "you")
    assert changed.description == "new" and changed.updated_at > made.updated_at
    found, total = await store.read(workspaces.list_workspaces, "-name", 1, 2)
    assert total == 3 and [w.name for w in found] == ["system", "lab"]
    job = await store.create("j", workspace="lab")
    with pytest.raises(Conflict, match="still has 1 job; delete"):
        await store.write(workspaces.delete_workspace, "lab")
    await store.write(jobs.request, "lab", job.name, Trigger.CANCEL, store.now(), "me")
    await store.write(jobs.delete_job, "lab", "j", store.now())
    await store.write(workspaces.delete_workspace, "lab")
    with pytest.raises(NotFound, match="no workspace 'lab'"):
        await store.read(workspaces.get_workspace, "lab")
    with pytest.raises(Conflict, match="always there"):
        await store.write(workspaces.delete_workspace, "default")


async def _count(store: Store, table: str) -> int:
    import sqlalchemy as sa

    row = await store.read(lambda tx: tx.one(sa.text(f"SELECT count(*) FROM {table}")))
    return int(row[0])

"""Running ended jobs again: what the new attempt is, and what stays of the one before."""

import json
from typing import Any

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.model import Conflict, Invalid, JobRecord, NotFound, StepRecord
from nemo_jobs.domain.retention import DEFAULT
from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.store import attempts, jobs, logs, rerun, steps, storage
from nemo_jobs.store.attempts import AttemptQuery, AttemptRecord, JobChange
from nemo_jobs.store.logs import LogFilter
from nemo_jobs.store.rerun import Rerun
from tests.store.kit import SUCCEEDED, Store, batch, step_spec
from tests.store.test_reports import WAYS, patch, put

FAILED = Trigger.FAILED


async def again(store: Store, name: str = "j", from_step: str | None = None, **given: Any) -> JobRecord:
    asked = Rerun("me", given.pop("context", '{"principal_id":"me"}'), from_step)
    after: JobRecord = await store.write(rerun.rerun, "default", name, asked, store.now())
    return after


async def attempt(store: Store, selector: int | str | None = None, name: str = "j") -> AttemptRecord:
    found: AttemptRecord = await store.read(attempts.get_attempt, "default", name, selector)
    return found


async def run_next(store: Store, trigger: Trigger = SUCCEEDED, profile: str = "default") -> StepRecord:
    """The step that waits, run to its end."""
    (step,) = await store.claim(profile)
    active = await store.moved(step, Trigger.SUBMITTED, Trigger.STARTED, **store.started(step))
    applied = await store.apply(active, trigger, logs=batch(f"{step.name} ran"), claim_next=False)
    assert applied is not None
    return applied.step


async def failed_at_the_second_step(store: Store) -> JobRecord:
    await store.create("j", "one", "two", "three")
    await run_next(store)
    await run_next(store, FAILED)
    return await store.job("j")


async def test_a_rerun_is_another_attempt_and_the_one_before_stays_as_it_was(store: Store) -> None:
    before = await failed_at_the_second_step(store)
    old_steps = (await store.read(jobs.status_tree, "default", "j")).steps
    after = await again(store)
    assert after == await store.job("j")
    assert after.id == before.id and after.attempt_id != before.attempt_id
    assert (after.state, after.reason, after.error_details) == ("created", "queued", None)
    assert after.updated_at > before.updated_at
    ((step, tasks),) = (await store.read(jobs.status_tree, "default", "j")).steps
    assert (step.name, step.state, step.ordinal, step.attempt_seq) == ("one", State.CREATED, 0, 1)
    assert tasks == [] or tasks == ()
    old = await attempt(store, 0)
    assert (old.id, old.state, old.is_current) == (before.attempt_id, "error", False)
    assert old.error_details == before.error_details
    new = await attempt(store, None)
    assert (new.seq, new.id, new.state, new.is_current) == (1, after.attempt_id, "created", True)
    kept = await store.read(
        jobs.list_steps, jobs.StepQuery(workspace="default", job="j", attempt_id=before.attempt_id)
    )
    assert [one.id for one in kept[0]] == [one.id for one, _ in old_steps]
    (told,) = [
        one for one in await store.read(jobs.events, 0, 100, job_id=after.id) if "again" in one.message
    ]
    assert (told.kind, told.from_state, told.to_state) == ("job", "error", "created")
    assert (told.attempt_id, told.actor) == (after.attempt_id, "me")


@pytest.mark.parametrize("state", [State.COMPLETED, State.ERROR, State.CANCELLED])
async def test_every_ended_job_can_run_again_and_again(store: Store, state: State) -> None:
    await store.create("j")
    for number in range(3):
        for way in WAYS[state]:
            await patch(store, way)
        assert (await store.job("j")).state == state
        assert (await again(store)).state == "created"
        assert (await attempt(store)).seq == number + 1
    assert await _counts(store) == {"created": 1}


@pytest.mark.parametrize(
    ("state", "way_out"),
    [
        (State.CREATED, "cancel it first"),
        (State.PENDING, "cancel it first"),
        (State.ACTIVE, "wait until it has ended"),
        (State.PAUSING, "wait until it has ended"),
        (State.PAUSED, "resume it"),
        (State.RESUMING, "cancel it first"),
        (State.CANCELLING, "wait until it has ended"),
    ],
)
async def test_a_job_that_has_not_ended_is_not_run_again(store: Store, state: State, way_out: str) -> None:
    await store.create("j")
    for way in WAYS[state]:
        await patch(store, way)
    with pytest.raises(Conflict, match=f"it is {state}; .*{way_out}"):
        await again(store)
    assert (await attempt(store)).seq == 0


@pytest.mark.parametrize("sort", ["created_at", "-created_at", "updated_at", "-updated_at"])
async def test_steps_that_are_kept_are_listed_before_the_one_that_runs(store: Store, sort: str) -> None:
    specs = [f"s{number}" for number in range(8)]
    await store.create("j", *specs)
    for _ in specs[:-1]:
        await run_next(store)
    await run_next(store, FAILED)
    after = await again(store, from_step="s7")
    listed, _ = await store.read(jobs.list_steps, jobs.StepQuery(attempt_id=after.attempt_id, sort=sort))
    assert [one.name for one in listed] == (specs[::-1] if sort.startswith("-") else specs)


async def test_from_a_later_step_the_ones_before_count_as_completed(store: Store) -> None:
    before = await failed_at_the_second_step(store)
    first = await store.step("j", "one")
    after = await again(store, from_step="two")
    assert (after.state, after.reason) == ("active", "queued")
    (kept, no_tasks), (next_step, _) = (await store.read(jobs.status_tree, "default", "j")).steps
    assert (kept.state, kept.reason, kept.handle) == (State.COMPLETED, "kept_from_attempt", None)
    assert kept.id != first.id and kept.status_details["kept_from_attempt"] == before.attempt_id
    assert list(no_tasks) == []
    assert (next_step.name, next_step.ordinal, next_step.host) == ("two", 1, "h1")
    await run_next(store)
    await run_next(store)
    assert (await store.job("j")).state == "completed"
    again_from = await again(store, from_step="three")
    assert again_from.state == "active"
    (kept, _), (also, _), _ = (await store.read(jobs.status_tree, "default", "j")).steps
    assert kept.status_details["kept_from_attempt"] == before.attempt_id
    assert also.status_details["kept_from_attempt"] == after.attempt_id


async def test_only_what_completed_can_be_kept(store: Store) -> None:
    await failed_at_the_second_step(store)
    with pytest.raises(Conflict, match="step 'two' before it is error in attempt 0; run it from that step"):
        await again(store, from_step="three")
    with pytest.raises(Invalid, match="no step 'four'; its steps are: one, two, three"):
        await again(store, from_step="four")
    with pytest.raises(NotFound):
        await again(store, "nobody")
    await again(store, from_step="one")
    await store.request("j", Trigger.CANCEL)
    with pytest.raises(Conflict, match="step 'one' before it is cancelled"):
        await again(store, from_step="two")


async def test_numbers_metrics_and_phase_go_along_and_the_rest_does_not(store: Store) -> None:
    await failed_at_the_second_step(store)
    details = {
        "metrics": {"loss": 0.5},
        "percentage_done": 40,
        "loss": 0.25,
        "done": True,
        "phase": "training",
        "note": "text",
        "image_digest_at_save": "sha256:1",
        "resumable": False,
        "non_resumable_reason": "no checkpoint yet",
        "resumed_at": 5,
        "pid": 4,
        "exit_code": 3,
    }
    await store.write(jobs.merge_status_details, "default", "j", details, store.now())
    after = await again(store)
    carried = {
        "metrics": {"loss": 0.5},
        "percentage_done": 40,
        "loss": 0.25,
        "phase": "training",
        "image_digest_at_save": "sha256:1",
        "rerun_warning": "the attempt before said that it can't be resumed: no checkpoint yet",
    }
    assert json.loads(after.status_details) == carried
    assert json.loads((await attempt(store, 1)).status_details) == carried
    assert json.loads((await attempt(store, 0)).status_details)["note"] == "text"


async def test_the_caller_of_a_rerun_is_who_the_new_attempt_runs_as(store: Store) -> None:
    await failed_at_the_second_step(store)
    await again(store, context='{"principal_id":"somebody"}')
    assert (await store.step("j", "one")).auth_context == {"principal_id": "somebody"}


async def test_each_attempt_has_its_own_log(store: Store) -> None:
    before = await failed_at_the_second_step(store)
    await again(store)
    await run_next(store)
    for attempt_id, expected in ((before.attempt_id, ["one ran", "two ran"]), (None, ["one ran"])):
        found = await store.read(_lines, attempt_id)
        assert found == expected


def _lines(tx: Any, attempt_id: str | None) -> list[str]:
    job = jobs.get_job(tx, "default", "j")
    chosen = logs.attempt_of(tx, job.id, attempt_id)
    return [line.text for line in logs.page(tx, chosen, LogFilter(), 0, 100)[0]]


async def test_a_list_of_attempts_is_filtered_sorted_and_paged(store: Store) -> None:
    await store.create("j")
    for way in (State.ERROR, State.CANCELLED, State.ERROR):
        await patch(store, way)
        await again(store)

    async def listed(**query: Any) -> tuple[list[int], int]:
        found, total, _ = await store.read(attempts.list_attempts, "default", "j", AttemptQuery(**query))
        return [one.seq for one in found], total

    assert await listed() == ([3, 2, 1, 0], 4)
    assert await listed(sort="seq", page_size=3, page=2) == ([3], 4)
    assert await listed(states=(State.ERROR,)) == ([2, 0], 2)
    assert await listed(states=(State.CREATED, State.CANCELLED)) == ([3, 1], 2)
    assert await listed(page=9) == ([], 4)
    assert (await attempt(store, (await attempt(store, 2)).id)).seq == 2
    for unknown in (4, -1, 1 << 40, "platform-job-attempt-x"):
        with pytest.raises(NotFound):
            await attempt(store, unknown)


async def test_a_changed_definition_is_that_of_attempts_to_come(store: Store) -> None:
    await store.create("j", "one", "two")
    await run_next(store)
    spec = {"steps": [step_spec("one"), step_spec("other"), step_spec("last")], "secrets": None}
    change = JobChange(True, "new", ('{"a":1}', spec))
    changed = await store.write(attempts.update_job, "default", "j", change, store.now())
    assert (changed.description, changed.spec, json.loads(changed.platform_spec)) == ("new", '{"a":1}', spec)
    # The one that runs goes on as it began.
    assert (await run_next(store, FAILED)).name == "two"
    assert (await store.step("j", "two")).steps_total == 2
    old = await attempt(store, 0)
    assert (old.spec, [one["name"] for one in json.loads(old.platform_spec)["steps"]]) == (
        "{}",
        ["one", "two"],
    )
    with pytest.raises(Conflict, match=r"step 'other' is where attempt 0 ran 'two'|step 'other' before it"):
        await again(store, from_step="last")
    await again(store, from_step="other")
    assert (await store.step("j", "other")).steps_total == 3
    assert (await run_next(store)).name == "other"
    assert (await run_next(store)).name == "last"
    assert (await store.job("j")).state == "completed"
    only = JobChange(True, None)
    cleared = await store.write(attempts.update_job, "default", "j", only, store.now())
    assert cleared.description is None and json.loads(cleared.platform_spec) == spec
    assert (await attempt(store, 1)).spec == '{"a":1}' and (await attempt(store, 0)).spec == "{}"


async def test_c100_late_writers_of_an_old_attempt_change_nothing_of_the_new_one(store: Store) -> None:
    await store.create("j")
    (claimed,) = await store.claim()
    await store.moved(claimed, Trigger.SUBMITTED, Trigger.STARTED, **store.started(claimed))
    await put(store, State.ACTIVE, "task-old")
    await patch(store, State.ERROR)
    before = await store.job("j")
    await again(store)
    fresh = await store.job("j")
    # The engine's follower of the old step.
    assert await store.apply(claimed, SUCCEEDED) is None
    assert await store.write(steps.append_logs, store.token, claimed.id, batch("late")) is None
    # Its task, by the route that names no attempt.
    late = await put(store, State.ACTIVE, "task-old", status_details={"percentage_done": 99})
    assert late.state is State.ERROR
    assert await store.job("j") == fresh
    assert await store.read(jobs.list_tasks, "default", "j", "main") == []
    # Writers that name the attempt reach it, and only it.
    told = await put(store, State.COMPLETED, "task-new", attempt=0, status_details={"n": 1})
    assert told.status_details == {"n": 1}
    with pytest.raises(Conflict, match="can't become active: it is error"):
        await patch(store, State.ACTIVE, attempt=before.attempt_id)
    await patch(store, State.ERROR, attempt=0, status_details={"note": "late"})
    await store.write(jobs.merge_status_details, "default", "j", {"k": 1}, store.now(), attempt=0)
    assert await store.job("j") == fresh
    old = await attempt(store, 0)
    assert (old.state, json.loads(old.status_details)["k"]) == ("error", 1)
    assert (await attempt(store, 1)).state == "created"


async def test_details_are_written_only_where_the_writer_expects(store: Store) -> None:
    await store.create("j")
    first = await store.step("j")
    old_attempt = first.attempt_id

    async def write(attempt_id: str | int | None, *expected: Any) -> None:
        await store.write(
            jobs.merge_status_details,
            "default",
            "j",
            {"k": 1},
            store.now(),
            attempt=attempt_id,
            expected=jobs.Expected(*expected),
        )

    await write(None, first.id, State.CREATED)
    with pytest.raises(Conflict, match="step 'main' is created, not active"):
        await write(old_attempt, first.id, State.ACTIVE)
    with pytest.raises(Conflict, match="has no step platform-job-step-x"):
        await write(0, "platform-job-step-x")
    await patch(store, State.ERROR)
    await again(store)
    with pytest.raises(Conflict, match="is not the current one"):
        await write(old_attempt, first.id)
    with pytest.raises(Conflict, match="has no step"):
        await write(None, first.id)
    assert json.loads((await store.job("j")).status_details) == {"k": 1}


async def test_delete_and_prune_take_all_attempts(store: Store) -> None:
    await failed_at_the_second_step(store)
    await again(store)
    await run_next(store, FAILED)
    assert await _rows(store, "attempt") == 2 and await _rows(store, "step") == 3
    await store.write(jobs.delete_job, "default", "j", store.now())
    for table in ("attempt", "step", "task", "log_chunk"):
        assert await _rows(store, table) == 0
    removals = await store.read(steps.due_removals, "h1", store.now(), 10)
    assert len(removals) == 3 and all(one.wipe_storage for one in removals)


async def test_an_attempt_that_runs_keeps_the_job_from_being_deleted(store: Store) -> None:
    await failed_at_the_second_step(store)
    await again(store)
    with pytest.raises(Conflict, match="its step 'one' is created"):
        await store.write(jobs.delete_job, "default", "j", store.now())
    assert await store.write(jobs.prune, store.now() + 1, 10, False) == []


async def test_what_runs_again_stays_on_the_host_of_its_storage(store: Store) -> None:
    await failed_at_the_second_step(store)
    await again(store)
    assert await store.claim(host="h2") == []
    (step,) = await store.claim(bind=True)
    assert step.host == "h1"
    await store.write(steps.release, store.token, [step.id], store.now())
    assert (await store.step("j", "one")).host == "h1"
    found = await store.read(storage.inheritance, step)
    (source,) = found.sources
    assert (source.attempt_id, source.own, found.needed) == ((await attempt(store, 0)).id, True, False)
    assert source.handle is not None


async def test_storage_is_looked_for_in_attempts_that_never_started_too(store: Store) -> None:
    await failed_at_the_second_step(store)
    ids = [(await attempt(store)).id]
    for _ in range(2):
        await again(store, from_step="two")
        ids.append((await attempt(store)).id)
        await store.request("j", Trigger.CANCEL)
    await again(store, from_step="two")
    (step,) = await store.claim()
    found = await store.read(storage.inheritance, step)
    assert [source.attempt_id for source in found.sources] == ids[::-1]
    assert [source.handle is not None for source in found.sources] == [False, False, True]
    assert found.needed and step.host == "h1"


async def test_each_profile_finds_what_it_stored_last(store: Store) -> None:
    """Profiles may have directories of their own: what ran in between elsewhere hides nothing."""
    await store.create("j", steps=[step_spec("one"), step_spec("two", "big")])
    await run_next(store)
    await run_next(store, FAILED, profile="big")
    await again(store, from_step="two")
    await run_next(store, FAILED, profile="big")
    await again(store)
    (step,) = await store.claim()
    found = await store.read(storage.inheritance, step)
    ids = [(await attempt(store, seq)).id for seq in (1, 0)]
    assert [(source.attempt_id, source.own) for source in found.sources] == list(
        zip(ids, (False, True), strict=True)
    )
    other = await store.read(storage.inheritance, step._replace(profile="third"))
    assert [(source.attempt_id, source.own) for source in other.sources] == [(ids[0], False)]
    assert other.sources[0].handle is not None


async def test_many_attempts_that_never_started_hide_nothing(store: Store) -> None:
    await failed_at_the_second_step(store)
    first = await attempt(store)
    for _ in range(storage.MOST_UNSURE + 5):
        await again(store, from_step="two")
        await store.request("j", Trigger.CANCEL)
    await again(store, from_step="two")
    (step,) = await store.claim()
    found = await store.read(storage.inheritance, step)
    assert len(found.sources) == storage.MOST_UNSURE + 1 and found.sources[-1].attempt_id == first.id
    assert found.sources[-1].handle is not None and step.host == "h1"


async def test_storage_that_was_given_back_lets_a_job_run_from_its_start_alone(store: Store) -> None:
    await failed_at_the_second_step(store)
    store.clock.advance(5 * 3600)
    assert await store.write(storage.reclaim_due, store.now(), DEFAULT, 10) == 1
    with pytest.raises(
        Conflict, match="the storage that its steps share is gone; run it from its first step"
    ):
        await again(store, from_step="two")
    await again(store)
    (step,) = await store.claim(host="h2")
    assert (await store.read(storage.inheritance, step)).sources == ()


async def _rows(store: Store, table: str) -> int:
    row = await store.read(lambda tx: tx.one(sa.text(f"SELECT count(*) FROM {table}")))
    return int(row[0])


async def _counts(store: Store) -> dict[str, int]:
    rows = await store.read(lambda tx: tx.run(sa.text("SELECT state, sum(n) FROM job_count GROUP BY state")))
    return {state: int(n) for state, n in rows if n}

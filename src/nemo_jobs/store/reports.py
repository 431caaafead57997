"""What outside writers report: details of a job, the state of a step, tasks.

Writers come late and out of order. A state that has ended never changes again; a late report is
answered with what is there (tasks) or refused (steps).
"""

from dataclasses import dataclass, replace

import sqlalchemy as sa

from nemo_jobs.domain.model import (
    Conflict,
    Invalid,
    JobRecord,
    Json,
    NotFound,
    Reason,
    StepRecord,
    TaskRecord,
)
from nemo_jobs.domain.retention import DEFAULT, Retention
from nemo_jobs.domain.states import TERMINAL, WRITABLE, State
from nemo_jobs.store import tasks
from nemo_jobs.store.logs import Selector
from nemo_jobs.store.lookup import attempt_in, lock_job, lock_step
from nemo_jobs.store.moves import Move, move
from nemo_jobs.store.records import dump, load, text
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import attempt, job, step, task

#: Bytes of a job's status details, and of a step's with its error details: every list carries them.
MAX_DETAILS = 1 << 20
#: Tasks of a step, and characters of all that they say together: the status of a job shows it.
MAX_TASKS, MAX_SAID = 10_000, 16 << 20
_DETAILS: Json = {"status_details": sa.bindparam("details"), "updated_at": sa.bindparam("at")}
_MERGE_ATTEMPT = Statement(sa.update(attempt).where(attempt.c.id == sa.bindparam("the_id")).values(_DETAILS))
_MERGE_JOB = Statement(sa.update(job).where(job.c.id == sa.bindparam("the_id")).values(_DETAILS))


_DETAILS_OF = Statement(
    sa.select(attempt.c.status_details, attempt.c.updated_at).where(attempt.c.id == sa.bindparam("the_id"))
)
_STEP_OF = Statement(
    sa.select(step.c.name, step.c.state).where(
        step.c.id == sa.bindparam("the_step"), step.c.attempt_id == sa.bindparam("the_id")
    )
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a writer takes for granted: that its attempt is the current one and has this step, and
    maybe that the step is in this state."""

    step_id: str
    state: State | None = None


def merge_status_details(
    tx: Tx,
    workspace: str,
    name: str,
    details: Json,
    now: int,
    *,
    attempt: Selector = None,
    expected: Expected | None = None,
) -> None:
    """Merge keys into the details of an attempt (None: the current one), which for the current one
    are also the job's. Raises NotFound, and Conflict where it is not as expected."""
    found = lock_job(tx, workspace, name)
    attempt_id = attempt_in(tx, found, attempt)
    if expected is not None:
        _check(tx, found, attempt_id, expected)
    _merge(tx, found, attempt_id, details, now)


def _check(tx: Tx, found: JobRecord, attempt_id: str, expected: Expected) -> None:
    if attempt_id != found.attempt_id:
        raise Conflict(
            f"attempt {attempt_id} is not the current one of job {found.name!r} any more, "
            f"which is {found.attempt_id}; nothing was written"
        )
    row = tx.one(_STEP_OF, {"the_step": expected.step_id, "the_id": attempt_id})
    if row is None:
        raise Conflict(f"attempt {attempt_id} has no step {expected.step_id}; nothing was written")
    if expected.state is not None and row[1] != expected.state:
        raise Conflict(f"step {row[0]!r} is {row[1]}, not {expected.state}; nothing was written")


def _merge(tx: Tx, found: JobRecord, attempt_id: str, details: Json, now: int) -> None:
    is_current = attempt_id == found.attempt_id
    row = (
        (found.status_details, found.updated_at)
        if is_current
        else tx.one(_DETAILS_OF, {"the_id": attempt_id})
    )
    assert row is not None, "its id was read in this transaction"  # noqa: S101
    before = load(row[0])
    after = {**before, **details}
    if after == before:
        return
    stored = dump(after)
    if len(stored) > MAX_DETAILS:
        raise Invalid(
            f"the status details of job {found.name!r} would have {len(stored)} bytes; "
            f"at most {MAX_DETAILS} are kept: write less, or put it into the log"
        )
    change = {"details": stored, "at": max(now, row[1])}
    tx.count(_MERGE_ATTEMPT, {**change, "the_id": attempt_id})
    if is_current:
        tx.count(_MERGE_JOB, {**change, "the_id": found.id})
    tx.wake("job", found.id)


def update_step_status(
    tx: Tx,
    workspace: str,
    job_name: str,
    step_name: str,
    *,
    state: State,
    expected_step_id: str | None,
    status_details: Json,
    error_details: Json | None,
    now: int,
    actor: str,
    attempt: Selector = None,
    retention: Retention = DEFAULT,
) -> StepRecord:
    """Set the state of a step of an attempt (None: the current one), which for the current one
    moves the job too. Raises Conflict where that is not allowed, Invalid for details that are too
    large."""
    found = lock_job(tx, workspace, job_name)
    at = lock_step(tx, found, step_name, attempt)
    before = at.step
    if expected_step_id is not None and expected_step_id != before.id:
        raise Conflict(
            f"step {step_name!r} can't become {state}: it is step {before.id}, not {expected_step_id}; "
            "read it again"
        )
    if state is not before.state and state not in WRITABLE[before.state]:
        raise Conflict(f"step {step_name!r} can't become {state}: it is {before.state}")
    if status_details or error_details:
        _check_size(before, status_details, error_details)
    change = Move(status_details=status_details, error_details=error_details, retention=retention)
    after = move(tx, at, _reported(change, before, state, now), now, actor).step
    if state is not before.state:
        tx.wake("work", after.id)
    return after


def _check_size(before: StepRecord, details: Json, error: Json | None) -> None:
    after = ({**before.status_details, **details}, error or before.error_details or {})
    size = sum(len(dump(part)) for part in after)
    if size > MAX_DETAILS:
        raise Invalid(
            f"the details of step {before.name!r} would have {size} bytes; "
            f"at most {MAX_DETAILS} are kept: write less, or put it into the log"
        )


def _reported(change: Move, before: StepRecord, state: State, now: int) -> Move:
    told = change.status_details.get("message")
    if state is before.state:
        message = told if isinstance(told, str) else before.message
        return replace(change, reason=before.reason, message=message)
    message = told if isinstance(told, str) else f"reported as {state}"
    return replace(change, path=(state,), reason=Reason.REPORTED, message=message, due_at=now)


def put_task(
    tx: Tx,
    workspace: str,
    job_name: str,
    step_name: str,
    name: str,
    *,
    state: State,
    status_details: Json | None,
    error_details: Json | None,
    error_stack: str | None,
    now: int,
    actor: str,
    attempt: Selector = None,
) -> TaskRecord:
    """Create or update a task from its own report, which is also a sign of life. A report that
    comes too late is answered with the task as it is.

    With no attempt given, a task that an earlier attempt knows is that one's: its report changes
    nothing of the attempt that is current now. Raises Invalid when the tasks say too much together.
    """
    found = lock_job(tx, workspace, job_name)
    step = _addressed(tx, found, step_name, name, attempt)
    known = tasks.of_step(tx, step.id)
    before = next((item for item in known if name in (item.name, item.id)), None)
    report = _Report(state, status_details, error_details or None, error_stack and text(error_stack))
    if before is None:
        fresh = replace(tasks.new(step, name, len(known), now, actor), reported_at=now)
        after: TaskRecord | None = _unknown(fresh, step, report)
        tasks.insert(tx, after or fresh)
    else:
        after = _known(before, step, report)
        tasks.save(tx, before, after or before, now, actor)
        tasks.sign_of_life(tx, before, now)
    if before is None or status_details or error_details or error_stack:
        _check_room(tx, step)
    if status_details and after is not None and step.state not in _FAILED:
        _merge(tx, found, step.attempt_id, status_details, now)
    tx.wake("job", found.id)
    return _written(tx, step, name)


def _written(tx: Tx, step: StepRecord, name: str) -> TaskRecord:
    found = tasks.find(tx, step.id, name)
    assert found is not None, "it was written in this transaction"  # noqa: S101
    return found


_SAID = Statement(
    sa.select(
        sa.func.count(),
        sa.func.sum(
            sa.func.length(task.c.status_details)
            + sa.func.length(sa.func.coalesce(task.c.error_details, ""))
            + sa.func.length(sa.func.coalesce(task.c.error_stack, ""))
        ),
    ).where(task.c.step_id == sa.bindparam("the_id"))
)


def _check_room(tx: Tx, step: StepRecord) -> None:
    """Raises Invalid, with which nothing is written, when the tasks of a step are or say too much."""
    row = tx.one(_SAID, {"the_id": step.id})
    count, said = (row[0], row[1] or 0) if row else (0, 0)
    if count > MAX_TASKS:
        raise Invalid(f"step {step.name!r} has {MAX_TASKS} tasks already, which is the most")
    if said > MAX_SAID:
        raise Invalid(
            f"details and error stacks of the tasks of step {step.name!r} would have {said} characters; "
            f"at most {MAX_SAID} are kept: write less, or put it into the log"
        )


_EARLIER = Statement(
    sa.select(attempt.c.id)
    .join(step, step.c.attempt_id == attempt.c.id)
    .join(task, task.c.step_id == step.c.id)
    .where(
        attempt.c.job_id == sa.bindparam("the_job"),
        attempt.c.id != sa.bindparam("current"),
        step.c.name == sa.bindparam("the_name"),
        task.c.name == sa.bindparam("the_task"),
    )
    .order_by(attempt.c.seq.desc())
)


def _addressed(tx: Tx, found: JobRecord, step_name: str, name: str, selector: Selector) -> StepRecord:
    """The step whose task reports."""
    try:
        there = lock_step(tx, found, step_name, selector).step
    except NotFound:
        earlier = None if selector is not None else _earlier(tx, found, step_name, name)
        if earlier is None:
            raise
        return lock_step(tx, found, step_name, earlier).step
    if selector is None and there.attempt_seq and tasks.find(tx, there.id, name) is None:
        earlier = _earlier(tx, found, step_name, name)
        if earlier is not None:
            return lock_step(tx, found, step_name, earlier).step
    return there


def _earlier(tx: Tx, found: JobRecord, step_name: str, name: str) -> str | None:
    params = {"the_job": found.id, "current": found.attempt_id, "the_name": step_name, "the_task": name}
    row = tx.one(_EARLIER, params)
    return row[0] if row else None


_FAILED = (State.CANCELLED, State.ERROR)


@dataclass(frozen=True, slots=True)
class _Report:
    state: State
    status_details: Json | None
    error_details: Json | None
    error_stack: str | None


def _unknown(made: TaskRecord, step: StepRecord, report: _Report) -> TaskRecord:
    """The first that is heard of a task."""
    made = replace(
        made,
        state=report.state,
        status_details=report.status_details or {},
        error_details=report.error_details,
        error_stack=report.error_stack,
    )
    late = step.state in _FAILED and report.state not in TERMINAL
    return tasks.ended_with(made, step) if late else made


def _known(before: TaskRecord, step: StepRecord, report: _Report) -> TaskRecord | None:
    """The task after `report`; None when it comes too late or makes no sense now."""
    allowed = report.state is before.state or report.state in WRITABLE[before.state]
    if step.state in _FAILED:
        if before.state in TERMINAL:
            return None
        if report.state not in TERMINAL or not allowed:
            return tasks.ended_with(before, step)
    merged = {**before.status_details, **(report.status_details or {})}
    if allowed:
        return replace(
            before,
            state=report.state,
            status_details=merged,
            error_details=report.error_details or before.error_details,
            error_stack=report.error_stack or before.error_stack,
        )
    if before.state is State.ERROR and report.status_details is not None:
        error = {**(before.error_details or {}), **(report.error_details or {})}
        stack = report.error_stack or before.error_stack
        return replace(before, status_details=merged, error_details=error or None, error_stack=stack)
    return None

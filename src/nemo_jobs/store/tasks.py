"""Task rows: what was observed of them, and their end when their step ends."""

from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.model import Json, StepRecord, TaskRecord
from nemo_jobs.domain.states import TERMINAL, State
from nemo_jobs.store.records import TASK_COLUMNS, dump, dump_or_none, task_record, text
from nemo_jobs.store.sql import Statement, Tx, insert_into
from nemo_jobs.store.tables import task

SERVICE = "service:jobs"


@dataclass(frozen=True, slots=True)
class TaskChange:
    """What the engine saw of one task. Details are merged; None keeps what is there."""

    name: str
    rank: int
    state: State
    status_details: Json = field(default_factory=dict)
    error_details: Json | None = None
    error_stack: str | None = None


_OF_STEP = Statement(
    sa.select(*TASK_COLUMNS)
    .where(task.c.step_id == sa.bindparam("the_step"))
    .order_by(task.c.rank, task.c.created_at, task.c.id)
)
_BY_NAME = Statement(
    sa.select(*TASK_COLUMNS).where(
        task.c.step_id == sa.bindparam("the_step"), task.c.name == sa.bindparam("the_name")
    )
)
_BY_ID = Statement(
    sa.select(*TASK_COLUMNS).where(
        task.c.step_id == sa.bindparam("the_step"), task.c.id == sa.bindparam("the_name")
    )
)
_INSERT = Statement(
    lambda dialect: insert_into(task, dialect).on_conflict_do_nothing(index_elements=["step_id", "name"])
)
_CHANGING = (
    *("state", "status_details", "error_details", "error_stack"),
    *("db_version", "updated_at", "updated_by"),
)
_UPDATE = Statement(
    sa.update(task)
    .where(task.c.id == sa.bindparam("the_task"))
    .values({name: sa.bindparam(name) for name in _CHANGING})
)
_TOUCH = Statement(
    sa.update(task).where(task.c.id == sa.bindparam("the_task")).values(reported_at=sa.bindparam("at"))
)


def of_step(tx: Tx, step_id: str) -> list[TaskRecord]:
    return [task_record(row) for row in tx.run(_OF_STEP, {"the_step": step_id})]


def find(tx: Tx, step_id: str, name: str) -> TaskRecord | None:
    """The task of that name, else of that id."""
    key = {"the_step": step_id, "the_name": name}
    row = tx.one(_BY_NAME, key) or tx.one(_BY_ID, key)
    return task_record(row) if row else None


def record(
    tx: Tx, step: StepRecord, changes: tuple[TaskChange, ...], now: int, expect_new: bool = False
) -> bool:
    """Write what the engine saw; whether anything changed. An ended task stays as it ended."""
    touched = False
    if expect_new:
        # Nearly always right, and then no look at what is there is needed.
        changes = tuple(change for change in changes if not _insert_seen(tx, step, change, now))
        touched = True
    known = {item.name: item for item in of_step(tx, step.id)} if changes else {}
    for change in changes:
        before = known.get(change.name)
        if before is None:
            touched = _insert_seen(tx, step, change, now) or touched
        elif before.state not in TERMINAL:
            shown = {"reason": step.reason, "message": step.message, **change.status_details}
            merged = {**before.status_details, **shown}
            stack = text(change.error_stack) if change.error_stack else before.error_stack
            error = change.error_details or before.error_details
            if (change.state, merged, error, stack) != _content(before):
                _write(tx, before, change.state, merged, error, stack, now, SERVICE)
                touched = True
    return touched


def _insert_seen(tx: Tx, step: StepRecord, change: TaskChange, now: int) -> bool:
    made = TaskRecord(
        id=names.new_id(names.TASK_ID, now),
        step_id=step.id,
        workspace=step.workspace,
        name=change.name,
        rank=change.rank,
        state=change.state,
        status_details={"reason": step.reason, "message": step.message, **change.status_details},
        error_details=change.error_details,
        error_stack=change.error_stack and text(change.error_stack),
        db_version=1,
        created_by=SERVICE,
        created_at=now,
        updated_by=SERVICE,
        updated_at=now,
        reported_at=None,
    )
    return insert(tx, made)


def finalise(tx: Tx, step: StepRecord, now: int) -> bool:
    """End the open tasks of a step that became cancelled or error."""
    touched = False
    for before in of_step(tx, step.id):
        if before.state not in TERMINAL:
            touched = save(tx, before, ended_with(before, step), now, SERVICE) or touched
    return touched


def ended_with(before: TaskRecord, step: StepRecord) -> TaskRecord:
    """The task as the end of its step leaves it."""
    message = f"ended because step {step.name!r} ended as {step.state}"
    error = before.error_details
    if step.state is State.ERROR:
        error = error or step.error_details or {"message": message}
    details = {**before.status_details, "message": message}
    return replace(before, state=step.state, status_details=details, error_details=error)


def new(step: StepRecord, name: str, rank: int, now: int, actor: str) -> TaskRecord:
    """A task that has nothing yet; `insert` gives it the rest."""
    return TaskRecord(
        id=names.new_id(names.TASK_ID, now),
        step_id=step.id,
        workspace=step.workspace,
        name=name,
        rank=rank,
        state=State.PENDING,
        status_details={},
        error_details=None,
        error_stack=None,
        db_version=1,
        created_by=actor,
        created_at=now,
        updated_by=actor,
        updated_at=now,
        reported_at=None,
    )


def insert(tx: Tx, item: TaskRecord) -> bool:
    """Store a new task; False when the step has one of that name."""
    plain = {name: getattr(item, name) for name in _PLAIN}
    stored = _stored(item.state, item.status_details, item.error_details, item.error_stack)
    version = {"db_version": 1, "updated_at": item.updated_at, "updated_by": item.updated_by}
    return tx.count(_INSERT, {**plain, **stored, **version}) > 0


_PLAIN = ("id", "step_id", "workspace", "name", "rank", "created_at", "created_by", "reported_at")


def save(tx: Tx, before: TaskRecord, after: TaskRecord, now: int, actor: str) -> bool:
    """Write `after` if it differs; whether it did."""
    if _content(after) == _content(before):
        return False
    _write(tx, before, *_content(after), now, actor)
    return True


_Content = tuple[State, Json, Json | None, str | None]


def _content(item: TaskRecord) -> _Content:
    return item.state, item.status_details, item.error_details, item.error_stack


def _write(
    tx: Tx,
    before: TaskRecord,
    state: State,
    details: Json,
    error: Json | None,
    stack: str | None,
    now: int,
    actor: str,
) -> None:
    version = {"db_version": before.db_version + 1, "updated_at": max(now, before.updated_at)}
    stored = _stored(state, details, error, stack)
    tx.count(_UPDATE, {"the_task": before.id, **stored, **version, "updated_by": actor})


def sign_of_life(tx: Tx, item: TaskRecord, now: int) -> None:
    """Remember that the task itself was heard of; that is no new version of it."""
    tx.count(_TOUCH, {"the_task": item.id, "at": max(now, item.reported_at or 0)})


def _stored(state: State, details: Json, error: Json | None, stack: str | None) -> Json:
    return {
        "state": state.value,
        "status_details": dump(details),
        "error_details": dump_or_none(error),
        "error_stack": stack,
    }

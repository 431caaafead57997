"""How a change of a step is written: step, tasks, attempt, job, counts, events, the next step.

Everything that changes a state comes through `move`, in the caller's transaction. Rows are
locked job first, then step: whoever changes a job waits for the one before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.gpus import wanted
from nemo_jobs.domain.model import Json, Reason, StepRecord
from nemo_jobs.domain.retention import DEFAULT, Retention
from nemo_jobs.domain.states import TERMINAL, State, rollup
from nemo_jobs.store import events, gpus, outbox, tasks
from nemo_jobs.store.records import dump, dump_or_none, load, load_or_none, step_record, text
from nemo_jobs.store.sql import Row, Statement, Tx
from nemo_jobs.store.tables import attempt, job, step
from nemo_jobs.store.tasks import TaskChange

SERVICE = "service:jobs"


@dataclass(frozen=True, slots=True)
class Located:
    """A step as it is in the database now, with what only the store needs of its row."""

    step: StepRecord
    stored_handle: Json | None
    lease_owner: str | None
    lease_until: int | None
    job_state: State
    is_current: bool  # its attempt is the job's current one

    @classmethod
    def of(cls, row: Row) -> "Located":
        handle, (owner, until, job_state, current) = load_or_none(row[18]), row[33:37]
        return cls(step_record(row), handle, owner, until, State(job_state), current == row[1])


@dataclass(frozen=True, slots=True)
class Move:
    """What to change. `path` are the states to go through; None keeps what is there. `ended` says
    that the step's work is proven to be over, should this end or pause it; `kept` that paused work
    stays at its backend until the step has ended."""

    path: tuple[State, ...] = ()
    reason: str = ""
    message: str = ""
    status_details: Json = field(default_factory=dict)  # merged
    error_details: Json | None = None
    tasks: tuple[TaskChange, ...] = ()
    handle: Json | None = None
    host: str | None = None
    generation: int | None = None
    stop_reason: str | None = None
    due_at: int | None = None
    removal_after: int | None = None
    kept: bool = False
    retention: Retention = DEFAULT
    claim_next: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """The step afterwards and, when it made room for one, the next step."""

    step: StepRecord
    next_step: StepRecord | None = None


_STEP_COLUMNS = (
    *("state", "reason", "message", "since", "status_details", "error_details", "db_version"),
    *("generation", "handle", "host", "due_at", "active_since", "active_used", "stop_reason"),
    *("log_cursor", "updated_at", "updated_by"),
)
_CHANGE_STEP = (
    sa.update(step)
    .where(step.c.id == sa.bindparam("step_id"))
    .values({name: sa.bindparam(name) for name in _STEP_COLUMNS})
)
# Two, because writing a column costs its index even when nothing changes.
_UPDATE_STEP = Statement(_CHANGE_STEP)
_UPDATE_AND_FREE_STEP = Statement(_CHANGE_STEP.values(lease_owner=None, lease_token=None, lease_until=None))
_MIRROR = ("state", "reason", "message", "since", "error_details", "updated_at")
_UPDATE_ATTEMPT = Statement(
    sa.update(attempt)
    .where(attempt.c.id == sa.bindparam("the_id"))
    .values({name: sa.bindparam(name) for name in _MIRROR})
)
_UPDATE_JOB = Statement(
    sa.update(job)
    .where(job.c.id == sa.bindparam("the_id"), job.c.attempt_id == sa.bindparam("attempt"))
    .values({name: sa.bindparam(name) for name in (*_MIRROR, "storage_due_at")})
)
_INSERT_STEP = Statement(
    sa.insert(step).inline().values({column.name: sa.bindparam(column.name) for column in step.c})
)
_PLATFORM_SPEC = Statement(
    sa.select(sa.func.coalesce(attempt.c.platform_spec, job.c.platform_spec))
    .join(attempt, attempt.c.job_id == job.c.id)
    .where(attempt.c.id == sa.bindparam("the_attempt"))
)
_CONTROL = Statement(sa.select(job.c.control).where(job.c.id == sa.bindparam("the_job")))

_DEFAULT_REASON = {
    State.CREATED: Reason.QUEUED,
    State.PENDING: Reason.STARTING,
    State.ACTIVE: Reason.RUNNING,
    State.PAUSING: Reason.STOPPING,
    State.PAUSED: Reason.PAUSED_BY_USER,
    State.RESUMING: Reason.QUEUED,
    State.CANCELLING: Reason.STOPPING,
    State.COMPLETED: Reason.FINISHED,
    State.ERROR: Reason.REPORTED,
    State.CANCELLED: Reason.CANCELLED_BY_USER,
}


def move(tx: Tx, at: Located, change: Move, now: int, actor: str = SERVICE) -> Moved:
    """Write `change`; nothing is written when it changes nothing."""
    before = at.step
    now = max(now, before.updated_at)  # a clock that was set back makes no negative times
    after = _after(before, change, now)
    visible = after.db_version != before.db_version
    stored = change.handle if change.handle is not None else at.stored_handle
    if after != before or stored != at.stored_handle:
        _write_step(tx, at, after, stored, actor)
    is_first = before.state in (State.CREATED, State.RESUMING)
    touched = tasks.record(tx, after, change.tasks, now, is_first) if change.tasks else False
    if after.state != before.state and after.state in (State.CANCELLED, State.ERROR):
        touched = tasks.finalise(tx, after, now) or touched
    following = _roll_up(tx, at, after, change, now, actor) if visible else None
    over = after.state in TERMINAL or (after.state is State.PAUSED and not change.kept)
    if after.state != before.state and over and stored:
        outbox.put(tx, after, stored, now + (change.removal_after or 0), wipe_storage=False)
    if after.state != before.state and wanted(after.spec["executor"]):
        _devices_of(tx, after, change)
    if visible or touched:
        tx.wake("job", before.job_id)
    return Moved(after, following)


def _devices_of(tx: Tx, after: StepRecord, change: Move) -> None:
    """Give back what work that is proven to be over held; what may go on keeps its devices."""
    if after.state is State.RESUMING:
        tx.wake("gpus", after.id)
    elif after.state in TERMINAL or after.state is State.PAUSED:
        if change.ended:
            gpus.free(tx, after.id)
        else:
            gpus.leave_queue(tx, after.id)


def insert_step(tx: Tx, new: StepRecord, actor: str, owner: str | None, until: int | None) -> None:
    """Insert the row of a step that was just created; `owner` holds it `until` then, if anybody."""
    wants = wanted(new.spec["executor"])
    if wants and new.state is State.CREATED:
        tx.wake("gpus", new.id)
    tx.count(
        _INSERT_STEP,
        {
            **new._asdict(),
            "state": new.state.value,
            "spec": dump(new.spec),
            "status_details": dump(new.status_details),
            "lease_owner": owner,
            "lease_until": until,
            "gpus": wants,
            "created_by": actor,
            "updated_by": actor,
        },
    )


def waiting_text(provider: str, profile: str) -> str:
    return f"waits for a place on {provider}/{profile}"


#: Details that tell how a run ended.
_ENDS = ("exit_code", "signal", "cpu_seconds", "peak_memory_bytes")


def _after(before: StepRecord, change: Move, now: int) -> StepRecord:
    state = change.path[-1] if change.path else before.state
    reason, message = text(change.reason), text(change.message)
    if not reason:
        moved = state != before.state
        reason = _DEFAULT_REASON[state].value if moved else before.reason
        message = message or ("" if moved else before.message)
    error = change.error_details or before.error_details
    if state is State.ERROR and not error:
        error = {"message": message or reason}
    shown = {"reason": reason, "message": message}
    kept = before.status_details
    if state is State.RESUMING:  # how the run before it ended says nothing about the next one
        kept = {name: value for name, value in kept.items() if name not in _ENDS}
    details = {**kept, **change.status_details, **shown}
    changes: Json = {}
    if change.path or (reason, message, details, error) != _shown(before):
        changes = {
            "state": state,
            "reason": reason,
            "message": message,
            "since": before.since if (state, reason) == (before.state, before.reason) else now,
            "status_details": details,
            "error_details": error,
            "db_version": before.db_version + (len(change.path) or 1),
            "updated_at": now,
            **_active_time(before, change.path, now),
        }
    for name in ("handle", "host", "generation", "stop_reason", "due_at"):
        value = getattr(change, name)
        if value is not None:
            changes[name] = value
    if state in TERMINAL or state is State.PAUSED:
        changes["lease_token"] = None
    if state is State.PAUSED and change.path and (before.handle or change.handle):
        # The next run of the step is another workload; the row keeps the handle for its storage.
        generation = max(before.generation + 1, change.generation or 0)
        changes |= {"generation": generation, "handle": None, "log_cursor": None}
    return before._replace(**changes) if changes else before


def _shown(before: StepRecord) -> tuple[Any, ...]:
    return before.reason, before.message, before.status_details, before.error_details


def _active_time(before: StepRecord, path: Sequence[State], now: int) -> Json:
    """Bookkeeping of the time spent active, over all hops of `path`."""
    since, used = before.active_since, before.active_used
    if State.ACTIVE in path and since is None:
        since = now
    if path and path[-1] is not State.ACTIVE and since is not None:
        used, since = used + max(0, now - since), None
    return {"active_since": since, "active_used": used}


def _write_step(tx: Tx, at: Located, after: StepRecord, stored: Json | None, actor: str) -> None:
    freed = after.lease_token is None and at.step.lease_token is not None
    tx.count(
        _UPDATE_AND_FREE_STEP if freed else _UPDATE_STEP,
        {
            "step_id": after.id,
            "state": after.state.value,
            "reason": after.reason,
            "message": after.message,
            "since": after.since,
            "status_details": dump(after.status_details),
            "error_details": dump_or_none(after.error_details),
            "db_version": after.db_version,
            "generation": after.generation,
            "handle": dump_or_none(stored),
            "host": after.host,
            "due_at": after.due_at,
            "active_since": after.active_since,
            "active_used": after.active_used,
            "stop_reason": after.stop_reason,
            "log_cursor": dump_or_none(after.log_cursor),
            "updated_at": after.updated_at,
            "updated_by": actor,
        },
    )


def _roll_up(tx: Tx, at: Located, after: StepRecord, change: Move, now: int, actor: str) -> StepRecord | None:
    """Attempt and job follow their current step, hop by hop; events tell each hop."""
    following: StepRecord | None = None
    if after.state is State.COMPLETED and change.path and after.ordinal + 1 < after.steps_total:
        following = _create_next(tx, at, after, change, now, actor)
    earlier = [State.COMPLETED] * after.ordinal
    state, job_state = at.step.state, at.job_state
    common = {
        **{"job_id": after.job_id, "attempt_id": after.attempt_id, "step_id": after.id},
        **{"kind": "step", "reason": after.reason, "actor": actor, "at": now},
    }
    happened: list[Json] = []
    for target in change.path:
        last = target is change.path[-1]
        states = [*earlier, target, State.CREATED] if last and following else [*earlier, target]
        rolled = rollup(states, after.steps_total)
        hop = {"from_state": state.value, "to_state": target.value}
        if rolled is not job_state:
            hop |= {"job_from": job_state.value, "job_to": rolled.value}
        happened.append({**common, **hop, "message": after.message if last else ""})
        state, job_state = target, rolled
    if happened:
        events.append(tx, happened)
    if happened or after.state is not State.COMPLETED or after.ordinal + 1 == after.steps_total:
        _mirror(tx, at, (following or after, after), job_state, change.retention, now)
    return following


def _mirror(
    tx: Tx, at: Located, steps: tuple[StepRecord, StepRecord], job_state: State, keeps: Retention, now: int
) -> None:
    """Have attempt and job show what their current step, the first of `steps`, does."""
    current, after = steps
    error = after.error_details if job_state is State.ERROR else None
    shown = {
        "state": job_state.value,
        "reason": current.reason,
        "message": current.message,
        "since": current.since,
        "error_details": dump_or_none(error),
        "updated_at": now,
    }
    if job_state in TERMINAL or not at.is_current:
        tx.count(_UPDATE_ATTEMPT, {**shown, "the_id": after.attempt_id})
    if at.is_current:
        due = {"storage_due_at": _storage_due(tx, current, job_state, keeps)}
        tx.count(_UPDATE_JOB, {**shown, **due, "the_id": after.job_id, "attempt": after.attempt_id})
        if job_state is not at.job_state:
            tx.tally(after.workspace, at.job_state.value, -1)
            tx.tally(after.workspace, job_state.value, 1)


def _storage_due(tx: Tx, current: StepRecord, job_state: State, keeps: Retention) -> int | None:
    if job_state is State.PAUSED:
        row = tx.one(_CONTROL, {"the_job": current.job_id})
        own = load(row[0]).get("pause_ttl_seconds") if row and row[0] else None
        return keeps.due(job_state, (current.provider, current.profile), current.since, own)
    return keeps.due(job_state, (current.provider, current.profile), current.since)


def _create_next(
    tx: Tx, at: Located, after: StepRecord, change: Move, now: int, actor: str
) -> StepRecord | None:
    row = tx.one(_PLATFORM_SPEC, {"the_attempt": after.attempt_id})
    assert row is not None, "a locked job can't be missing"  # noqa: S101
    spec: Json = load(row[0])["steps"][after.ordinal + 1]
    # One that wants devices is claimed together with them.
    wants = wanted(spec["executor"])
    held = change.claim_next and at.step.lease_token is not None and not wants
    created = _next_step(after, spec, at.step.lease_token if held else None, now)
    insert_step(tx, created, actor, at.lease_owner if held else None, at.lease_until if held else None)
    if not held:
        tx.wake("work", created.id)
    return created


def _next_step(after: StepRecord, spec: Json, lease_token: str | None, now: int) -> StepRecord:
    # What the step before left in the job's storage lies on that host.
    host = after.host if _shares_storage(spec["executor"]["provider"], after.provider) else None
    what = {name: getattr(after, name) for name in _OF_JOB}
    return new_step(what, spec, after.ordinal + 1, host, now)._replace(lease_token=lease_token)


def _shares_storage(provider: str, before: str) -> bool:
    """With and without GPUs, containers of one engine have the same volume."""
    return provider == before or {provider, before} == {"cpu", "gpu"}


_OF_JOB = (
    *("attempt_id", "job_id", "workspace", "job", "steps_total"),
    *("fileset", "output_location", "attempt_seq", "auth_context"),
)


def new_step(what: Json, spec: Json, ordinal: int, host: str | None, now: int) -> StepRecord:
    """A step that waits for a place; `what` has what a step takes from its job and attempt."""
    provider, profile = spec["executor"]["provider"], spec["executor"]["profile"]
    reason, message = Reason.QUEUED.value, waiting_text(provider, profile)
    return StepRecord(
        id=names.new_id(names.STEP_ID, now),
        name=spec["name"],
        ordinal=ordinal,
        provider=provider,
        profile=profile,
        spec=spec,
        state=State.CREATED,
        reason=reason,
        message=message,
        since=now,
        status_details={"reason": reason, "message": message},
        error_details=None,
        generation=0,
        handle=None,
        host=host,
        due_at=now,
        lease_token=None,
        active_since=None,
        active_used=0,
        stop_reason=None,
        log_cursor=None,
        db_version=1,
        created_at=now,
        updated_at=now,
        **what,
    )

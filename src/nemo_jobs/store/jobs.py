"""Jobs: what people ask of them, each as one transaction.

Every change of a job locks its row first, so that changes of one job come one after the other,
whichever service they come through.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.model import Conflict, JobRecord, Json, NotFound, Reason, StepRecord
from nemo_jobs.domain.states import State, Trigger, advance
from nemo_jobs.store import events as event_log
from nemo_jobs.store.deletion import delete_job, prune
from nemo_jobs.store.events import EventRecord, events
from nemo_jobs.store.listing import JobQuery, StepQuery, list_jobs, list_steps
from nemo_jobs.store.lookup import (
    StatusTree,
    get_job,
    get_step,
    get_task,
    list_tasks,
    lock_current_step,
    lock_job,
    status_tree,
)
from nemo_jobs.store.moves import Located, Move, insert_step, move, new_step, waiting_text
from nemo_jobs.store.records import dump, load, text
from nemo_jobs.store.reports import merge_status_details, put_task, update_step_status
from nemo_jobs.store.sql import Statement, Tx, insert_into
from nemo_jobs.store.tables import attempt, job, workspace

__all__ = [
    "EventRecord",
    "JobQuery",
    "Lease",
    "NewJob",
    "StatusTree",
    "StepQuery",
    "create_held",
    "create_job",
    "delete_job",
    "events",
    "get_job",
    "get_step",
    "get_task",
    "list_jobs",
    "list_steps",
    "list_tasks",
    "merge_status_details",
    "prune",
    "put_task",
    "request",
    "status_tree",
    "update_step_status",
]


@dataclass(frozen=True, slots=True)
class NewJob:
    """A checked job to be stored. JSON that is only stored comes as text; `platform_spec` is the
    wire's, with all defaults."""

    workspace: str
    name: str
    source: str
    spec: str
    platform_spec: Json
    fileset: str
    auth_context: str
    project: str | None = None
    description: str | None = None
    output_location: str | None = None
    ownership: str | None = None
    custom_fields: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds a step until when; with `host` the step belongs to that host."""

    owner: str
    token: str
    until: int
    host: str | None = None


_HAS_WORKSPACE = Statement(sa.select(workspace.c.name).where(workspace.c.name == sa.bindparam("the_name")))
_INSERT_JOB = Statement(
    lambda dialect: insert_into(job, dialect).on_conflict_do_nothing(index_elements=["workspace", "name"])
)
_INSERT_ATTEMPT = Statement(
    sa.insert(attempt).inline().values({column.name: sa.bindparam(column.name) for column in attempt.c})
)


def create_job(tx: Tx, new: NewJob, now: int, actor: str) -> JobRecord:
    """Store a job with its first attempt and step. Raises NotFound for an unknown workspace and
    Conflict for a name that is taken."""
    job, step = _records(tx, new, now)
    _insert(tx, job, step, actor, None)
    tx.wake("work", step.id)
    return job


def create_held(tx: Tx, new: NewJob, lease: Lease, now: int, actor: str) -> tuple[JobRecord, StepRecord]:
    """Like `create_job`, and the first step is held from the beginning: whoever has a place for
    it saves the claim. It is the caller's to look after once this is committed."""
    job, step = _records(tx, new, now)
    step = step._replace(lease_token=lease.token, host=lease.host)
    _insert(tx, job, step, actor, lease)
    return job, step


def _records(tx: Tx, new: NewJob, now: int) -> tuple[JobRecord, StepRecord]:
    if tx.one(_HAS_WORKSPACE, {"the_name": new.workspace}) is None:
        raise NotFound(f"no workspace {new.workspace!r}; create it first")
    executor = new.platform_spec["steps"][0]["executor"]
    provider, profile = executor["provider"], executor["profile"]
    reason, message = Reason.QUEUED.value, waiting_text(provider, profile)
    job = JobRecord(
        id=names.new_id(names.JOB_ID, now),
        workspace=new.workspace,
        name=new.name,
        attempt_id=names.new_id(names.ATTEMPT_ID, now),
        project=new.project,
        description=new.description and text(new.description),
        source=text(new.source),
        spec=new.spec,
        platform_spec=dump(new.platform_spec),
        fileset=new.fileset,
        output_location=new.output_location,
        ownership=new.ownership,
        custom_fields=new.custom_fields,
        auth_context=new.auth_context,
        state=State.CREATED.value,
        reason=reason,
        message=message,
        since=now,
        status_details="{}",
        error_details=None,
        created_at=now,
        updated_at=now,
    )
    return job, first_step(job, new.platform_spec["steps"], 0, now)


def first_step(job: JobRecord, steps: list[Json], attempt_seq: int, now: int) -> StepRecord:
    """The first step of the job's current attempt, just created and held by nobody."""
    what = {
        "attempt_id": job.attempt_id,
        "job_id": job.id,
        "workspace": job.workspace,
        "job": job.name,
        "steps_total": len(steps),
        "fileset": job.fileset,
        "output_location": job.output_location,
        "attempt_seq": attempt_seq,
        "auth_context": load(job.auth_context),
    }
    return new_step(what, steps[0], 0, None, now)


def _insert(tx: Tx, record: JobRecord, first: StepRecord, actor: str, lease: Lease | None) -> None:
    shown = record._asdict()
    if not tx.count(_INSERT_JOB, {**shown, "steps_total": first.steps_total, "control": None}):
        raise Conflict(
            f"job name {record.name!r} is taken in workspace {record.workspace!r}; "
            "choose another or delete the old job"
        )
    of_attempt = {"id": record.attempt_id, "job_id": record.id, "name": names.attempt_name(), "seq": 0}
    own = {"spec": None, "platform_spec": None, "steps_total": None}
    tx.count(_INSERT_ATTEMPT, {**shown, **of_attempt, **own, "log_lines": 0, "log_bytes": 0})
    insert_step(tx, first, actor, lease.owner if lease else None, lease.until if lease else None)
    made = {"job_id": record.id, "attempt_id": record.attempt_id, "kind": "job", "actor": actor}
    event_log.append(tx, [{**made, "reason": record.reason, "to_state": "created", "at": record.created_at}])
    tx.tally(record.workspace, State.CREATED.value, 1)
    tx.wake("job", record.id)


def request(tx: Tx, workspace: str, name: str, trigger: Trigger, now: int, actor: str) -> JobRecord:
    """Cancel, pause or resume; the job as it is afterwards, unchanged where that means nothing."""
    found = lock_job(tx, workspace, name)
    at = lock_current_step(tx, found)
    target = _target(at, trigger)
    if target is None or target is at.step.state:
        return found
    reason, message = _ASKED[target]
    if target is State.RESUMING:
        message = waiting_text(at.step.provider, at.step.profile)
    move(tx, at, Move(path=(target,), reason=reason, message=message, due_at=now), now, actor)
    tx.wake("work", at.step.id)
    return get_job(tx, found.workspace, found.id)


_ASKED: dict[State, tuple[Reason, str]] = {
    State.CANCELLED: (Reason.CANCELLED_BY_USER, "cancelled before it started"),
    State.CANCELLING: (Reason.STOPPING, "cancel was asked for; waits until its work has ended"),
    State.PAUSING: (Reason.STOPPING, "pause was asked for; waits until its work has ended"),
    State.RESUMING: (Reason.QUEUED, ""),
}


def _target(at: Located, trigger: Trigger) -> State | None:
    if at.step.state is State.CREATED and trigger is Trigger.CANCEL and at.step.lease_token is not None:
        # Its holder may be starting it just now, or may have died right after the start.
        return State.CANCELLING
    return advance(at.step.state, trigger)

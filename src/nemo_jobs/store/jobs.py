"""Jobs: what people ask of them, each as one transaction.

Every change of a job locks its row first, so that changes of one job come one after the other,
whichever service they come through.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.model import Conflict, Invalid, JobRecord, Json, NotFound, Reason, StepRecord
from nemo_jobs.domain.retention import DEFAULT, Retention
from nemo_jobs.domain.states import State, Trigger, advance
from nemo_jobs.store import events as event_log
from nemo_jobs.store import filesets, labels, projects
from nemo_jobs.store.deletion import delete_job, prune
from nemo_jobs.store.events import EventRecord, events
from nemo_jobs.store.job_rows import rows_of
from nemo_jobs.store.listing import JobPage, JobQuery, StepQuery, list_jobs, list_steps
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
from nemo_jobs.store.reports import Expected, merge_status_details, put_task, update_step_status
from nemo_jobs.store.sql import Statement, Tx, insert_into
from nemo_jobs.store.tables import attempt, job, workspace

__all__ = [
    "EventRecord",
    "Expected",
    "JobPage",
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
    "rows_of",
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
    labels: tuple[tuple[str, str], ...] = ()
    control: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds a step until when; with `host` the step belongs to that host."""

    owner: str
    token: str
    until: int
    host: str | None = None


#: The workspace, and whether it has a fileset of that name.
_WORKSPACE = Statement(
    sa.select(workspace.c.name, filesets.HAS_ROW).where(workspace.c.name == sa.bindparam("in_workspace"))
)
_INSERT_JOB = Statement(
    lambda dialect: insert_into(job, dialect).on_conflict_do_nothing(index_elements=["workspace", "name"])
)
_INSERT_ATTEMPT = Statement(
    sa.insert(attempt).inline().values({column.name: sa.bindparam(column.name) for column in attempt.c})
)


def create_job(tx: Tx, new: NewJob, now: int, actor: str) -> JobRecord:
    """Store a job with its first attempt and step. Raises NotFound for an unknown workspace,
    Conflict for a name that is taken, Invalid for an unknown project."""
    job, step = new_records(tx, new, now)
    insert_job(tx, new, job, step, actor, None)
    return job


def create_held(tx: Tx, new: NewJob, lease: Lease, now: int, actor: str) -> tuple[JobRecord, StepRecord]:
    """Like `create_job`, and the first step is held from the beginning: whoever has a place for
    it saves the claim. It is the caller's to look after once this is committed."""
    job, step = new_records(tx, new, now)
    step = step._replace(lease_token=lease.token, host=lease.host)
    insert_job(tx, new, job, step, actor, lease)
    return job, step


def new_records(tx: Tx, new: NewJob, now: int) -> tuple[JobRecord, StepRecord]:
    """What `insert_job` is to store. Only reads. Raises NotFound for an unknown workspace and
    Conflict when somebody made a fileset with the name of the job's own."""
    row = tx.one(_WORKSPACE, {"in_workspace": new.workspace, "the_name": new.fileset})
    if row is None:
        raise NotFound(f"no workspace {new.workspace!r}; create it first")
    if row[1] and new.output_location is None and not _is_job(tx, new):
        raise _fileset_taken(new)
    job = _job_record(new, now)
    return job, first_step(job, new.platform_spec["steps"], 0, now)


def _job_record(new: NewJob, now: int) -> JobRecord:
    executor = new.platform_spec["steps"][0]["executor"]
    provider, profile = executor["provider"], executor["profile"]
    reason, message = Reason.QUEUED.value, waiting_text(provider, profile)
    return JobRecord(
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
        control=new.control,
    )


def first_step(job: JobRecord, steps: list[Json], attempt_seq: int, now: int) -> StepRecord:
    """The first step of the job's current attempt, just created and held by nobody."""
    return new_step(_of_job(job, len(steps), attempt_seq), steps[0], 0, None, now)


def steps_of(new: NewJob, now: int) -> list[StepRecord]:
    """All steps as they would be in an attempt of their own; nothing of it is stored."""
    specs = new.platform_spec["steps"]
    what = _of_job(_job_record(new, now), len(specs), 0)
    return [new_step(what, spec, number, None, now) for number, spec in enumerate(specs)]


def _of_job(job: JobRecord, steps_total: int, attempt_seq: int) -> Json:
    return {
        "attempt_id": job.attempt_id,
        "job_id": job.id,
        "workspace": job.workspace,
        "job": job.name,
        "steps_total": steps_total,
        "fileset": job.fileset,
        "output_location": job.output_location,
        "attempt_seq": attempt_seq,
        "auth_context": load(job.auth_context),
    }


def check_new(tx: Tx, new: NewJob) -> None:
    """What `create_job` checks, without creating anything: it raises the same errors."""
    if tx.one(_WORKSPACE, {"in_workspace": new.workspace, "the_name": new.fileset}) is None:
        raise NotFound(f"no workspace {new.workspace!r}; create it first")
    if _is_job(tx, new):
        raise _taken(new)
    if new.project is not None and not projects.is_there(tx, new.workspace, new.project):
        raise _no_project(new)
    there = filesets.find_fileset(tx, new.workspace, new.fileset) is not None
    if there is not (new.output_location is not None):
        raise _fileset_taken(new) if there else _no_fileset(new)


def _is_job(tx: Tx, new: NewJob) -> bool:
    try:
        get_job(tx, new.workspace, new.name)
    except NotFound:
        return False
    return True


def _no_project(new: NewJob) -> Invalid:
    return Invalid(
        f"project {new.project!r} does not exist in workspace {new.workspace!r}; "
        "create it first or leave it out"
    )


def _no_fileset(new: NewJob) -> Invalid:
    return Invalid(
        f"output_location {new.output_location!r}: no such fileset in workspace {new.workspace!r}, or it is "
        "closed to you; create it first or leave output_location out"
    )


def _fileset_taken(new: NewJob) -> Conflict:
    return Conflict(
        f"fileset {new.fileset!r}, which the job would get, exists already in workspace {new.workspace!r}; "
        "choose another job name, delete the fileset, or name it as output_location"
    )


def _taken(new: NewJob) -> Conflict:
    return Conflict(
        f"job name {new.name!r} is taken in workspace {new.workspace!r}; choose another or delete the old job"
    )


def insert_job(
    tx: Tx, new: NewJob, record: JobRecord, first: StepRecord, actor: str, lease: Lease | None
) -> None:
    """Store what `new_records` made. Raises Conflict for a name that is taken, Invalid for an
    unknown project or output_location."""
    if new.project is not None and not projects.hold(tx, new.workspace, new.project):
        check_new(tx, new)
        raise _no_project(new)
    if new.output_location is not None and not filesets.hold(tx, new.workspace, new.output_location):
        check_new(tx, new)
        raise _no_fileset(new)
    shown = record._asdict()
    if not tx.count(_INSERT_JOB, {**shown, "steps_total": first.steps_total, "storage_due_at": None}):
        raise _taken(new)
    if new.labels:
        labels.put(tx, record, new.labels)
    of_attempt = {"id": record.attempt_id, "job_id": record.id, "name": names.attempt_name(), "seq": 0}
    own = {"spec": None, "platform_spec": None, "steps_total": None, "storage_reclaimed_at": None}
    tx.count(_INSERT_ATTEMPT, {**shown, **of_attempt, **own, "log_lines": 0, "log_bytes": 0})
    insert_step(tx, first, actor, lease.owner if lease else None, lease.until if lease else None)
    made = {"job_id": record.id, "attempt_id": record.attempt_id, "kind": "job", "actor": actor}
    event_log.append(tx, [{**made, "reason": record.reason, "to_state": "created", "at": record.created_at}])
    tx.tally(record.workspace, State.CREATED.value, 1)
    tx.wake("job", record.id)
    if lease is None:
        tx.wake("work", first.id)


def request(
    tx: Tx,
    workspace: str,
    name: str,
    trigger: Trigger,
    now: int,
    actor: str,
    retention: Retention = DEFAULT,
) -> JobRecord:
    """Cancel, pause or resume; the job as it is afterwards, unchanged where that means nothing."""
    found = lock_job(tx, workspace, name)
    at = lock_current_step(tx, found)
    target = _target(at, trigger)
    if target is None or target is at.step.state:
        return found
    reason, message = _ASKED[target]
    if target is State.RESUMING:
        message = waiting_text(at.step.provider, at.step.profile)
    change = Move(path=(target,), reason=reason, message=message, due_at=now, retention=retention)
    move(tx, at, change, now, actor)
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

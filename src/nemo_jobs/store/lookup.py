"""Finding jobs, steps and tasks by what people call them. A name comes first, then an id."""

from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain.model import JobRecord, NotFound, StepRecord, TaskRecord
from nemo_jobs.store import tasks
from nemo_jobs.store.logs import Selector, attempt_of
from nemo_jobs.store.moves import Located
from nemo_jobs.store.records import JOB_COLUMNS, step_record, steps_joined
from nemo_jobs.store.sql import Row, Statement, Tx
from nemo_jobs.store.tables import job, step


@dataclass(frozen=True, slots=True)
class StatusTree:
    """A job with the steps of its current attempt, in order, and their tasks."""

    job: JobRecord
    steps: tuple[tuple[StepRecord, tuple[TaskRecord, ...]], ...]


_JOBS = sa.select(*JOB_COLUMNS).where(job.c.workspace == sa.bindparam("in_workspace"))
_BY_NAME = Statement(_JOBS.where(job.c.name == sa.bindparam("asked")))
_BY_ID = Statement(_JOBS.where(job.c.id == sa.bindparam("asked")))
_LOCK_BY_NAME = Statement(_JOBS.where(job.c.name == sa.bindparam("asked")).with_for_update())
_LOCK_BY_ID = Statement(_JOBS.where(job.c.id == sa.bindparam("asked")).with_for_update())
_OF_ATTEMPT = steps_joined().where(step.c.attempt_id == sa.bindparam("in_attempt"))
_STEPS = Statement(_OF_ATTEMPT.order_by(step.c.ordinal))
_STEP_BY_NAME = Statement(_OF_ATTEMPT.where(step.c.name == sa.bindparam("asked")))
_LOCK_LAST = Statement(
    _OF_ATTEMPT.order_by(step.c.ordinal.desc()).limit(sa.literal_column("1")).with_for_update(of=[step])
)
_LOCK_STEP = Statement(_OF_ATTEMPT.where(step.c.name == sa.bindparam("asked")).with_for_update(of=[step]))


def get_job(tx: Tx, workspace: str, name: str) -> JobRecord:
    """The job of that name, else of that id, in `workspace`. Raises NotFound."""
    key = {"in_workspace": workspace, "asked": name}
    row = tx.one(_BY_NAME, key) or tx.one(_BY_ID, key)
    return JobRecord(*_present(row, workspace, name))


def lock_job(tx: Tx, workspace: str, name: str) -> JobRecord:
    """Like `get_job`; nobody else changes the job until the transaction ends."""
    key = {"in_workspace": workspace, "asked": name}
    row = tx.one(_LOCK_BY_NAME, key) or tx.one(_LOCK_BY_ID, key)
    return JobRecord(*_present(row, workspace, name))


def _present(row: Row, workspace: str, name: str) -> Row:
    if row is None:
        raise NotFound(f"no job {name!r} in workspace {workspace!r}")
    return row


def lock_current_step(tx: Tx, found: JobRecord) -> Located:
    """The last step of the current attempt of a locked job."""
    row = tx.one(_LOCK_LAST, {"in_attempt": found.attempt_id})
    if row is None:
        raise NotFound(f"job {found.name!r} has no steps")
    return Located.of(row)


def attempt_in(tx: Tx, found: JobRecord, attempt: Selector) -> str:
    """The id of an attempt of the job; None means the current one. Raises NotFound."""
    return found.attempt_id if attempt is None else attempt_of(tx, found.id, attempt)


def lock_step(tx: Tx, found: JobRecord, name: str, attempt: Selector = None) -> Located:
    """A step of an attempt of a locked job. Raises NotFound."""
    row = tx.one(_LOCK_STEP, {"in_attempt": attempt_in(tx, found, attempt), "asked": name})
    if row is None:
        raise _no_step(found, name)
    return Located.of(row)


def get_step(tx: Tx, workspace: str, job_name: str, name: str, attempt: Selector = None) -> StepRecord:
    """A step of an attempt (None: the current one), by name. Raises NotFound."""
    found = get_job(tx, workspace, job_name)
    row = tx.one(_STEP_BY_NAME, {"in_attempt": attempt_in(tx, found, attempt), "asked": name})
    if row is None:
        raise _no_step(found, name)
    return step_record(row)


def list_tasks(
    tx: Tx, workspace: str, job_name: str, step_name: str, attempt: Selector = None
) -> list[TaskRecord]:
    """The tasks of a step of an attempt, by rank."""
    return tasks.of_step(tx, get_step(tx, workspace, job_name, step_name, attempt).id)


def get_task(
    tx: Tx, workspace: str, job_name: str, step_name: str, name: str, attempt: Selector = None
) -> TaskRecord:
    """A task of a step of an attempt, by name or id. Raises NotFound."""
    found = tasks.find(tx, get_step(tx, workspace, job_name, step_name, attempt).id, name)
    if found is None:
        where = f"step {step_name!r} of job {job_name!r} in workspace {workspace!r}"
        raise NotFound(f"no task {name!r} in {where}")
    return found


def status_tree(tx: Tx, workspace: str, name: str) -> StatusTree:
    found = get_job(tx, workspace, name)
    steps = [step_record(row) for row in tx.run(_STEPS, {"in_attempt": found.attempt_id})]
    return StatusTree(found, tuple((one, tuple(tasks.of_step(tx, one.id))) for one in steps))


def _no_step(found: JobRecord, name: str) -> NotFound:
    return NotFound(f"no step {name!r} in job {found.name!r} of workspace {found.workspace!r}")

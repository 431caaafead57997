"""Deleting jobs: the record goes in one transaction, its workloads through the outbox."""

import sqlalchemy as sa

from nemo_jobs.domain.model import Conflict, JobRecord
from nemo_jobs.domain.states import TERMINAL, State
from nemo_jobs.store import events, filesets, outbox
from nemo_jobs.store.driver import off_loop
from nemo_jobs.store.lookup import lock_job
from nemo_jobs.store.records import JOB_COLUMNS, load_or_none, step_record, steps_joined
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import attempt, event, job, removal, step, workspace

_ALL_STEPS = Statement(
    steps_joined()
    .where(step.c.job_id == sa.bindparam("the_job"), attempt.c.job_id == sa.bindparam("the_job"))
    .order_by(attempt.c.seq, step.c.ordinal)
)
_HASTEN = Statement(
    sa.update(removal)
    .where(removal.c.job_id == sa.bindparam("the_job"))
    .values(due_at=sa.bindparam("now"), wipe_storage=1)
)
_FORGET_EVENTS = Statement(sa.delete(event).where(event.c.job_id == sa.bindparam("the_job")))
_DELETE = Statement(sa.delete(job).where(job.c.id == sa.bindparam("the_job")))
_ENDED_BEFORE = Statement(
    sa.select(*JOB_COLUMNS)
    .where(
        job.c.workspace == sa.bindparam("in_workspace"),
        job.c.updated_at < sa.bindparam("before"),
        sa.text("job.state IN ('completed', 'error', 'cancelled')"),
    )
    .order_by(job.c.updated_at, job.c.id)
    .limit(sa.bindparam("n", type_=sa.Integer))
    .with_for_update(skip_locked=True)
)
_OLD_TRACES = Statement(
    sa.delete(event).where(
        event.c.reason == "deleted", event.c.to_state.is_(None), event.c.at < sa.bindparam("before")
    )
)


@off_loop
def delete_job(tx: Tx, workspace: str, name: str, now: int) -> None:
    """Delete an ended job with everything that belongs to it; its name is free at once. Raises
    Conflict while something of it is open."""
    found = lock_job(tx, workspace, name)
    rows = tx.run(_ALL_STEPS, {"the_job": found.id})
    for row in rows:
        record = step_record(row)
        if record.state not in TERMINAL:
            raise Conflict(
                f"job {found.name!r} can't be deleted: its step {record.name!r} is {record.state}; "
                "cancel the job first and wait until it has ended"
            )
    if found.state not in TERMINAL:
        raise Conflict(
            f"job {found.name!r} can't be deleted: it is {found.state}; "
            "cancel it first and wait until it has ended"
        )
    _delete(tx, found, now)


def _delete(tx: Tx, found: JobRecord, now: int) -> None:
    for row in tx.run(_ALL_STEPS, {"the_job": found.id}):
        handle = load_or_none(row[18])
        if handle:
            # Its workload may be gone already, but the storage it shared is not.
            outbox.put(tx, step_record(row), handle, now, wipe_storage=True)
    tx.count(_HASTEN, {"the_job": found.id, "now": now})
    filesets.drop_of_job(tx, found, now)
    tx.count(_FORGET_EVENTS, {"the_job": found.id})
    tx.count(_DELETE, {"the_job": found.id})
    trace = {"job_id": found.id, "attempt_id": found.attempt_id, "kind": "job", "reason": "deleted"}
    events.append(tx, [{**trace, "from_state": found.state, "actor": "service:jobs", "at": now}])
    tx.tally(found.workspace, State(found.state).value, -1)
    tx.wake("job", found.id)


@off_loop
def prune(tx: Tx, before: int, limit: int, dry_run: bool) -> list[JobRecord]:
    """Delete up to `limit` jobs that ended before `before`; which ones. With `dry_run`: which
    ones it would be."""
    found: list[JobRecord] = []
    for (name,) in tx.run(sa.select(workspace.c.name).order_by(workspace.c.name)):
        params = {"in_workspace": name, "before": before, "n": limit - len(found)}
        found += [JobRecord(*row) for row in tx.run(_ENDED_BEFORE, params)]
        if len(found) >= limit:
            break
    if not dry_run:
        for record in found:
            _delete(tx, record, max(before, record.updated_at))
        tx.count(_OLD_TRACES, {"before": before})
    return found

"""What metrics and traces ask, across all workspaces."""

import sqlalchemy as sa

from nemo_jobs.domain.model import JobRecord, NotFound
from nemo_jobs.store.records import JOB_COLUMNS
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import event, job, job_count

_LAST_EVENT = Statement(sa.select(sa.func.coalesce(sa.func.max(event.c.id), 0)))
_BY_ID = Statement(sa.select(*JOB_COLUMNS).where(job.c.id == sa.bindparam("asked")))
_COUNTS = Statement(
    sa.select(
        job_count.c.workspace, job_count.c.state, sa.cast(sa.func.sum(job_count.c.n), sa.BigInteger)
    ).group_by(job_count.c.workspace, job_count.c.state)
)


def last_event_id(tx: Tx) -> int:
    """The number of the newest event; 0 when there is none."""
    row = tx.one(_LAST_EVENT)
    return int(row[0]) if row else 0


def job_counts(tx: Tx) -> dict[tuple[str, str], int]:
    """How many jobs are in each state, by workspace and state."""
    return {(workspace, state): n for workspace, state, n in tx.run(_COUNTS)}


def job_by_id(tx: Tx, job_id: str) -> JobRecord:
    """A job of any workspace. Raises NotFound."""
    row = tx.one(_BY_ID, {"asked": job_id})
    if row is None:
        raise NotFound(f"no job with id {job_id!r}")
    return JobRecord(*row)

"""Which jobs something is to be done to: those that match a filter, the oldest first."""

from typing import NamedTuple

import sqlalchemy as sa

from nemo_jobs.domain.filters import Node
from nemo_jobs.domain.model import NotFound
from nemo_jobs.domain.states import Trigger
from nemo_jobs.store import jobs
from nemo_jobs.store.filters import compile_filter
from nemo_jobs.store.label_search import search_by_label
from nemo_jobs.store.lookup import lock_job
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import job, workspace


class Found(NamedTuple):
    """A job as far as it matters here."""

    id: str
    name: str
    state: str
    created_at: int


_HAS_WORKSPACE = Statement(sa.select(workspace.c.name).where(workspace.c.name == sa.bindparam("the_name")))


def find(
    tx: Tx, workspace: str, where: Node, after: tuple[int, str] | None, limit: int
) -> tuple[list[Found], int]:
    """Up to `limit` jobs that match behind `after` (created_at, id), by age, and how many there
    are behind it in all. Raises NotFound for an unknown workspace."""
    if tx.one(_HAS_WORKSPACE, {"the_name": workspace}) is None:
        raise NotFound(f"no workspace {workspace!r}")
    labelled = search_by_label(tx, where, workspace)
    if labelled is not None:
        source, conditions, order = labelled.source, labelled.where, (labelled.created, labelled.id)
    else:
        source, order = job, (job.c.created_at, job.c.id)
        conditions = (job.c.workspace == workspace, compile_filter(where, tx.dialect))
    if after is not None:
        conditions = (*conditions, sa.tuple_(*order) > after)
    chosen = sa.select(job.c.id, job.c.name, job.c.state, job.c.created_at).select_from(source)
    rows = tx.run(chosen.where(*conditions).order_by(*order).limit(limit))
    row = tx.one(sa.select(sa.func.count()).select_from(source).where(*conditions))
    return [Found(*found) for found in rows], int(row[0]) if row else 0


def cancel(tx: Tx, workspace: str, job_id: str, now: int, actor: str) -> tuple[str, bool]:
    """Cancel a job; its state then, and whether that was this call's doing."""
    before = lock_job(tx, workspace, job_id)
    after = jobs.request(tx, workspace, job_id, Trigger.CANCEL, now, actor)
    return after.state, after.state != before.state

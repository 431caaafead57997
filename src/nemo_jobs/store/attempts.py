"""Attempts: each run of a job with its own steps, tasks, log, details and definition.

An attempt has a state of its own from its end on; until then it is the current one of its job
and shows what the job does. A job's definition is that of attempts to come: when it is changed,
the attempts that are there get a copy of what they ran.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from nemo_jobs.domain.model import JobRecord, Json
from nemo_jobs.domain.states import State
from nemo_jobs.store.job_rows import BATCH
from nemo_jobs.store.lookup import attempt_in, get_job, lock_job
from nemo_jobs.store.records import dump, text
from nemo_jobs.store.sql import Row, Statement, Tx
from nemo_jobs.store.tables import attempt, job


class AttemptRecord(NamedTuple):
    """One attempt. JSON columns stay text, as in `JobRecord`."""

    id: str
    name: str
    job_id: str
    workspace: str
    seq: int
    spec: str
    platform_spec: str
    status_details: str
    created_at: int
    state: str
    reason: str
    message: str
    since: int
    error_details: str | None
    updated_at: int
    is_current: bool


@dataclass(frozen=True, slots=True)
class AttemptQuery:
    """One page of a job's attempts; None does not narrow."""

    states: tuple[State, ...] | None = None
    sort: str = "-seq"  # seq; with - descending
    page: int = 1
    page_size: int = 25


class AttemptPage(NamedTuple):
    """The first attempts of a page, how many match in all, and the ids of the page's other ones, which
    were too large to come along: `rows_of` fetches them."""

    attempts: list[AttemptRecord]
    total: int
    rest: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobChange:
    """What to change of a job. `described` says whether `description` was given at all; a
    definition is `spec` as text and the wire's `platform_spec` with all defaults."""

    described: bool = False
    description: str | None = None
    definition: tuple[str, Json] | None = None


_IS_CURRENT = job.c.attempt_id == attempt.c.id
_STATE = sa.case((_IS_CURRENT, job.c.state), else_=attempt.c.state)
_OWN = ("state", "reason", "message", "since", "error_details", "updated_at")
_COLUMNS = (
    *(attempt.c.id, attempt.c.name, attempt.c.job_id, job.c.workspace, attempt.c.seq),
    sa.func.coalesce(attempt.c.spec, job.c.spec),
    sa.func.coalesce(attempt.c.platform_spec, job.c.platform_spec),
    *(attempt.c.status_details, attempt.c.created_at),
    *(sa.case((_IS_CURRENT, job.c[name]), else_=attempt.c[name]) for name in _OWN),
    sa.case((_IS_CURRENT, sa.literal_column("1")), else_=sa.literal_column("0")),
)
_JOINED = attempt.join(job, attempt.c.job_id == job.c.id)
_ALL = sa.select(*_COLUMNS).select_from(_JOINED)
_BY_ID = Statement(_ALL.where(attempt.c.id == sa.bindparam("the_attempt")))


def get_attempt(tx: Tx, workspace: str, job_name: str, selector: int | str | None) -> AttemptRecord:
    """An attempt of a job by number or id; None: the current one. Raises NotFound."""
    return by_id(tx, attempt_in(tx, get_job(tx, workspace, job_name), selector))


def by_id(tx: Tx, attempt_id: str) -> AttemptRecord:
    """An attempt that is there, as its id was just read."""
    row = tx.one(_BY_ID, {"the_attempt": attempt_id})
    assert row is not None, "its id was read in this transaction"  # noqa: S101
    return _record(row)


def _record(row: Row) -> AttemptRecord:
    values: Row = (*row[:-1], bool(row[-1]))
    return AttemptRecord(*values)


def list_attempts(tx: Tx, workspace: str, job_name: str, query: AttemptQuery) -> AttemptPage:
    """A page. Raises NotFound for the job."""
    found = get_job(tx, workspace, job_name)
    where = [attempt.c.job_id == found.id]
    if query.states is not None:
        where.append(_STATE.in_([state.value for state in query.states]))
    row = tx.one(sa.select(sa.func.count()).select_from(_JOINED).where(*where))
    total = int(row[0]) if row else 0
    skip = (query.page - 1) * query.page_size
    if skip >= total:
        return AttemptPage([], total)
    order = attempt.c.seq.desc() if query.sort.startswith("-") else attempt.c.seq
    ids = sa.select(attempt.c.id).select_from(_JOINED).where(*where).order_by(order)
    chosen = [row[0] for row in tx.run(ids.limit(query.page_size).offset(skip))]
    attempts, rest = rows_of(tx, chosen)
    return AttemptPage(attempts, total, rest)


def rows_of(tx: Tx, ids: Sequence[str]) -> tuple[list[AttemptRecord], tuple[str, ...]]:
    """The first of these attempts, in this order, and the ids that are left: each may hold a spec
    of megabytes. One that is gone is left out."""
    found: list[AttemptRecord] = []
    size = 0
    for looked, attempt_id in enumerate(ids, 1):
        row = tx.one(_BY_ID, {"the_attempt": attempt_id})
        if row is None:
            continue
        found.append(_record(row))
        size += len(found[-1].spec) + len(found[-1].platform_spec) + len(found[-1].status_details)
        if size > BATCH:
            return found, tuple(ids[looked:])
    return found, ()


_OF_JOB = attempt.c.job_id == sa.bindparam("the_job")
#: Attempts keep the definition that they ran, before the job gets another one.
_COPY_DEFINITION = Statement(
    sa.update(attempt)
    .where(_OF_JOB, attempt.c.platform_spec.is_(None))
    .values({name: sa.bindparam(f"old_{name}") for name in ("spec", "platform_spec", "steps_total")})
)
_STEPS_TOTAL = Statement(sa.select(job.c.steps_total).where(job.c.id == sa.bindparam("the_job")))
_CHANGE = Statement(
    sa.update(job)
    .where(job.c.id == sa.bindparam("the_job"))
    .values(
        {
            name: sa.bindparam(name)
            for name in ("description", "spec", "platform_spec", "steps_total", "updated_at")
        }
    )
)


def update_job(tx: Tx, workspace: str, name: str, change: JobChange, now: int) -> JobRecord:
    """Change a job's description, or the definition that its next attempts run. Raises NotFound."""
    found = lock_job(tx, workspace, name)
    row = tx.one(_STEPS_TOTAL, {"the_job": found.id})
    assert row is not None, "a locked job can't be missing"  # noqa: S101
    old = {"spec": found.spec, "platform_spec": found.platform_spec, "steps_total": row[0]}
    new = {**old, "description": found.description}
    if change.described:
        new["description"] = change.description and text(change.description)
    if change.definition is not None:
        spec, platform_spec = change.definition
        total = len(platform_spec["steps"])
        new |= {"spec": spec, "platform_spec": dump(platform_spec), "steps_total": total}
        tx.count(_COPY_DEFINITION, {"the_job": found.id, **{f"old_{key}": old[key] for key in old}})
    tx.count(_CHANGE, {"the_job": found.id, **new, "updated_at": max(now, found.updated_at)})
    tx.wake("job", found.id)
    return get_job(tx, found.workspace, found.id)

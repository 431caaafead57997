"""The append-only record of what happened, in the order in which it may be read.

On PostgreSQL numbers are given before commits: an event is shown only when every transaction
that began before it has ended, so that a reader who remembers the last number misses nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain.model import Json
from nemo_jobs.store.records import text
from nemo_jobs.store.sql import Dialect, Row, Statement, Tx
from nemo_jobs.store.tables import event


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One thing that happened to a job (`kind` "job") or a step ("step"). A job's first event comes
    from no state and its deletion leads to none. A change of a step that changed its job too is
    told twice, with one number."""

    id: int
    job_id: str
    attempt_id: str
    step_id: str | None
    kind: str
    from_state: str | None
    to_state: str | None
    reason: str
    message: str
    actor: str
    at: int


_EMPTY: Json = {
    **{"step_id": None, "from_state": None, "to_state": None, "job_from": None, "job_to": None},
    "message": "",
}
_INSERT = Statement(
    sa.insert(event).inline().values({c.name: sa.bindparam(c.name) for c in event.c if c.name != "id"})
)
_SETTLED = "age(event.xmin) > age(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid))"


def append(tx: Tx, events: Sequence[Json]) -> None:
    """Each event has what differs from an empty one. The caller wrote something before, which
    gives its transaction its place in time."""
    tx.many(_INSERT, [{**_EMPTY, **one, "message": text(one.get("message", ""))} for one in events])


def _after(dialect: Dialect, *, of_job: bool) -> sa.Select[tuple[int]]:
    query = sa.select(event).where(event.c.id > sa.bindparam("after", type_=sa.BigInteger))
    if of_job:
        query = query.where(event.c.job_id == sa.bindparam("the_job"))
    if dialect == "postgresql":
        query = query.where(sa.text(_SETTLED))
    return query.order_by(event.c.id).limit(sa.bindparam("n", type_=sa.Integer))


_AFTER = Statement(lambda dialect: _after(dialect, of_job=False))
_AFTER_OF_JOB = Statement(lambda dialect: _after(dialect, of_job=True))


def events(tx: Tx, after_id: int, limit: int, job_id: str | None = None) -> list[EventRecord]:
    """What happened under up to `limit` numbers behind `after_id`, to all jobs or to one."""
    query = _AFTER if job_id is None else _AFTER_OF_JOB
    rows = tx.run(query, {"after": after_id, "n": limit, "the_job": job_id})
    return [record for row in rows for record in _records(row)]


def _records(row: Row) -> list[EventRecord]:
    number, job_id, attempt_id, step_id, kind, before, after, job_from, job_to, *why = row
    told = [EventRecord(number, job_id, attempt_id, step_id, kind, before, after, *why)]
    if job_to is not None:
        told.append(EventRecord(number, job_id, attempt_id, None, "job", job_from, job_to, *why))
    return told

"""Jobs as whole rows, no more bytes of them at once than memory should hold.

A spec may take megabytes and a page has up to a thousand jobs: what does not fit is left for
further calls. SQLite gives rows one by one; PostgreSQL sends all that a statement finds, so it is
asked for their sizes first, which it knows without reading them.
"""

import functools
import json
import operator
from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from nemo_jobs.domain.model import JobRecord
from nemo_jobs.store.records import JOB_COLUMNS
from nemo_jobs.store.sql import Dialect, InOrder, Statement, Tx, listed
from nemo_jobs.store.tables import job

#: What the rows of one call take together, in characters; a single row may be larger.
BATCH = 8 * 1024 * 1024

_LONG = (job.c.spec, job.c.platform_spec, job.c.ownership, job.c.custom_fields, job.c.status_details)
_WANTED = sa.func.json_each(sa.bindparam("ids")).table_valued("value", name="wanted")
#: SQLite goes through the array from its beginning, and gives a row before it looks for the next.
_ONE_BY_ONE = Statement(
    sa.select(*JOB_COLUMNS).select_from(InOrder(_WANTED, job, job.c.id == _WANTED.c.value))
)


def _these(dialect: Dialect) -> sa.ColumnElement[bool]:
    return job.c.id.in_(listed(dialect, "ids"))


_BY_IDS = Statement(lambda dialect: sa.select(*JOB_COLUMNS).where(_these(dialect)))
#: Bytes of a row's long parts; PostgreSQL only.
SIZE: sa.ColumnElement[int] = functools.reduce(
    operator.add, (sa.func.coalesce(sa.func.octet_length(part), 0) for part in _LONG)
)
_SIZES = Statement(lambda dialect: sa.select(job.c.id, SIZE).where(_these(dialect)))


def rows_of(
    tx: Tx, ids: Sequence[str], sizes: Mapping[str, int] | None = None
) -> tuple[list[JobRecord], tuple[str, ...]]:
    """The first of these jobs, in this order, and the ids that are left. One that is gone is left
    out. `sizes` by id, where the caller knows them."""
    if tx.dialect == "sqlite":
        each = tx.each(_ONE_BY_ONE, {"ids": json.dumps(ids)})
        found, all_of_them = within(JobRecord(*row) for row in each)
        return found, () if all_of_them else tuple(ids[ids.index(found[-1].id) + 1 :])
    if sizes is None:
        sizes = dict(tx.run(_SIZES, {"ids": json.dumps(ids)}))
    taken, size = 0, 0
    while taken < len(ids) and (not size or size + sizes.get(ids[taken], 0) <= BATCH):
        size += sizes.get(ids[taken], 0)
        taken += 1
    records = {row[0]: JobRecord(*row) for row in tx.run(_BY_IDS, {"ids": json.dumps(ids[:taken])})}
    return [records[job_id] for job_id in ids[:taken] if job_id in records], tuple(ids[taken:])


def within(records: Iterable[JobRecord]) -> tuple[list[JobRecord], bool]:
    """Records up to the one that makes them too large together, and whether that is all of them."""
    found: list[JobRecord] = []
    size = 0
    for record in records:
        if size > BATCH:
            return found, False
        found.append(record)
        size += _size(record)
    return found, True


def _size(record: JobRecord) -> int:
    long = (record.ownership, record.custom_fields)
    kept = len(record.spec) + len(record.platform_spec) + len(record.status_details)
    return kept + sum(len(text) for text in long if text)

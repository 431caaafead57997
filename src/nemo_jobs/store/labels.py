"""Labels of jobs as rows, so that jobs are found by them through an index."""

from collections.abc import Sequence

import sqlalchemy as sa

from nemo_jobs.domain.model import JobRecord
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables_access import job_label

_INSERT = Statement(
    sa.insert(job_label).inline().values({column.name: sa.bindparam(column.name) for column in job_label.c})
)


def put(tx: Tx, record: JobRecord, labels: Sequence[tuple[str, str]]) -> None:
    """Store the labels of a job that was just created; they never change."""
    common = {"job_id": record.id, "workspace": record.workspace, "job_created_at": record.created_at}
    tx.many(_INSERT, [{**common, "key": key, "value": value} for key, value in labels])

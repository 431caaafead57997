"""Filesets, results, secrets, projects, tokens, labels; attempts that keep their definition."""

import json

import sqlalchemy as sa
from alembic import op

from nemo_jobs.domain.labels import check_labels, labels_of
from nemo_jobs.store import tables_access, tables_files, tables_secrets

revision = "0003"
down_revision = "0002"

_NEW = (
    tables_files.fileset,
    tables_files.file,
    tables_files.object_removal,
    tables_files.result,
    tables_access.secret,
    tables_secrets.run_secret,
    tables_access.project,
    tables_access.token,
    tables_access.idempotency,
    tables_access.job_label,
)


def upgrade() -> None:
    op.add_column("job", sa.Column("control", sa.Text))
    op.add_column("job", sa.Column("storage_due_at", sa.BigInteger))
    there = sa.text("storage_due_at IS NOT NULL")
    op.create_index("job_storage_due", "job", ["storage_due_at"], sqlite_where=there, postgresql_where=there)
    op.add_column("attempt", sa.Column("storage_reclaimed_at", sa.BigInteger))
    named = sa.text("project IS NOT NULL")
    columns = ["workspace", "project", "created_at", "id"]
    op.create_index("job_by_project", "job", columns, sqlite_where=named, postgresql_where=named)
    given = sa.text("output_location IS NOT NULL")
    op.create_index(
        "job_output_location",
        "job",
        ["workspace", "output_location"],
        sqlite_where=given,
        postgresql_where=given,
    )
    for name, kind in (("spec", sa.Text), ("platform_spec", sa.Text), ("steps_total", sa.Integer)):
        op.add_column("attempt", sa.Column(name, kind))
    for table in _NEW:
        # As they are today: a later migration that changes one of them must freeze its form here.
        table.create(op.get_bind())
    _store_labels()


def _store_labels() -> None:
    """Those of the jobs that are there, as far as they are what labels may be now."""
    rows = op.get_bind().execute(
        sa.text(
            "SELECT id, workspace, created_at, custom_fields FROM job WHERE custom_fields LIKE '%\"labels\"%'"
        )
    )
    for job_id, workspace, created_at, text in rows.all():
        common = {"job_id": job_id, "workspace": workspace, "job_created_at": created_at}
        found = [{**common, "key": key, "value": value} for key, value in _labels(text)]
        if found:
            op.bulk_insert(tables_access.job_label, found)


def _labels(custom_fields: str) -> tuple[tuple[str, str], ...]:
    try:
        return labels_of(check_labels(json.loads(custom_fields)))
    except ValueError:
        return ()

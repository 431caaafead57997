"""Filesets, results, secrets, projects, tokens, labels; attempts that keep their definition."""

import sqlalchemy as sa
from alembic import op

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
    op.create_index(
        "job_storage_due", "job", ["storage_due_at"], sqlite_where=there, postgresql_where=there
    )
    op.add_column("attempt", sa.Column("storage_reclaimed_at", sa.BigInteger))
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

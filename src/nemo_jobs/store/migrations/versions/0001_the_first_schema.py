"""The first schema."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_LIVE = "state NOT IN ('completed', 'error', 'cancelled')"
_WAITING = "state IN ('created', 'resuming')"
_STATES = (
    *("completed", "active", "created", "pending", "pausing", "paused", "resuming", "cancelling"),
    *("error", "cancelled"),
)


def upgrade() -> None:
    _plain_tables()
    _job()
    _attempt()
    _step()
    _task()
    _event()
    _log_chunk()
    _removal()


def _needed(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _optional(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names]


def _state(name: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(" OR ".join(f"state = '{state}'" for state in _STATES), name=name)


def _index(table: str, name: str, *columns: str, where: str | None = None) -> None:
    only: dict[str, Any] = (
        {} if where is None else {"sqlite_where": sa.text(where), "postgresql_where": sa.text(where)}
    )
    op.create_index(name, table, list(columns), **only)


def _plain_tables() -> None:
    op.create_table("meta", *_needed(sa.Text, "key", "value"), sa.PrimaryKeyConstraint("key"))
    op.create_table(
        "workspace",
        *_needed(sa.Text, "name", "id"),
        *_needed(sa.BigInteger, "created_at", "updated_at"),
        *_optional(sa.Text, "description", "created_by", "updated_by"),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("id"),
    )
    op.create_table(
        "job_count",
        *_needed(sa.Text, "workspace", "state"),
        sa.Column("shard", sa.Integer, nullable=False, autoincrement=False),
        *_needed(sa.BigInteger, "n"),
        sa.PrimaryKeyConstraint("workspace", "state", "shard"),
    )


def _job() -> None:
    op.create_table(
        "job",
        *_needed(sa.Text, "id", "workspace", "name", "attempt_id", "source", "spec", "platform_spec"),
        *_needed(sa.Integer, "steps_total"),
        *_needed(sa.Text, "fileset", "auth_context", "state", "reason", "message", "status_details"),
        *_needed(sa.BigInteger, "since", "created_at", "updated_at"),
        *_optional(sa.Text, "project", "description", "output_location", "ownership", "custom_fields"),
        *_optional(sa.Text, "error_details"),
        _state("job_state"),
        sa.ForeignKeyConstraint(["workspace"], ["workspace.name"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("workspace", "name", name="job_name"),
    )
    _index("job", "job_created", "workspace", "created_at", "id")
    _index("job", "job_created_anywhere", "created_at", "id")
    _index("job", "job_updated", "workspace", "updated_at", "id")
    _index("job", "job_by_source", "workspace", "source", "created_at", "id")
    _index("job", "job_by_state", "workspace", "state", "created_at", "id")


def _attempt() -> None:
    op.create_table(
        "attempt",
        *_needed(sa.Text, "id", "job_id", "name", "state", "reason", "message", "status_details"),
        *_needed(sa.Integer, "seq"),
        *_needed(sa.BigInteger, "since", "log_lines", "log_bytes", "created_at", "updated_at"),
        *_optional(sa.Text, "error_details"),
        _state("attempt_state"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "seq", name="attempt_seq"),
        sqlite_with_rowid=False,
    )


def _step() -> None:
    op.create_table(
        "step",
        *_needed(sa.Text, "id", "attempt_id", "job_id", "workspace", "name"),
        *_needed(sa.Integer, "ordinal", "db_version", "generation"),
        *_needed(sa.Text, "provider", "profile", "spec", "state", "reason", "message", "status_details"),
        *_needed(sa.BigInteger, "since", "due_at", "active_used", "created_at", "updated_at"),
        *_optional(sa.Text, "error_details", "handle", "host", "lease_owner", "lease_token"),
        *_optional(sa.Text, "stop_reason", "log_cursor", "created_by", "updated_by"),
        *_optional(sa.BigInteger, "lease_until", "active_since"),
        _state("step_state"),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("attempt_id", "name", name="step_name"),
    )
    _index("step", "step_due", "state", "due_at", where=_LIVE)
    _index("step", "step_lease", "lease_token", "lease_until", where="lease_token IS NOT NULL")
    _index("step", "step_waiting", "provider", "profile", "created_at", where=_WAITING)


def _task() -> None:
    op.create_table(
        "task",
        *_needed(sa.Text, "id", "step_id", "workspace", "name", "state", "status_details"),
        *_needed(sa.Integer, "rank", "db_version"),
        *_needed(sa.BigInteger, "created_at", "updated_at"),
        *_optional(sa.Text, "error_details", "error_stack", "created_by", "updated_by"),
        *_optional(sa.BigInteger, "reported_at"),
        _state("task_state"),
        sa.ForeignKeyConstraint(["step_id"], ["step.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("step_id", "name", name="task_name"),
        sqlite_with_rowid=False,
    )


def _event() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "event",
        sa.Column("id", number, nullable=False, autoincrement=True),
        *_needed(sa.Text, "job_id", "attempt_id", "kind", "reason", "message", "actor"),
        *_needed(sa.BigInteger, "at"),
        *_optional(sa.Text, "step_id", "from_state", "to_state", "job_from", "job_to"),
        sa.PrimaryKeyConstraint("id"),
    )
    _index("event", "ix_event_job_id", "job_id")


def _log_chunk() -> None:
    op.create_table(
        "log_chunk",
        *_needed(sa.Text, "attempt_id"),
        *_needed(sa.BigInteger, "first_seq"),
        *_needed(sa.Integer, "n"),
        *_needed(sa.Text, "step", "task", "stream"),
        *_needed(sa.BigInteger, "at"),
        *_needed(sa.Integer, "size"),
        *_needed(sa.Text, "codec"),
        *_needed(sa.LargeBinary, "data"),  # last: reading the others doesn't touch it
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("attempt_id", "first_seq"),
    )
    _index("log_chunk", "log_chunk_task", "attempt_id", "step", "task", "first_seq")


def _removal() -> None:
    op.create_table(
        "removal",
        *_needed(sa.Text, "key", "job_id", "provider", "profile", "handle"),
        *_needed(sa.Integer, "wipe_storage", "tries"),
        *_needed(sa.BigInteger, "due_at"),
        *_optional(sa.Text, "host"),
        sa.PrimaryKeyConstraint("key"),
        sqlite_with_rowid=False,
    )
    _index("removal", "ix_removal_due_at", "due_at")
    _index("removal", "ix_removal_job_id", "job_id")

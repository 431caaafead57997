"""The tables, the same on SQLite and PostgreSQL.

Times are integers, microseconds since 1970 UTC. JSON is text: it is written once and copied to
the wire as it stands; only `job.spec` is searched, with each database's own JSON functions.
"""

import sqlalchemy as sa

from nemo_jobs.domain.states import State

metadata = sa.MetaData()
Text, Int, Big = sa.Text, sa.Integer, sa.BigInteger


def _state(name: str) -> tuple[sa.Column[str], sa.CheckConstraint]:
    # Written out, the frequent ones first: SQLite builds a table for a list with IN, at each write.
    allowed = " OR ".join(f"state = '{state}'" for state in sorted(State, key=_rarity))
    return sa.Column("state", Text, nullable=False), sa.CheckConstraint(allowed, name=name)


def _rarity(state: State) -> int:
    frequent = (State.COMPLETED, State.ACTIVE, State.CREATED, State.PENDING)
    return frequent.index(state) if state in frequent else len(frequent)


def _why() -> tuple[sa.Column[str], sa.Column[str], sa.Column[int]]:
    return (
        sa.Column("reason", Text, nullable=False),
        sa.Column("message", Text, nullable=False),
        sa.Column("since", Big, nullable=False),
    )


meta = sa.Table(
    "meta", metadata, sa.Column("key", Text, primary_key=True), sa.Column("value", Text, nullable=False)
)

workspace = sa.Table(
    "workspace",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("id", Text, nullable=False, unique=True),
    sa.Column("description", Text),
    sa.Column("created_at", Big, nullable=False),
    sa.Column("created_by", Text),
    sa.Column("updated_at", Big, nullable=False),
    sa.Column("updated_by", Text),
)

job = sa.Table(
    "job",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("workspace", Text, sa.ForeignKey("workspace.name"), nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("attempt_id", Text, nullable=False),
    sa.Column("project", Text),
    sa.Column("description", Text),
    sa.Column("source", Text, nullable=False),
    sa.Column("spec", Text, nullable=False),
    sa.Column("platform_spec", Text, nullable=False),
    sa.Column("steps_total", Int, nullable=False),
    sa.Column("fileset", Text, nullable=False),
    sa.Column("output_location", Text),
    sa.Column("ownership", Text),
    sa.Column("custom_fields", Text),
    sa.Column("auth_context", Text, nullable=False),
    sa.Column("control", Text),  # what may be set while the job lives, as JSON
    # When the storage that its steps share may go; null while work may still use it.
    sa.Column("storage_due_at", Big),
    *_state("job_state"),
    *_why(),
    sa.Column("status_details", Text, nullable=False),
    sa.Column("error_details", Text),
    sa.Column("created_at", Big, nullable=False),
    sa.Column("updated_at", Big, nullable=False),
    sa.UniqueConstraint("workspace", "name", name="job_name"),
    sa.Index("job_created", "workspace", "created_at", "id"),
    sa.Index("job_created_anywhere", "created_at", "id"),
    sa.Index("job_updated", "workspace", "updated_at", "id"),
    sa.Index("job_by_source", "workspace", "source", "created_at", "id"),
    sa.Index("job_by_state", "workspace", "state", "created_at", "id"),
    sa.Index(
        "job_by_project",
        "workspace",
        "project",
        "created_at",
        "id",
        sqlite_where=sa.text("project IS NOT NULL"),
        postgresql_where=sa.text("project IS NOT NULL"),
    ),
    sa.Index(
        "job_storage_due",
        "storage_due_at",
        sqlite_where=sa.text("storage_due_at IS NOT NULL"),
        postgresql_where=sa.text("storage_due_at IS NOT NULL"),
    ),
    sa.Index(
        "job_output_location",
        "workspace",
        "output_location",
        sqlite_where=sa.text("output_location IS NOT NULL"),
        postgresql_where=sa.text("output_location IS NOT NULL"),
    ),
)

#: How many jobs a workspace has in each state, kept in the transactions that change it, so
#: that the totals of a list cost nothing. The count is the sum over the shards: concurrent
#: transactions write to different ones and so don't wait for each other.
job_count = sa.Table(
    "job_count",
    metadata,
    sa.Column("workspace", Text, primary_key=True),
    sa.Column("state", Text, primary_key=True),
    sa.Column("shard", Int, primary_key=True, autoincrement=False),
    sa.Column("n", Big, nullable=False),
)

#: An attempt has a state of its own from its end on; until then its state is that of the job,
#: whose current attempt it is.
attempt = sa.Table(
    "attempt",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("job_id", Text, sa.ForeignKey("job.id", ondelete="CASCADE"), nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("seq", Int, nullable=False),
    *_state("attempt_state"),
    *_why(),
    sa.Column("status_details", Text, nullable=False),
    sa.Column("error_details", Text),
    # The definition that it ran, where the job's own has been changed since.
    sa.Column("spec", Text),
    sa.Column("platform_spec", Text),
    sa.Column("steps_total", Int),
    sa.Column("storage_reclaimed_at", Big),  # from then on its storage is gone or on its way
    sa.Column("log_lines", Big, nullable=False),  # lines stored; the next line's seq
    sa.Column("log_bytes", Big, nullable=False),
    sa.Column("created_at", Big, nullable=False),
    sa.Column("updated_at", Big, nullable=False),
    sa.UniqueConstraint("job_id", "seq", name="attempt_seq"),
    sqlite_with_rowid=False,
)

step = sa.Table(
    "step",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("attempt_id", Text, sa.ForeignKey("attempt.id", ondelete="CASCADE"), nullable=False),
    sa.Column("job_id", Text, nullable=False),
    sa.Column("workspace", Text, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("ordinal", Int, nullable=False),
    sa.Column("provider", Text, nullable=False),
    sa.Column("profile", Text, nullable=False),
    sa.Column("spec", Text, nullable=False),
    *_state("step_state"),
    *_why(),
    sa.Column("status_details", Text, nullable=False),
    sa.Column("error_details", Text),
    sa.Column("db_version", Int, nullable=False),
    sa.Column("generation", Int, nullable=False),
    sa.Column("handle", Text),
    sa.Column("host", Text),  # only a service of this host may act on it; null: any
    sa.Column("due_at", Big, nullable=False),
    sa.Column("lease_owner", Text),
    sa.Column("lease_token", Text),
    sa.Column("lease_until", Big),
    sa.Column("active_since", Big),
    sa.Column("active_used", Big, nullable=False),
    sa.Column("stop_reason", Text),  # why the engine is ending the work by itself
    sa.Column("log_cursor", Text),
    # How many GPUs of a shared pool its spec asks for.
    sa.Column("gpus", Int, nullable=False, server_default="0"),
    sa.Column("created_at", Big, nullable=False),
    sa.Column("created_by", Text),
    sa.Column("updated_at", Big, nullable=False),
    sa.Column("updated_by", Text),
    sa.UniqueConstraint("attempt_id", "name", name="step_name"),
    sa.Index(
        "step_lease",
        "lease_token",
        "lease_until",
        sqlite_where=sa.text("lease_token IS NOT NULL"),
        postgresql_where=sa.text("lease_token IS NOT NULL"),
    ),
    sa.Index(
        "step_due",
        "state",
        "due_at",
        sqlite_where=sa.text("state IN ('pending', 'active', 'pausing', 'cancelling')"),
        postgresql_where=sa.text("state IN ('pending', 'active', 'pausing', 'cancelling')"),
    ),
    sa.Index(
        "step_waiting",
        "provider",
        "profile",
        "created_at",
        sqlite_where=sa.text("state IN ('created', 'resuming') AND gpus = 0"),
        postgresql_where=sa.text("state IN ('created', 'resuming') AND gpus = 0"),
    ),
    sa.Index(
        "step_waiting_for_gpus",
        "created_at",
        "id",
        sqlite_where=sa.text("state IN ('created', 'resuming') AND gpus > 0"),
        postgresql_where=sa.text("state IN ('created', 'resuming') AND gpus > 0"),
    ),
)

task = sa.Table(
    "task",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("step_id", Text, sa.ForeignKey("step.id", ondelete="CASCADE"), nullable=False),
    sa.Column("workspace", Text, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("rank", Int, nullable=False),
    *_state("task_state"),
    sa.Column("status_details", Text, nullable=False),
    sa.Column("error_details", Text),
    sa.Column("error_stack", Text),
    sa.Column("db_version", Int, nullable=False),
    sa.Column("reported_at", Big),
    sa.Column("created_at", Big, nullable=False),
    sa.Column("created_by", Text),
    sa.Column("updated_at", Big, nullable=False),
    sa.Column("updated_by", Text),
    sa.UniqueConstraint("step_id", "name", name="task_name"),
    sqlite_with_rowid=False,
)

#: Everything that happened, append-only: the source for watchers, metrics and traces.
event = sa.Table(
    "event",
    metadata,
    sa.Column(
        "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True
    ),
    sa.Column("job_id", Text, nullable=False, index=True),
    sa.Column("attempt_id", Text, nullable=False),
    sa.Column("step_id", Text),
    sa.Column("kind", Text, nullable=False),
    sa.Column("from_state", Text),
    sa.Column("to_state", Text),
    sa.Column("job_from", Text),  # what the job was before and became with a step's change,
    sa.Column("job_to", Text),  # if it did not stay as it was
    sa.Column("reason", Text, nullable=False),
    sa.Column("message", Text, nullable=False),
    sa.Column("actor", Text, nullable=False),
    sa.Column("at", Big, nullable=False),
)

#: Lines of one stream of one task that were stored together. Lines [first_seq, first_seq + n)
#: of the attempt; `data` is the compressed bytes, each line ended by a line feed.
log_chunk = sa.Table(
    "log_chunk",
    metadata,
    sa.Column("attempt_id", Text, sa.ForeignKey("attempt.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("first_seq", Big, primary_key=True),
    sa.Column("n", Int, nullable=False),
    sa.Column("step", Text, nullable=False),
    sa.Column("task", Text, nullable=False),
    sa.Column("stream", Text, nullable=False),
    sa.Column("at", Big, nullable=False),
    sa.Column("size", Int, nullable=False),  # bytes before compression
    sa.Column("codec", Text, nullable=False),  # "zstd" or "raw"
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Index("log_chunk_task", "attempt_id", "step", "task", "first_seq"),
)

#: Outbox of workloads to be removed from their backends; written with the end of a step, due
#: when the profile's time is up or the job is deleted, and gone only after the removal.
removal = sa.Table(
    "removal",
    metadata,
    sa.Column("key", Text, primary_key=True),
    sa.Column("job_id", Text, nullable=False, index=True),
    sa.Column("provider", Text, nullable=False),
    sa.Column("profile", Text, nullable=False),
    sa.Column("host", Text),
    sa.Column("handle", Text, nullable=False),
    sa.Column("wipe_storage", Int, nullable=False),
    sa.Column("due_at", Big, nullable=False, index=True),
    sa.Column("tries", Int, nullable=False),
    sa.Column("gpus", Int, nullable=False, server_default="0"),  # that its work may hold
    sqlite_with_rowid=False,
)

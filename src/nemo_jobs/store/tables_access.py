"""Who may do what, what is kept secret, and what makes repeated requests harmless."""

import sqlalchemy as sa

from nemo_jobs.store.tables import Big, Text, metadata

#: `value` is ciphertext; `key_id` tells which key opens it.
secret = sa.Table(
    "secret",
    metadata,
    sa.Column("workspace", Text, sa.ForeignKey("workspace.name"), primary_key=True),
    sa.Column("name", Text, primary_key=True),
    sa.Column("description", Text),
    sa.Column("value", Text, nullable=False),
    sa.Column("key_id", Text, nullable=False, index=True),
    sa.Column("created_at", Big, nullable=False),
    sa.Column("created_by", Text),
    sa.Column("updated_at", Big, nullable=False),
    sa.Column("updated_by", Text),
    sqlite_with_rowid=False,
)

project = sa.Table(
    "project",
    metadata,
    sa.Column("workspace", Text, sa.ForeignKey("workspace.name"), primary_key=True),
    sa.Column("name", Text, primary_key=True),
    sa.Column("id", Text, nullable=False, unique=True),
    sa.Column("description", Text),
    sa.Column("created_at", Big, nullable=False),
    sa.Column("created_by", Text),
    sa.Column("updated_at", Big, nullable=False),
    sa.Column("updated_by", Text),
    sqlite_with_rowid=False,
)

#: Opaque tokens. Only their hash is kept; those of an attempt go with it.
token = sa.Table(
    "token",
    metadata,
    sa.Column("hash", Text, primary_key=True),
    sa.Column("id", Text, nullable=False, unique=True),
    sa.Column("principal", Text, nullable=False),
    sa.Column("description", Text),
    sa.Column("grants", Text, nullable=False),  # JSON: workspace or "*" to a list of scopes
    sa.Column("attempt_id", Text, index=True),
    sa.Column("created_at", Big, nullable=False),
    sa.Column("created_by", Text),
    sa.Column("expires_at", Big),
    sa.Column("revoked_at", Big),
    sqlite_with_rowid=False,
)

#: What a create with an idempotency key was and made, for 24 hours.
idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("workspace", Text, primary_key=True),
    sa.Column("principal", Text, primary_key=True),
    sa.Column("key", Text, primary_key=True),
    sa.Column("digest", Text, nullable=False),  # sha256 of the request's body, in hex
    sa.Column("job_id", Text, nullable=False),
    sa.Column("answer", Text, nullable=False),
    sa.Column("created_at", Big, nullable=False, index=True),
    sqlite_with_rowid=False,
)

#: `custom_fields.labels` of jobs, so that they can be searched by.
job_label = sa.Table(
    "job_label",
    metadata,
    sa.Column("job_id", Text, sa.ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("key", Text, primary_key=True),
    sa.Column("value", Text, nullable=False),
    sa.Column("workspace", Text, nullable=False),
    sa.Column("job_created_at", Big, nullable=False),
    sa.Index("job_label_value", "workspace", "key", "value", "job_created_at", "job_id"),
    sqlite_with_rowid=False,
)

#: One row of it holds nothing secret: a value that only the right key and the right object
#: store agree with, so that a replica with other ones refuses to start. It is kept in `meta`.
KEY_CHECK = "secrets_key_check"
STORE_CHECK = "files_store_check"

"""What runs of steps were given of secrets; the secrets themselves are in `tables_access`."""

import sqlalchemy as sa

from nemo_jobs.store.tables import Text, metadata

#: The values that a run was started with, encrypted, until it has ended: after a restart its
#: output is masked by them, whatever became of the secrets meanwhile. `run` is the run's key.
run_secret = sa.Table(
    "run_secret",
    metadata,
    sa.Column("run", Text, primary_key=True),
    sa.Column("step_id", Text, sa.ForeignKey("step.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("value", Text, nullable=False),
    sa.Column("key_id", Text, nullable=False, index=True),
    sqlite_with_rowid=False,
)

"""Alembic's entry: runs the migrations on the connection that it is given."""

from alembic import context

from nemo_jobs.store.schema import ALL_TABLES
from nemo_jobs.store.tables import metadata

assert ALL_TABLES  # noqa: S101 - imported for what they add to `metadata`
connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()

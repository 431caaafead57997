"""GPU pools; steps and removals know how many GPUs their work holds."""

import sqlalchemy as sa
from alembic import op

from nemo_jobs.store import tables_gpus

revision = "0004"
down_revision = "0003"

_NEW = (tables_gpus.gpu_pool, tables_gpus.gpu_server, tables_gpus.gpu_device, tables_gpus.gpu_request)
_WAITING = "state IN ('created', 'resuming')"


def upgrade() -> None:
    for table in ("step", "removal"):
        # No work of the versions before ever held one.
        op.add_column(table, sa.Column("gpus", sa.Integer, nullable=False, server_default="0"))
    op.drop_index("step_waiting", table_name="step")
    _index("step_waiting", ["provider", "profile", "created_at"], "gpus = 0")
    _index("step_waiting_for_gpus", ["created_at", "id"], "gpus > 0")
    for new in _NEW:
        # As they are today: a later migration that changes one of them must freeze its form here.
        new.create(op.get_bind())


def _index(name: str, columns: list[str], which: str) -> None:
    where = sa.text(f"{_WAITING} AND {which}")
    op.create_index(name, "step", columns, sqlite_where=where, postgresql_where=where)

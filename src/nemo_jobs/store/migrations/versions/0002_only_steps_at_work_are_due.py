"""Only steps at work stand in the index of what is due: a short job never enters it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_WORKING = "state IN ('pending', 'active', 'pausing', 'cancelling')"


def upgrade() -> None:
    op.drop_index("step_due", table_name="step")
    where = sa.text(_WORKING)
    op.create_index("step_due", "step", ["state", "due_at"], sqlite_where=where, postgresql_where=where)

"""Values that all services on a database agree on: the first one that needs them says which."""

import sqlalchemy as sa

from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import meta

_PROPOSE = Statement(
    sa.text("INSERT INTO meta (key, value) VALUES (:the_key, :the_value) ON CONFLICT (key) DO NOTHING")
)
_READ = Statement(sa.select(meta.c.value).where(meta.c.key == sa.bindparam("the_key")))


def settled(tx: Tx, key: str) -> str | None:
    """The value of `key`; None while nobody needed one."""
    row = tx.one(_READ, {"the_key": key})
    return None if row is None else str(row[0])


def agreed(tx: Tx, key: str, proposed: str) -> str:
    """The value of `key`; `proposed` if there is none yet."""
    tx.count(_PROPOSE, {"the_key": key, "the_value": proposed})
    row = tx.one(_READ, {"the_key": key})
    return str(row[0]) if row else proposed

"""The schema's version: made when the database is empty, migrated when it is older.

Alembic costs more than a second of start-up, so it is imported only when there is work for it.
"""

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

from nemo_jobs.store import tables_access, tables_files, tables_gpus, tables_secrets
from nemo_jobs.store.driver import SchemaTooNew
from nemo_jobs.store.sql import Tx
from nemo_jobs.store.tables import metadata

#: Importing them is what puts their tables into `metadata`.
ALL_TABLES = (tables_access, tables_files, tables_gpus, tables_secrets)
#: The version that `tables.py` describes; each has a migration of that number.
SCHEMA_VERSION = 4

_READ = sa.text("SELECT value FROM meta WHERE key = 'schema_version'")
_WRITE = sa.text(
    "INSERT INTO meta (key, value) VALUES ('schema_version', :version) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)


def prepare(tx: Tx, url: str, where: str) -> None:
    """Bring the database behind `tx` to this program's version; `where` names it in errors.

    The caller keeps others out meanwhile.
    """
    if not _has_meta(tx):
        _create(tx)
        return
    version = _version(tx)
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"the database {where} has schema version {version}, but this program knows only version "
            f"{SCHEMA_VERSION}; use the newer nemo-jobs that wrote it, or restore a backup from before"
        )
    if version < SCHEMA_VERSION:
        from nemo_jobs.store.migrate import migrate

        migrate(url, version)
        tx.count(_WRITE, {"version": str(SCHEMA_VERSION)})


def check_version(tx: Tx, where: str) -> None:
    """Raise SchemaTooNew unless the database is of this program's version, neither newer nor older."""
    version = _version(tx) if _has_meta(tx) else 0
    if version != SCHEMA_VERSION:
        raise SchemaTooNew(
            f"the database {where} has schema version {version} and this program {SCHEMA_VERSION}; "
            "use the nemo command of the service's own version"
        )


def _has_meta(tx: Tx) -> bool:
    if tx.dialect == "sqlite":
        query = sa.text("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'meta'")
    else:
        query = sa.text("SELECT 1 WHERE to_regclass('meta') IS NOT NULL")
    return tx.one(query) is not None


def _version(tx: Tx) -> int:
    row = tx.one(_READ)
    return int(row[0]) if row else 0


def _create(tx: Tx) -> None:
    tx.count(sa.text("BEGIN"))
    try:
        for table in metadata.sorted_tables:
            tx.count(CreateTable(table))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                tx.count(CreateIndex(index))
        tx.count(_WRITE, {"version": str(SCHEMA_VERSION)})
        tx.count(sa.text("COMMIT"))
    except BaseException:
        tx.count(sa.text("ROLLBACK"))
        raise

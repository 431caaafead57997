"""Bringing an older database up to this program's schema. Imports Alembic: only when needed."""

import logging
import sqlite3
from pathlib import Path
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

log = logging.getLogger(__name__)


def migrate(url: str, version: int) -> None:
    """Apply the migrations behind `version`, in one transaction. Version 0 is an empty database."""
    engine = engine_for(url)
    try:
        with engine.begin() as connection:
            config = config_for(connection)
            if version:
                command.stamp(config, f"{version:04d}")
            command.upgrade(config, "head")
            # The version lives in our own table; Alembic's is only for the way.
            connection.execute(sa.text("DROP TABLE alembic_version"))
    finally:
        engine.dispose()
    log.warning("the database was brought from schema version %d to the present one", version)


def config_for(connection: sa.Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    return config


def engine_for(url: str) -> sa.Engine:
    """An engine of SQLAlchemy's, which Alembic works with."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return _sqlite_engine(Path(unquote(parts.path)[1:]))
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=sa.NullPool)


def _sqlite_engine(path: Path) -> sa.Engine:
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(path, timeout=30, isolation_level=None),
        poolclass=sa.NullPool,
    )

    # The driver's own idea of transactions leaves DDL out of them.
    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from nemo_jobs.domain.model import Conflict, Invalid, Unavailable
from nemo_jobs.store import db as store_db
from nemo_jobs.store import jobs, schema
from nemo_jobs.store.db import Database, SchemaTooNew, redacted
from nemo_jobs.store.migrate import config_for, engine_for, migrate
from nemo_jobs.store.tables import metadata
from tests.bed.postgres import PostgresServer
from tests.store.kit import Store


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


def _difference(url: str) -> tuple[list[Any], dict[str, Any]]:
    engine = engine_for(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        different = list(compare_metadata(context, metadata))
        found = sa.inspect(connection)
        shape = {table: _shape(found, table) for table in found.get_table_names()}
    engine.dispose()
    return different, shape


def _shape(found: sa.Inspector, table: str) -> dict[str, Any]:
    columns = (
        (column["name"], str(column["type"]), column["nullable"]) for column in found.get_columns(table)
    )
    conditions = {
        index["name"]: {name: str(value) for name, value in index.get("dialect_options", {}).items()}
        for index in found.get_indexes(table)
    }
    return {
        "columns": sorted(columns),
        "checks": sorted(str(check["sqltext"]) for check in found.get_check_constraints(table)),
        "indexes": sorted((str(index["name"]), index["column_names"]) for index in found.get_indexes(table)),
        "conditions": conditions,
        "keys": sorted(
            (key["constrained_columns"], str(key["options"])) for key in found.get_foreign_keys(table)
        ),
        "primary": found.get_pk_constraint(table)["constrained_columns"],
        "unique": sorted(key["column_names"] for key in found.get_unique_constraints(table)),
    }


def test_all_migrations_together_make_what_the_tables_say(
    empty_url: str, tmp_path: Path, request: Any
) -> None:
    migrate(empty_url, 0)
    different, migrated = _difference(empty_url)
    assert different == []
    fresh = f"sqlite:///{tmp_path / 'fresh.db'}"
    if not empty_url.startswith("sqlite"):
        fresh = request.getfixturevalue("postgres").new_database()
    asyncio.run(_open_and_close(fresh))
    assert _difference(fresh)[1] == migrated
    if empty_url.startswith("sqlite"):
        assert _without_rowid(empty_url) == _without_rowid(fresh)


def _without_rowid(url: str) -> set[str]:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE sql LIKE '%WITHOUT ROWID%'"
        ).fetchall()
    connection.close()
    return {row[0] for row in rows}


async def _open_and_close(url: str) -> None:
    await Database.open(url).aclose()


async def test_a_schema_that_is_too_new_is_refused_with_both_versions(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 7)
    await _open_and_close(empty_url)
    monkeypatch.undo()
    with pytest.raises(
        SchemaTooNew, match=f"schema version 7, but this program knows only version {schema.SCHEMA_VERSION}"
    ):
        Database.open(empty_url)


async def test_an_older_schema_is_migrated_once(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await _open_and_close(empty_url)
    called: list[int] = []
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    monkeypatch.setattr("nemo_jobs.store.migrate.migrate", lambda url, version: called.append(version))
    for _ in range(2):
        await _open_and_close(empty_url)
    assert called == [schema.SCHEMA_VERSION - 1]


async def test_a_database_of_the_first_version_opens_as_one_of_the_present(empty_url: str) -> None:
    engine = engine_for(empty_url)
    with engine.begin() as connection:
        command.upgrade(config_for(connection), "0001")
        connection.execute(sa.text("DROP TABLE alembic_version"))
        connection.execute(sa.text("INSERT INTO meta (key, value) VALUES ('schema_version', '1')"))
    engine.dispose()
    await _open_and_close(empty_url)
    different, _ = _difference(empty_url)
    assert different == []
    with engine_for(empty_url).connect() as connection:
        found = connection.scalar(sa.text("SELECT value FROM meta WHERE key = 'schema_version'"))
    assert found == str(schema.SCHEMA_VERSION)


def test_the_newest_migration_has_the_number_of_the_schema() -> None:
    versions = Path(schema.__file__).with_name("migrations") / "versions"
    assert max(path.name[:4] for path in versions.glob("0*.py")) == f"{schema.SCHEMA_VERSION:04d}"


def test_a_start_does_not_import_alembic(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import asyncio, sys\n"
        "from nemo_jobs.store.db import Database\n"
        f"asyncio.run(Database.open('sqlite:///{tmp_path / 'jobs.db'}').aclose())\n"
        "assert 'alembic' not in sys.modules and 'psycopg' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_backup_is_whole_while_the_service_writes(
    sqlite_url: str, open_store: Callable[..., Any], tmp_path: Path
) -> None:
    store: Store = await open_store(sqlite_url)
    for number in range(20):
        await store.create(f"j-{number}")
    writing = asyncio.create_task(_keep_creating(store))
    await store.db.backup(tmp_path / "one.db")
    await asyncio.to_thread(store_db.backup, sqlite_url, tmp_path / "two.db")
    writing.cancel()
    for name in ("one.db", "two.db"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        copy = Database.open(f"sqlite:///{tmp_path / name}")
        found, total, _ = await copy.read(jobs.list_jobs, jobs.JobQuery("default", page_size=1000))
        await copy.aclose()
        assert len(found) == total >= 20
    with pytest.raises(Conflict, match="exists already"):
        store_db.backup(sqlite_url, tmp_path / "one.db")
    with pytest.raises(Unavailable, match="no database"):
        store_db.backup(f"sqlite:///{tmp_path / 'none.db'}", tmp_path / "three.db")
    with pytest.raises(Unavailable, match="failed"):
        store_db.backup(sqlite_url, tmp_path / "no-such-folder" / "x.db")
    assert not list(tmp_path.glob("*.part"))
    with pytest.raises(Invalid, match=r"pg_dump .* postgresql://me:\*\*\*@h/d"):
        store_db.backup("postgresql://me:secret@h/d", tmp_path / "x")


async def _keep_creating(store: Store) -> None:
    while True:
        await store.create(f"more-{next(store.names)}")


def test_passwords_do_not_show() -> None:
    assert redacted("postgresql://me:secret@h:1/d") == "postgresql://me:***@h:1/d"
    assert redacted("postgresql://me@h/d") == "postgresql://me@h/d"


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(Invalid, match="absolute"):
        Database.open("sqlite:///jobs.db")

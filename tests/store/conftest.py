"""Every test with `db`, `store` or `url` runs on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.store import workspaces
from nemo_jobs.store.db import Database
from tests.bed.postgres import Missing, PostgresServer
from tests.store.kit import Store

TEMPLATE = "nemo_template"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A private server with a template database that has the schema."""
    try:
        server = PostgresServer.start()
    except Missing as error:
        pytest.skip(str(error))
    try:
        server.sql("postgres", f"CREATE DATABASE {TEMPLATE}")
        asyncio.run(_make_schema(server.url(TEMPLATE)))
        yield server
    finally:
        server.destroy()


async def _make_schema(url: str) -> None:
    db = Database.open(url)
    await db.write(workspaces.ensure_defaults, ManualClock().now())
    await db.aclose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a database of this test alone."""
    found: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return found


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    url = postgres.new_database(TEMPLATE)
    yield url
    postgres.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
async def open_store() -> AsyncIterator[Callable[..., object]]:
    """Opens stores that are closed after the test."""
    opened: list[Database] = []

    async def open_it(url: str, **given: object) -> Store:
        db = Database.open(url)
        opened.append(db)
        await db.start()
        store = Store(db, **given)  # type: ignore[arg-type]
        await db.write(workspaces.ensure_defaults, store.now())
        return store

    yield open_it
    for db in opened:
        await db.aclose()


@pytest.fixture
async def store(url: str, open_store: Callable[..., object]) -> Store:
    return await open_store(url)  # type: ignore[misc]

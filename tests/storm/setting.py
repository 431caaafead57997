"""Services and a database for a storm, taken away again whatever happens."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.bed.postgres import Missing, PostgresServer
from tests.e2e.service import Service
from tests.storm.storm import Storm

#: Short waits, so that a storm of minutes sees every path to its end.
PROFILE = {"graceful_shutdown_timeout_seconds": 1}


@contextmanager
def storm_on(database: str, root: Path, seed: int, services: int = 1) -> Iterator[Storm]:
    with ExitStack() as stack:
        url = stack.enter_context(private_postgres()) if database == "postgresql" else None
        shared = {"files": {"storage": {"url": f"file://{root / 'files'}"}}}
        running = [
            stack.enter_context(
                closing(
                    Service(
                        root,
                        database_url=url,
                        subprocess_config=PROFILE,
                        settings=shared if services > 1 else None,
                        name=f"service{number}",
                    )
                )
            )
            for number in range(services)
        ]
        yield Storm(root, running, database, seed)


@contextmanager
def private_postgres() -> Iterator[str]:
    """A database on a server of its own that really flushes, as in real life."""
    try:
        server = PostgresServer.start(fsync=True)
    except Missing as error:
        pytest.skip(str(error))
    try:
        yield server.new_database()
    finally:
        server.destroy()

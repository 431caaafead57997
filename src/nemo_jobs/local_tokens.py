"""Tokens made, listed and revoked on the service's own machine, in its database.

This is how the first token of an installation comes about: nobody could ask for it over the API.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from nemo_jobs.clock import SystemClock
from nemo_jobs.config import default_data_dir, load_settings
from nemo_jobs.domain.model import Json, NemoJobsError
from nemo_jobs.host import prepare_data_dir
from nemo_jobs.http.tokens import token_json
from nemo_jobs.store import tokens, workspaces
from nemo_jobs.store.db import Database, Locked, Tx
from nemo_jobs.store.schema import check_version

T = TypeVar("T")
#: Who made it, in the list of tokens.
ACTOR = "local"
#: How long a running service is waited for that writes just now, in seconds.
_PATIENCE = 5.0


class InUse(NemoJobsError):
    """A running service does not let go of the database, or is of another version."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which database: a URL, or a data directory, or what the configuration says."""

    environ: Mapping[str, str]
    data_dir: Path | None = None
    database_url: str | None = None
    config: Path | None = None


def create(
    place: Place,
    principal: str,
    grants: Mapping[str, Sequence[str]],
    *,
    description: str | None,
    seconds: int | None,
) -> Json:
    """Make a token; the answer is what the API's would be. Raises NemoJobsError, ConfigError, OSError."""
    made, now = tokens.new_token(), SystemClock().now()

    def store(tx: Any) -> tokens.TokenRecord:
        workspaces.ensure_defaults(tx, now)
        return tokens.add(
            tx,
            tokens.hash_of(made),
            principal,
            grants or tokens.first_grants(),
            description=description,
            expires_at=None if seconds is None else now + seconds * 1_000_000,
            now=now,
            actor=ACTOR,
        )

    return {**token_json(_run(place, store)), "token": made}


def listed(place: Place, page: int, page_size: int) -> Json:
    """One page of all tokens, as the API gives it."""
    found, total = _run(place, lambda tx: tokens.list_tokens(tx, None, page, page_size))
    return {
        "data": [token_json(record) for record in found],
        "sort": "-created_at",
        "pagination": {
            "total_results": total,
            "total_pages": max(1, -(-total // page_size)),
            "page_size": page_size,
            "page": page,
            "current_page_size": len(found),
        },
    }


def revoke(place: Place, token_id: str) -> Json:
    """Revoke a token. Raises NotFound."""
    now = SystemClock().now()
    return token_json(_run(place, lambda tx: tokens.revoke(tx, token_id, None, now)))


def _run(place: Place, act: Callable[[Any], T]) -> T:
    url = place.database_url or load_settings(place.config, place.environ).settings.database.url
    if not url or place.data_dir is not None:
        directory = prepare_data_dir(place.data_dir or default_data_dir(place.environ))
        url = f"sqlite:///{directory}/nemo-jobs.db"
    try:
        return asyncio.run(_write(url, act))
    except Locked:
        return _beside(Path(unquote(url.removeprefix("sqlite:///"))), act)


async def _write(url: str, act: Callable[[Any], T]) -> T:
    db = Database.open(url, clock=SystemClock())
    try:
        await db.start()
        return await db.write(act)
    finally:
        await db.aclose()


def _beside(path: Path, act: Callable[[Any], T]) -> T:
    """In one short transaction beside a running service: SQLite lets one write after the other, and
    the service tries again by itself. It learns of the change when it next looks the token up."""
    with contextlib.closing(sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)) as connection:
        tx = Tx(connection.cursor(), "sqlite")
        try:
            check_version(tx, str(path))
            connection.execute("BEGIN IMMEDIATE")
            try:
                made = act(tx)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise InUse(f"a service runs on {path.parent} and keeps its database busy: {error}") from error
    return made

"""One connection to PostgreSQL, used by one thread, and what its errors mean."""

import os
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

from nemo_jobs.domain.model import Conflict, Invalid, Unavailable
from nemo_jobs.store.sql import Statement, Tx

T = TypeVar("T")

#: Concurrent transactions keep their counts in different rows; the sum is what counts.
SHARDS = 16
_CONNECT_SECONDS = 3
_OPTIONS = "-c statement_timeout=4000 -c lock_timeout=3500 -c idle_in_transaction_session_timeout=15000"

_COUNT = Statement(
    sa.text(
        "INSERT INTO job_count (workspace, state, shard, n) VALUES (:workspace, :state, :shard, :n) "
        "ON CONFLICT (workspace, state, shard) DO UPDATE SET n = job_count.n + excluded.n"
    )
)


def connection_options(url: str) -> dict[str, Any]:
    """Arguments of `connect`: those of the URL, and short ends for a server that is gone."""
    try:
        given: dict[str, Any] = dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError as error:
        raise Invalid(f"the database URL can't be understood: {error}") from error
    defaults = {
        "connect_timeout": _CONNECT_SECONDS,
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 2,
        "tcp_user_timeout": 3000,
        "application_name": "nemo-jobs",
        "autocommit": True,
    }
    return {**defaults, **given, "options": f"{_OPTIONS} {given.get('options', '')}".strip()}


class Call:
    """One call of a store function: who waits for it may give it up, which cuts its connection."""

    def __init__(self) -> None:
        self.abandoned = False
        self.committing = False
        self._started = False
        self._link: Link | None = None
        self._guard = threading.Lock()

    def begin(self) -> None:
        self._started = True

    def use(self, link: "Link") -> None:
        with self._guard:
            self._link = link
        if self.abandoned:
            link.cut()

    def done(self) -> None:
        with self._guard:
            self._link = None

    def abandon(self) -> bool:
        """Nobody waits any more. False: it never came to its turn."""
        self.abandoned = True
        with self._guard:
            if self._link is not None:
                self._link.cut()
        return self._started


class Link:
    """A connection with its own small dialogue: begin, work, counts, commit."""

    def __init__(self, options: dict[str, Any], number: int) -> None:
        self._connection = psycopg.connect(**options)
        self._control = self._connection.cursor()
        self._cursor = _Cursor(self._connection.cursor(binary=True))
        self._shard = number % SHARDS
        self.is_fresh = True

    @property
    def is_lost(self) -> bool:
        return self._connection.closed

    def run(self, call: Call, begin: str | None, work: Callable[[Tx], T]) -> tuple[Tx, T]:
        """Run `work` in a transaction, or without one when `begin` is None."""
        tx = Tx(self._cursor, "postgresql")
        if begin is None:
            result = work(tx)
        else:
            result = self._run_between(call, begin, work, tx)
        self.is_fresh = False
        return tx, result

    def _run_between(self, call: Call, begin: str, work: Callable[[Tx], T], tx: Tx) -> T:
        self._control.execute(begin)
        try:
            result = work(tx)
            for (workspace, state), change in sorted(tx.counts.items()):
                if change:
                    params = {"workspace": workspace, "state": state, "shard": self._shard, "n": change}
                    tx.count(_COUNT, params)
            call.committing = True
            self._control.execute("COMMIT")
        except BaseException:
            if not self.is_lost:
                self._connection.rollback()
            raise
        return result

    def notify(self, channel: str, payload: str) -> None:
        self._control.execute("SELECT pg_notify(%s, %s)", (channel, payload))
        self.is_fresh = False

    def cut(self) -> None:
        """End the connection under a call that waits for the server; from any thread."""
        try:
            copy = socket.socket(fileno=os.dup(self._connection.fileno()))
        except (OSError, psycopg.Error):
            return  # gone already
        with copy:
            try:
                copy.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # gone already

    def close(self) -> None:
        self._connection.close()


class _Cursor:
    """A cursor that stores texts which PostgreSQL can't hold as near as it can."""

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor
        self.fetchall = cursor.fetchall
        self.fetchone = cursor.fetchone

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def execute(self, sql: str, values: Any = (), /) -> Any:
        try:
            return self._cursor.execute(sql, values)
        except psycopg.DataError as error:
            if not _has_nul(error):
                raise
            return self._cursor.execute(sql, _without_nul(values))

    def executemany(self, sql: str, values: Any, /) -> Any:
        try:
            return self._cursor.executemany(sql, values)
        except psycopg.DataError as error:
            if not _has_nul(error):
                raise
            return self._cursor.executemany(sql, [_without_nul(row) for row in values])


def _has_nul(error: psycopg.DataError) -> bool:
    # "PostgreSQL text fields cannot contain NUL (0x00) bytes", found before anything is sent
    return error.sqlstate is None and "NUL (0x00)" in str(error)


def _without_nul(values: Any) -> list[Any]:
    return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in values]


def is_away(error: psycopg.Error) -> bool:
    """Whether the error says that the whole database can't be used, not just this statement."""
    state = error.sqlstate or ""
    if isinstance(error, psycopg.OperationalError) and not state:
        return True  # the connection failed
    # connection exception; insufficient resources; operator intervention other than a cancelled
    # statement; system error; read only
    return state[:2] in ("08", "53", "58") or (state[:2] == "57" and state != "57014") or state == "25006"


def may_retry(error: psycopg.Error, link: Link, call: Call) -> bool:
    """Whether the transaction surely was not stored and trying again may help."""
    if call.abandoned:
        return False
    if isinstance(error, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected):
        return True
    # A connection that was idle while the server restarted says nothing about the server now.
    return link.is_lost and not link.is_fresh and not call.committing


def translate(error: psycopg.Error) -> Exception:
    """What a caller can act on, for an error of the driver; any other error as it is."""
    if isinstance(error, psycopg.IntegrityError):
        return Conflict(f"the record was changed or removed meanwhile; read it again ({_line(error)})")
    if isinstance(error, psycopg.OperationalError) or is_away(error):
        return Unavailable(away_text(error))
    return error


def away_text(error: object) -> str:
    return f"the database can't be used now: {_line(error)}"


def _line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:2]) or type(error).__name__

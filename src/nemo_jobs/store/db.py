"""The door to the database: transactions of plain functions, wake-ups, backups.

A store function is `def f(tx, ...)`: it holds no `await`, so nothing slow can happen inside a
transaction. `write` and `read` run it; what it returns is a frozen record, never a row.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Invalid, Unavailable
from nemo_jobs.store.driver import Driver, Locked, SchemaTooNew, Wakes, WakeUp, off_loop
from nemo_jobs.store.sql import Dialect, Statement, Tx

__all__ = ["Database", "Locked", "SchemaTooNew", "Statement", "Tx", "backup", "off_loop", "redacted"]

P = ParamSpec("P")
T = TypeVar("T")


class Database:
    """A SQLite file or a PostgreSQL database, open and of the right schema version.

    Wake-ups (topic, key) come after the commit of what they tell, from this process and from
    others: ("work", step id), ("job", job id), ("logs", attempt id). An empty key means that
    some may have been missed. They are hints: looking by time finds the same.
    """

    def __init__(self, driver: Driver, url: str, wakes: Wakes) -> None:
        self._driver = driver
        self._wakes = wakes
        self.url = url
        self.dialect: Dialect = "sqlite" if driver.dialect == "sqlite" else "postgresql"

    @classmethod
    def open(cls, url: str, *, clock: Clock | None = None) -> "Database":
        """Open, create or migrate. Raises `Locked`, `SchemaTooNew`, `Unavailable` or `Invalid`."""
        wakes = Wakes()
        driver: Driver
        path = _sqlite_path(url)
        if path is not None:
            from nemo_jobs.store.sqlite import SqliteDriver

            driver = SqliteDriver(path, wakes)
        else:
            driver = _open_postgres(url, wakes)
        return cls(driver, url, wakes)

    @property
    def problem(self) -> str | None:
        """Why the database can't be used now; None while it works."""
        return self._driver.problem

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person who starts the service should know about this database."""
        return self._driver.warnings

    async def start(self) -> None:
        """Begin to listen for what other services tell. Needs a running event loop."""
        await self._driver.start()

    async def aclose(self) -> None:
        """Finish what was accepted and let go of the database. Twice is fine."""
        await self._driver.aclose()

    async def write(
        self, fn: Callable[Concatenate[Tx, P], T], *args: Any, durable: bool = True, **kw: Any
    ) -> T:
        """Run `fn(tx, ...)` in a transaction; returns when it is safely stored.

        With `durable=False` it returns once the statements ran: the commit follows within
        milliseconds, and a crash before it undoes the write as if it had never been asked for.
        Raises what `fn` raises, and `Unavailable` within 5 s when the database can't be used.
        """
        return await self._driver.write(fn, args, kw, durable)

    async def read(
        self, fn: Callable[Concatenate[Tx, P], T], *args: Any, point: bool = False, **kw: Any
    ) -> T:
        """Run `fn(tx, ...)` on a snapshot of what is committed. `point` is for one or two look-ups
        by key: SQLite answers them at once on the event loop."""
        return await self._driver.read(fn, args, kw, point)

    def on_wake(self, callback: WakeUp) -> Callable[[], None]:
        """Call `callback(topic, key)` on the event loop for every wake-up; returns how to end that."""
        return self._wakes.subscribe(callback)

    async def backup(self, path: Path) -> None:
        """Write a complete copy to the file `path` while everything goes on."""
        import asyncio

        await asyncio.to_thread(self._driver.backup, path)


def backup(url: str, path: Path) -> None:
    """Like `Database.backup`, from outside the service: needs no lock and works while it runs."""
    source = _sqlite_path(url)
    if source is None:
        raise Invalid(pg_dump_hint(url, path))
    from nemo_jobs.store.sqlite_file import backup as copy

    copy(source, path)


def pg_dump_hint(url: str, path: Path) -> str:
    return (
        "this database is PostgreSQL, which has its own tool for backups; "
        f"run: pg_dump --format=custom --file={path} {redacted(url)}"
    )


def redacted(url: str) -> str:
    """The URL without its password, for logs and messages."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:***@{host}"))


def _sqlite_path(url: str) -> Path | None:
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        return None
    path = unquote(parts.path)
    if not path.startswith("//"):
        raise Invalid(f"{url}: the path of a SQLite database must be absolute: sqlite:////absolute/path")
    return Path(path[1:])


def _open_postgres(url: str, wakes: Wakes) -> Driver:
    if not url.startswith(("postgresql://", "postgres://", "postgresql+psycopg://")):
        raise Invalid(f"{redacted(url)}: a database URL begins with postgresql:// or sqlite:////")
    try:
        from nemo_jobs.store.postgres import PostgresDriver
    except ImportError as error:
        hint = "pip install 'nemo-jobs[postgres]'"
        raise Unavailable(
            f"PostgreSQL needs the driver psycopg ({error}); install it with: {hint}"
        ) from error
    return PostgresDriver(url.replace("postgresql+psycopg://", "postgresql://", 1), wakes)

"""PostgreSQL: transactions in a few threads, wake-ups over LISTEN and NOTIFY.

Each thread keeps its own connection. Every call has a deadline of its own: a server that
refuses, hangs or vanishes makes the call fail with `Unavailable` in time, and its connection is
cut. From then on calls fail at once, until a probe in the background finds that the database can
be written again.
"""

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa

from nemo_jobs.domain.model import Invalid, Unavailable
from nemo_jobs.store import schema
from nemo_jobs.store.driver import PATIENCE, Wakes
from nemo_jobs.store.postgres_link import (
    Call,
    Link,
    away_text,
    connection_options,
    is_away,
    may_retry,
    translate,
)
from nemo_jobs.store.postgres_wakes import CHANNEL, Notes
from nemo_jobs.store.sql import Statement, Tx

log = logging.getLogger(__name__)
T = TypeVar("T")
Told = Callable[[set[tuple[str, str]]], None]

WRITERS = 8
READERS = 4
TRIES = 3
#: A call that takes longer than this makes a probe ask whether the database is still there.
DOUBT_SECONDS = 1.5
PROBE_PATIENCE = 2.0
PROBE_EVERY = 0.5
#: What is known to take long (deleting, merging) may, as long as the database is there.
SLOW_PATIENCE = 40.0
OLDEST_SERVER = 13

_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_LAZY = "BEGIN; SET LOCAL synchronous_commit TO off"
_SLOW = "SET LOCAL statement_timeout TO 30000"
_ONE_AT_A_TIME = sa.text("SELECT pg_advisory_lock(7164220519)")
_PROBE = Statement(
    sa.text("INSERT INTO meta (key, value) VALUES ('probe', 'x') ON CONFLICT (key) DO UPDATE SET value = 'x'")
)


class PostgresDriver:
    """One PostgreSQL database, shared with any number of other services."""

    dialect = "postgresql"

    def __init__(self, url: str, wakes: Wakes) -> None:
        self.problem: str | None = None
        self.warnings: tuple[str, ...] = ()
        self._url = url
        self._options = connection_options(url)
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="store-writer")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._local = threading.local()
        self._links: set[Link] = set()
        self._numbers = itertools.count()
        self._notes = Notes(self._options, wakes, self._send_note, self._doubt)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: set[Call] = set()
        self._probing = False
        self._closing = False
        _prepare(self._options, url)

    async def start(self) -> None:
        self._spawn(self._notes.listen())

    async def aclose(self) -> None:
        if self._closing:
            return
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._close)

    async def write(self, fn: Callable[..., T], args: Any, kw: Any, durable: bool) -> T:
        loop = asyncio.get_running_loop()
        begin = "BEGIN" if durable else _LAZY
        slow = getattr(fn, "off_loop", False)
        if slow:
            begin = f"{begin}; {_SLOW}"

        def told(wakes: set[tuple[str, str]]) -> None:
            loop.call_soon_threadsafe(self._notes.tell, wakes)

        def work(call: Call) -> T:
            return self._transact(call, begin, told, lambda tx: fn(tx, *args, **kw))

        return await self._call(self._writers, work, SLOW_PATIENCE if slow else PATIENCE)

    async def read(self, fn: Callable[..., T], args: Any, kw: Any, point: bool) -> T:
        begin = None if point else _SNAPSHOT

        def work(call: Call) -> T:
            return self._transact(call, begin, None, lambda tx: fn(tx, *args, **kw))

        return await self._call(self._readers, work, PATIENCE)

    def backup(self, path: Path) -> None:
        from nemo_jobs.store.db import pg_dump_hint

        raise Invalid(pg_dump_hint(self._url, path))

    # a call: on the loop, then in a thread

    async def _call(self, pool: ThreadPoolExecutor, work: Callable[[Call], T], patience: float) -> T:
        if self._closing:
            raise Unavailable("the service is stopping")
        if self.problem is not None:
            raise Unavailable(self.problem)
        self._loop = asyncio.get_running_loop()
        call = Call()
        self._calls.add(call)
        running = asyncio.wrap_future(pool.submit(work, call))
        try:
            # Not wait_for: on Python 3.11 it may swallow a cancellation that comes with the answer.
            async with asyncio.timeout(patience):
                await asyncio.wait((running,), timeout=DOUBT_SECONDS)
                if not running.done():
                    self._doubt("it did not answer in time")
                return await running
        except TimeoutError:
            started = call.abandon()
        finally:
            self._calls.discard(call)
        what = "it did not answer in time" if started else "too many calls wait for it"
        raise Unavailable(away_text(what))

    def _transact(self, call: Call, begin: str | None, told: Told | None, work: Callable[[Tx], T]) -> T:
        """In a thread: run `work`, again where that is safe and may help."""
        call.begin()
        for left in reversed(range(TRIES)):
            link: Link | None = None
            try:
                link = self._link()
                call.use(link)
                tx, result = link.run(call, begin, work)
            except psycopg.Error as error:
                again = left > 0 and link is not None and may_retry(error, link, call)
                self._forget_if_lost(link)
                if again:
                    call.committing = False
                    continue
                self._note(error, call)
                raise translate(error) from error
            finally:
                call.done()
            if told is not None and tx.wakes:
                told(tx.wakes)
            return result
        raise AssertionError("the last try returns or raises")

    def _link(self) -> Link:
        link: Link | None = getattr(self._local, "link", None)
        if link is None:
            link = self._local.link = Link(self._options, next(self._numbers))
            self._links.add(link)
        return link

    def _forget_if_lost(self, link: Link | None) -> None:
        if link is not None and link.is_lost:
            self._local.link = None
            self._links.discard(link)
            link.close()

    def _note(self, error: psycopg.Error, call: Call) -> None:
        if is_away(error) and not call.abandoned and self._loop is not None:
            self._loop.call_soon_threadsafe(self._went_away, error)

    # a database that is away: on the loop

    def _doubt(self, why: object) -> None:
        """Something looks as if the database were away: find out."""
        if not self._closing and not self._probing:
            log.info("asking whether the database is there: %s", str(why).strip())
            self._probing = True
            self._spawn(self._probe_until_it_works())

    def _went_away(self, why: object) -> None:
        if self._closing:
            return
        if self.problem is None:
            log.error("%s", away_text(why))
        self.problem = away_text(why)
        for call in self._calls:
            call.abandon()
        self._doubt(why)

    async def _probe_until_it_works(self) -> None:
        """Try a small write until one works."""
        try:
            while not await self._probe():
                pass
            if self.problem is not None:
                log.warning("the database can be used again")
            self.problem = None
        finally:
            self._probing = False
        self._notes.missed()

    async def _probe(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_PATIENCE):
                connection = await psycopg.AsyncConnection.connect(**self._options)
                async with connection:
                    await connection.execute(_PROBE.prepared("postgresql").sql)
        except (psycopg.Error, OSError, TimeoutError) as error:
            self._went_away(error if str(error) else "it did not answer in time")
            await asyncio.sleep(PROBE_EVERY)
            return False
        return True

    def _send_note(self, payload: str) -> None:
        if self.problem is None and not self._closing:
            self._readers.submit(self._send_in_thread, payload)

    def _send_in_thread(self, payload: str) -> None:
        """A connection that broke while it was idle is only noticed here, so a second one is tried."""
        for attempt in range(2):
            try:
                self._link().notify(CHANNEL, payload)
                return
            except psycopg.Error as error:
                self._forget_if_lost(getattr(self._local, "link", None))
                if attempt:
                    log.info("a wake-up was not sent: %s", error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close(self) -> None:
        self._writers.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)
        for link in tuple(self._links):
            link.close()


def _prepare(options: dict[str, Any], url: str) -> None:
    """Bring the schema to this version, one service at a time."""
    patient = {**options, "options": "-c statement_timeout=0 -c lock_timeout=0"}
    try:
        with psycopg.connect(**patient) as connection:
            version = connection.info.server_version // 10000
            if version < OLDEST_SERVER:
                raise Invalid(f"the server is PostgreSQL {version}; it must be {OLDEST_SERVER} or later")
            tx = Tx(connection.cursor(), "postgresql")
            tx.run(_ONE_AT_A_TIME)
            schema.prepare(tx, url, connection.info.dbname)
    except psycopg.Error as error:
        raise translate(error) from error

"""SQLite: one writer with group commit, readers beside it.

Statements of waiting writers run one after the other on the event loop, in one transaction;
COMMIT, which waits for the disk, runs in the writer thread. While it runs, the next group
gathers. A writer that fails after it has written something is undone with the whole
transaction, and the others run again: that is rare, and a savepoint for each would cost more. A
group of only `durable=False` writes stays open for a few milliseconds so that a durable one can
join and both pay for one fsync.
"""

import asyncio
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from nemo_jobs.domain.model import Unavailable
from nemo_jobs.store import schema
from nemo_jobs.store.driver import PATIENCE, Wakes
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.sqlite_file import (
    backup,
    check_library,
    code,
    connect,
    filesystem_warnings,
    lock,
    translate,
)

log = logging.getLogger(__name__)
#: A disk that was full counts as full until this many bytes are free.
LEAST_FREE = 1 << 20
T = TypeVar("T")

GROUP = 256  # writes a commit, at most
TURN_SECONDS = 0.004  # time on the loop in one go
GATHER_SECONDS = 0.03  # a group stays open for as long as the commit before took, at most this
LINGER_SECONDS = 0.005  # how long a group without a durable write stays open
READERS = 3
PROBE_SECONDS = 1.0

_COUNT = Statement(
    sa.text(
        "INSERT INTO job_count (workspace, state, shard, n) VALUES (:workspace, :state, 0, :n) "
        "ON CONFLICT (workspace, state, shard) DO UPDATE SET n = n + excluded.n"
    )
)
_PROBE = Statement(
    sa.text("INSERT INTO meta (key, value) VALUES ('probe', 'x') ON CONFLICT (key) DO UPDATE SET value = 'x'")
)


@dataclass(slots=True)
class _Write:
    fn: Callable[..., Any]
    args: Any
    kw: Any
    durable: bool
    future: "asyncio.Future[Any]"
    result: Any = None
    error: BaseException | None = None

    def settle(self, lost: Exception | None = None) -> None:
        if self.future.done():
            return
        error = lost or self.error
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(self.result)


@dataclass(slots=True)
class _Group:
    """The open transaction: what ran in it and what is to be told after its commit."""

    writes: list[_Write] = field(default_factory=list)
    wakes: set[tuple[str, str]] = field(default_factory=set)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    durable: bool = False
    opened: float = field(default_factory=time.monotonic)


class SqliteDriver:
    """One database file. Opening it takes an exclusive lock that lasts until `aclose`."""

    dialect = "sqlite"

    def __init__(self, path: Path, wakes: Wakes) -> None:
        self.path = path
        self.problem: str | None = None
        self.warnings = filesystem_warnings(path)
        self._wakes = wakes
        check_library()
        try:
            self._lock = lock(path)
        except OSError as error:
            raise Unavailable(f"the data directory {path.parent} can't be used: {error}") from error
        connection: sqlite3.Connection | None = None
        try:
            connection = connect(path)
            _prepare_file(connection, path)
            self._point = connect(path, reader=True)
        except Exception as error:
            if connection is not None:
                connection.close()
            os.close(self._lock)
            raise translate(error) from error
        self._connection, self._cursor = connection, connection.cursor()
        self._queue: deque[_Write] = deque()
        self._group: _Group | None = None
        self._busy = False
        self._closing = False
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._blocked_since: float | None = None
        self._last_commit = 0.0
        self._probing = False
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []

    async def start(self) -> None: ...

    async def aclose(self) -> None:
        if self._closing:
            return
        self._closing = True
        while self._queue or self._group is not None or self._busy:
            self._schedule()
            await asyncio.sleep(0.002)
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()
        await asyncio.to_thread(self._close)

    async def write(self, fn: Callable[..., T], args: Any, kw: Any, durable: bool) -> T:
        if self._closing:
            raise Unavailable("the service is stopping")
        future = asyncio.get_running_loop().create_future()
        self._queue.append(_Write(fn, args, kw, durable, future))
        if not self._busy:
            self._schedule()
        result: T = await future
        return result

    async def read(self, fn: Callable[..., T], args: Any, kw: Any, point: bool) -> T:
        if point:
            return _read(self._point, fn, args, kw)
        call = asyncio.get_running_loop().run_in_executor(self._readers, self._read_in_thread, fn, args, kw)
        try:
            # Not wait_for: on Python 3.11 it may swallow a cancellation that comes with the answer.
            async with asyncio.timeout(PATIENCE):
                return await call
        except TimeoutError:
            raise Unavailable("the database was too busy to answer; try again") from None

    def backup(self, path: Path) -> None:
        backup(self.path, path)

    # the group commit: all below runs on the loop unless its name says otherwise

    def _schedule(self) -> None:
        if self._soon is None and not self._busy:
            self._soon = asyncio.get_running_loop().call_soon(self._turn)

    def _schedule_later(self, delay: float) -> None:
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(delay, self._later_turn)

    def _later_turn(self) -> None:
        self._later = None
        self._schedule()

    def _turn(self) -> None:
        """Run what waits and commit, unless a commit is under way: its end calls this again."""
        self._soon = None
        if self._busy:
            return
        while self._queue and self._queue[0].future.done():
            self._queue.popleft()
        if self._queue and self._group is None and _is_slow(self._queue[0]):
            self._commit_in_thread(_Group(writes=[self._queue.popleft()]), self._run_slow)
            return
        try:
            self._run_waiting()
        except sqlite3.Error as error:
            self._give_up(error)
            return
        group = self._group
        if group is None:
            if self._queue:
                self._schedule()
            return
        age = time.monotonic() - group.opened
        waiting = self._queue and not _is_slow(self._queue[0])
        if (
            waiting
            and len(group.writes) < GROUP
            and age < min(max(TURN_SECONDS, self._last_commit), GATHER_SECONDS)
        ):
            self._schedule()  # others on the loop have their turn first
        elif group.durable or self._queue or age >= LINGER_SECONDS or self._closing:
            self._group = None
            self._commit_in_thread(group, self._commit)
        else:
            self._schedule_later(LINGER_SECONDS - age)

    def _run_waiting(self) -> None:
        """Run waiting writes inside the open transaction, for one turn on the loop."""
        stop = time.monotonic() + TURN_SECONDS
        while self._queue and not _is_slow(self._queue[0]):
            if self._group is None:
                self._cursor.execute("BEGIN IMMEDIATE")
                self._blocked_since = None
                self._group = _Group()
            write = self._queue.popleft()
            if not write.future.done():
                self._run_one(write, self._group)
            if len(self._group.writes) >= GROUP or time.monotonic() > stop:
                return

    def _run_one(self, write: _Write, group: _Group) -> None:
        group.writes.append(write)
        group.durable = group.durable or write.durable
        tx = Tx(self._cursor, "sqlite")
        before = self._connection.total_changes
        try:
            write.result = write.fn(tx, *write.args, **write.kw)
        except Exception as error:
            write.error = translate(error)
            if not self._connection.in_transaction:
                # SQLite undoes the whole transaction by itself at some errors, such as a full disk.
                if isinstance(error, sqlite3.Error):
                    raise
                raise sqlite3.OperationalError(str(error)) from error
            if self._connection.total_changes != before:
                self._run_again(group)
        else:
            group.wakes |= tx.wakes
            group.counts.update(tx.counts)
            if not write.durable:
                write.settle()

    def _run_again(self, group: _Group) -> None:
        """Undo everything and run what has not failed: it finds the same and does the same."""
        self._cursor.execute("ROLLBACK")
        self._cursor.execute("BEGIN IMMEDIATE")
        good = [write for write in group.writes if write.error is None]
        group.writes = [write for write in group.writes if write.error is not None]
        group.wakes.clear()
        group.counts.clear()
        for write in good:
            self._run_one(write, group)

    def _give_up(self, error: sqlite3.Error) -> None:
        """The transaction can't be begun or was undone: nothing of it is stored."""
        blocked = isinstance(error, sqlite3.OperationalError) and code(error) == sqlite3.SQLITE_BUSY
        if blocked and self._group is None:
            now = time.monotonic()
            self._blocked_since = self._blocked_since or now
            if now - self._blocked_since < PATIENCE - 0.5:
                self._schedule_later(0.02)
                return
            self._blocked_since = None
        group, self._group = self._group or _Group(), None
        group.writes.extend(self._queue)
        self._queue.clear()
        if self._connection.in_transaction:
            self._connection.rollback()
        self._lost(group, error)

    def _commit_in_thread(self, group: _Group, commit: Callable[[_Group], None]) -> None:
        self._busy = True
        begun, loop = time.monotonic(), asyncio.get_running_loop()
        done = self._writer.submit(commit, group)
        done.add_done_callback(lambda done: loop.call_soon_threadsafe(self._committed, group, done, begun))

    def _commit(self, group: _Group) -> None:  # in the writer thread
        try:
            for (workspace, state), change in group.counts.items():
                if change:
                    ready = _COUNT.prepared("sqlite")
                    params = {"workspace": workspace, "state": state, "n": change}
                    self._cursor.execute(ready.sql, ready.values(params))
            self._cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")
            raise

    def _run_slow(self, group: _Group) -> None:  # in the writer thread
        write = group.writes.pop()
        write.durable = True  # told on the loop, after the commit
        self._cursor.execute("BEGIN IMMEDIATE")
        try:
            self._run_one(write, group)
        except BaseException:
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")
            raise
        self._commit(group)

    def _committed(self, group: _Group, done: "Future[None]", begun: float) -> None:
        self._busy = False
        self._last_commit = time.monotonic() - begun
        error = done.exception()
        if error is not None:
            self._lost(group, error)
        else:
            refused = next((str(w.error) for w in group.writes if isinstance(w.error, Unavailable)), None)
            if refused is not None:
                self._went_wrong(refused)
            elif self.problem is not None and shutil.disk_usage(self.path.parent).free < LEAST_FREE:
                self._went_wrong(self.problem)  # a small write found a corner; the next one may not
            elif self.problem is not None:
                self.problem = None
                log.warning("%s can be written again", self.path)
            for write in group.writes:
                write.settle()
            self._wakes.send(group.wakes)
        if self._queue:
            self._schedule()

    def _lost(self, group: _Group, error: BaseException) -> None:
        reason = translate(error)
        if not isinstance(reason, Unavailable):
            log.error("writes to %s failed: %r", self.path, reason)
        else:
            self._went_wrong(str(reason))
        for write in group.writes:
            write.settle(lost=translate(error))

    def _went_wrong(self, why: str) -> None:
        """Remember it, and find out by writes of our own when the database works again."""
        if self.problem is None:
            log.error("%s can't be written: %s", self.path, why)
        self.problem = why
        if not self._closing and not self._probing:
            self._probing = True
            asyncio.get_running_loop().call_later(PROBE_SECONDS, self._probe)

    def _probe(self) -> None:
        self._probing = False
        if self._closing or self.problem is None:
            return
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._queue.append(_Write(lambda tx: tx.count(_PROBE), (), {}, True, future))
        self._schedule()

    # in reader threads, and at the end

    def _read_in_thread(self, fn: Callable[..., T], args: Any, kw: Any) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect(self.path, reader=True)
            self._opened.append(connection)
        return _read(connection, fn, args, kw)

    def _close(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        for connection in (*self._opened, self._point, self._connection):
            connection.close()
        os.close(self._lock)


def _is_slow(write: _Write) -> bool:
    return getattr(write.fn, "off_loop", False)


def _read(connection: sqlite3.Connection, fn: Callable[..., T], args: Any, kw: Any) -> T:
    cursor = connection.cursor()
    try:
        cursor.execute("BEGIN")
        return fn(Tx(cursor, "sqlite"), *args, **kw)
    except sqlite3.Error as error:
        raise translate(error) from error
    finally:
        if connection.in_transaction:
            cursor.execute("COMMIT")
        cursor.close()


def _prepare_file(connection: sqlite3.Connection, path: Path) -> None:
    path.chmod(0o600)
    schema.prepare(Tx(connection.cursor(), "sqlite"), f"sqlite:///{path}", str(path))

"""The group commit and the file: what is promised of SQLite alone."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.model import Conflict, Unavailable
from nemo_jobs.domain.states import Trigger
from nemo_jobs.store import jobs, sqlite, sqlite_file
from nemo_jobs.store.db import Database, Locked, Tx, off_loop
from tests.store.kit import STARTED, SUBMITTED, SUCCEEDED, Store, new_job

PUT = sa.text("INSERT INTO meta (key, value) VALUES (:key, 'x')")


def put(tx: Tx, key: str) -> str:
    tx.count(PUT, {"key": key})
    return key


def keys(tx: Tx) -> set[str]:
    return {row[0] for row in tx.run(sa.text("SELECT key FROM meta WHERE key LIKE 'k%'"))}


@pytest.fixture
async def store(sqlite_url: str, open_store: Callable[..., Any]) -> Store:
    opened: Store = await open_store(sqlite_url)
    return opened


async def test_a_write_that_fails_does_not_hurt_its_group(store: Store) -> None:
    def fail(tx: Tx) -> None:
        put(tx, "k-lost")
        raise Conflict("no")

    writes = [store.write(put, "k1"), store.write(fail), store.write(put, "k2"), store.write(put, "k1")]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert results[0] == "k1" and results[2] == "k2"
    assert isinstance(results[1], Conflict) and isinstance(results[3], Conflict)
    assert await store.read(keys) == {"k1", "k2"}


async def test_many_writes_share_a_commit(store: Store, sqlite_url: str) -> None:
    driver: Any = store.db._driver
    commits = 0
    commit = driver._commit

    def counted(group: Any) -> None:
        nonlocal commits
        commits += 1
        commit(group)

    driver._commit = counted
    await asyncio.gather(*(store.write(put, f"k{n}") for n in range(200)))
    assert commits <= 20
    assert len(await store.read(keys)) == 200


async def test_reads_never_see_what_is_not_committed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # A group of such writes is committed after a moment by itself, which a busy machine may spend
    # before it reads: here nothing but the second write ends it.
    monkeypatch.setattr(sqlite, "LINGER_SECONDS", 60.0)
    await store.write(put, "k1", durable=False)
    for point in (True, False):
        assert await store.read(keys, point=point) == set()
    await store.write(put, "k2")
    for point in (True, False):
        assert await store.read(keys, point=point) == {"k1", "k2"}


async def test_a_write_that_is_not_durable_is_committed_soon_by_itself(store: Store) -> None:
    await store.write(put, "k1", durable=False)
    async with asyncio.timeout(5):
        while await store.read(keys, point=True) != {"k1"}:
            await asyncio.sleep(0.001)


async def test_slow_writes_run_beside_the_loop_and_in_order(store: Store) -> None:
    thread: list[int] = []

    @off_loop
    def slow(tx: Tx) -> set[str]:
        thread.append(threading.get_ident())
        seen = keys(tx)
        put(tx, "k-slow")
        return seen

    first, seen, second = await asyncio.gather(
        store.write(put, "k1"), store.write(slow), store.write(put, "k2")
    )
    assert (first, seen, second) == ("k1", {"k1"}, "k2")
    assert thread != [threading.get_ident()]
    assert await store.read(keys) == {"k1", "k-slow", "k2"}

    @off_loop
    def slow_and_wrong(tx: Tx) -> None:
        put(tx, "k-wrong")
        raise Conflict("no")

    with pytest.raises(Conflict):
        await store.write(slow_and_wrong)
    assert "k-wrong" not in await store.read(keys)


async def test_a_caller_that_gave_up_before_its_turn_writes_nothing(store: Store) -> None:
    task = asyncio.create_task(store.write(put, "k1"))
    await asyncio.sleep(0)
    task.cancel()
    await store.write(put, "k2")
    assert await store.read(keys) == {"k2"}


async def test_what_was_accepted_is_stored_when_the_database_is_closed(sqlite_url: str) -> None:
    db = Database.open(sqlite_url)
    await db.start()
    await db.write(put, "k1", durable=False)
    waiting = asyncio.create_task(db.write(put, "k2"))
    await asyncio.sleep(0)
    await db.aclose()
    await waiting
    await db.aclose()
    with pytest.raises(Unavailable, match="stopping"):
        await db.write(put, "k3")
    again = Database.open(sqlite_url)
    assert await again.read(keys) == {"k1", "k2"}
    await again.aclose()


async def test_a_second_service_on_the_same_file_is_told_at_once(store: Store, sqlite_url: str) -> None:
    with pytest.raises(Locked, match=rf"another service \(process {os.getpid()}\) uses .* --data-dir"):
        Database.open(sqlite_url)


def test_an_open_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"certainly not a database " * 100)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(Unavailable, match="not a database"):
        Database.open(f"sqlite:///{tmp_path}/jobs.db")
    # No garbage collection in between: what is open belongs to a connection that nobody closed.
    assert set(os.listdir("/proc/self/fd")) <= before


async def test_another_program_that_writes_is_waited_for(store: Store, tmp_path: Path) -> None:
    other = sqlite_file.connect(tmp_path / "jobs.db")
    other.execute("BEGIN IMMEDIATE")
    write = asyncio.create_task(store.write(put, "k1"))
    await asyncio.sleep(0.05)
    assert not write.done()
    other.execute("COMMIT")
    other.close()
    assert await write == "k1"


CHILD = """
import asyncio, sys
from nemo_jobs.store.db import Database
from tests.store.test_sqlite import put

async def main(url):
    db = Database.open(url)
    await db.start()
    number = 0
    async def writer(name):
        nonlocal number
        while True:
            number += 1
            key = f"k{number}"
            await db.write(put, key)
            print(key, flush=True)
    await asyncio.gather(*(writer(n) for n in range(16)))

asyncio.run(main(sys.argv[1]))
"""


async def test_c024_what_was_answered_survives_a_kill_in_the_middle_of_a_commit(sqlite_url: str) -> None:
    answered: set[str] = set()
    for _ in range(3):
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                CHILD.replace("number = 0", f"number = {len(answered) + 100_000 * _}"),
                sqlite_url,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        told = [child.stdout.readline().strip() for _ in range(200)]
        child.send_signal(signal.SIGKILL)
        told += child.stdout.read().split("\n")[:-1]
        child.wait()
        child.stdout.close()
        answered |= {key for key in told if key}
        db = Database.open(sqlite_url)
        stored = await db.read(keys)
        check = await db.read(lambda tx: tx.one(sa.text("PRAGMA integrity_check")))
        await db.aclose()
        assert answered <= stored and check == ("ok",)


async def test_c024_a_step_is_followed_by_the_next_exactly_once_over_a_restart(sqlite_url: str) -> None:
    db = Database.open(sqlite_url)
    store = Store(db)
    from nemo_jobs.store import steps, workspaces

    await db.write(workspaces.ensure_defaults, 1)
    step = await store.running("j", "one", "two")
    await store.apply(step, SUCCEEDED)
    await db.aclose()
    db = Database.open(sqlite_url)
    store = Store(db, store.clock, token="token-2")
    assert await store.apply(step, SUCCEEDED) is None
    await db.write(steps.void_leases, "o1")
    (second,) = await store.claim()
    assert second.name == "two"
    await store.apply(second, SUBMITTED, STARTED, SUCCEEDED)
    assert await store.claim() == [] and (await store.job("j")).state == "completed"
    await db.aclose()


async def test_many_creates_and_requests_at_once_keep_the_counts(store: Store) -> None:
    async def one(number: int) -> None:
        await store.write(jobs.create_job, new_job(f"j-{number}"), store.now(), "t")
        if number % 2:
            await store.request(f"j-{number}", Trigger.CANCEL)

    await asyncio.gather(*(one(n) for n in range(100)))
    rows = await store.read(lambda tx: tx.run(sa.text("SELECT state, sum(n) FROM job_count GROUP BY state")))
    assert {state: n for state, n in rows if n} == {"created": 50, "cancelled": 50}


def test_c095_a_network_file_system_is_warned_about(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\nserver:/home2 /home2 nfs4 rw 0 0\ntmpfs /home2/me/fast tmpfs rw 0 0\n"
    )
    kind = sqlite_file._filesystem
    assert kind(Path("/home2/me"), mounts) == "nfs4"
    assert kind(Path("/home2/me/fast/x"), mounts) == "tmpfs"
    assert kind(Path("/homeless"), mounts) == "ext4"
    assert sqlite_file.filesystem_warnings(tmp_path / "jobs.db") == ()

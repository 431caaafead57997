"""What is promised of PostgreSQL alone: sharing it, and living through its absence."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.model import Invalid, Unavailable
from nemo_jobs.domain.states import Trigger
from nemo_jobs.store import jobs, steps
from nemo_jobs.store.db import Database, Tx, off_loop
from tests.bed.postgres import PostgresServer
from tests.store.conftest import TEMPLATE
from tests.store.kit import STARTED, SUBMITTED, SUCCEEDED, Store, batch, new_job


@pytest.fixture(scope="module")
def fragile(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server that a test may stop; the others go on with theirs."""
    server = PostgresServer.start()
    try:
        server.sql("postgres", f"CREATE DATABASE {TEMPLATE}")
        Database.open(server.url(TEMPLATE))._driver._close()  # type: ignore[attr-defined]
        yield server
    finally:
        server.destroy()


async def test_c029_of_two_services_each_step_is_claimed_once(
    postgres_url: str, open_store: Callable[..., Any]
) -> None:
    first: Store = await open_store(postgres_url, token="t1")
    second: Store = await open_store(postgres_url, token="t2", host="h2")
    for number in range(60):
        await first.create(f"j-{number}")
    claimed: list[str] = []
    while len(claimed) < 60:
        claims = await asyncio.gather(*(s.claim(limit=4) for _ in range(5) for s in (first, second)))
        assert any(claims)
        claimed += [step.id for found in claims for step in found]
    assert len(set(claimed)) == 60


async def test_writes_to_one_job_come_one_after_the_other(
    postgres_url: str, open_store: Callable[..., Any]
) -> None:
    first: Store = await open_store(postgres_url)
    second: Store = await open_store(postgres_url)
    step = await first.running("j")
    details = [
        store.write(jobs.merge_status_details, "default", "j", {f"k{n}": n}, store.now())
        for n in range(20)
        for store in (first, second)
    ]
    reports = [first.apply(step, message=f"m{n}", reason="running", logs=batch(f"l{n}")) for n in range(20)]
    requests = [second.request("j", Trigger.RESUME) for _ in range(10)]
    await asyncio.gather(*details, *reports, *requests)
    assert (await first.job("j")).status_details.count('"k') == 20
    assert (await first.step("j")).db_version == 1 + 2 + 20


async def test_counts_are_exact_with_writers_in_many_services(
    postgres_url: str, open_store: Callable[..., Any]
) -> None:
    stores: list[Store] = [await open_store(postgres_url, token=f"t{n}") for n in range(3)]

    async def life(store: Store, number: int) -> None:
        await store.write(jobs.create_job, new_job(f"j-{number}"), store.now(), "t")
        if number % 2:
            await store.request(f"j-{number}", Trigger.CANCEL)

    await asyncio.gather(*(life(stores[n % 3], n) for n in range(60)))
    _, total, _ = await stores[0].read(jobs.list_jobs, jobs.JobQuery("default"))
    assert total == 60


async def test_wake_ups_reach_other_services_and_ones_own_come_once(
    postgres_url: str, open_store: Callable[..., Any]
) -> None:
    first: Store = await open_store(postgres_url)
    second: Store = await open_store(postgres_url)
    here: list[tuple[str, str]] = []
    there: list[tuple[str, str]] = []
    first.db.on_wake(lambda *wake: here.append(wake))
    second.db.on_wake(lambda *wake: there.append(wake))
    job = await first.create("j")
    step = await first.step("j")
    async with asyncio.timeout(5):
        while len(there) < 2:
            await asyncio.sleep(0.001)
            await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert sorted(here) == sorted(there) == sorted([("job", job.id), ("work", step.id)])


async def test_writes_that_are_not_durable_are_still_seen_by_all(
    postgres_url: str, open_store: Callable[..., Any]
) -> None:
    first: Store = await open_store(postgres_url)
    second: Store = await open_store(postgres_url)
    await first.create("j")
    (step,) = await first.claim(durable=False)
    assert (await second.step("j")).lease_token == step.lease_token


async def _fails_in_time(store: Store) -> None:
    """Reads and writes fail with Unavailable in under 5 s, whatever their number."""
    begin = time.monotonic()
    calls = [store.job("first") for _ in range(20)] + [store.create(f"no-{n}") for n in range(20)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - begin < 5
    assert all(isinstance(result, Unavailable) for result in results), results
    assert store.db.problem is not None


async def _works_again(store: Store, seconds: float = 8) -> None:
    async with asyncio.timeout(seconds):
        while True:
            try:
                await store.job("first")
                await store.create(f"after-{time.monotonic_ns()}")
                break
            except Unavailable:
                await asyncio.sleep(0.1)
    assert store.db.problem is None


async def test_c070_a_stopped_server_means_unavailable_and_its_return_is_noticed(
    fragile: PostgresServer, open_store: Callable[..., Any]
) -> None:
    store: Store = await open_store(fragile.new_database(TEMPLATE))
    step = await store.running("first")
    fragile.stop()
    await _fails_in_time(store)
    fragile.resume()
    await _works_again(store)
    # What happened meanwhile is recorded now, under the same lease.
    await store.apply(step, SUCCEEDED, logs=batch("written during the gap"))
    assert (await store.job("first")).state == "completed"
    heard = asyncio.Event()
    store.db.on_wake(lambda topic, key: heard.set())
    await store.create("second")
    await asyncio.wait_for(heard.wait(), 5)


async def test_c070_a_crashed_server_loses_nothing_that_was_answered(
    fragile: PostgresServer, open_store: Callable[..., Any]
) -> None:
    store: Store = await open_store(fragile.new_database(TEMPLATE))
    await store.create("first")
    answered = {"first"}

    async def keep_creating(worker: int) -> None:
        for number in range(1000):
            name = f"w{worker}-{number}"
            try:
                await store.write(jobs.create_job, new_job(name), store.now(), "t")
            except Unavailable:
                return
            answered.add(name)

    workers = [asyncio.create_task(keep_creating(n)) for n in range(8)]
    async with asyncio.timeout(20):
        while len(answered) < 50:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(fragile.stop, signal.SIGQUIT)
    await asyncio.gather(*workers)
    await asyncio.to_thread(fragile.resume)
    await _works_again(store)
    found, total, _ = await store.read(jobs.list_jobs, jobs.JobQuery("default", page_size=5000))
    assert answered <= {job.name for job in found} and total == len(found)


@pytest.mark.alone
async def test_c070_a_server_that_hangs_means_unavailable_in_time(
    fragile: PostgresServer, open_store: Callable[..., Any]
) -> None:
    store: Store = await open_store(fragile.new_database(TEMPLATE))
    await store.create("first")
    await store.job("first")
    fragile.freeze()
    try:
        await _fails_in_time(store)
        begin = time.monotonic()
        with pytest.raises(Unavailable):
            await store.job("first")
        assert time.monotonic() - begin < 0.5  # known to be away: said at once
    finally:
        fragile.thaw()
    await _works_again(store)


async def test_c070_cut_connections_are_replaced_without_anybody_noticing(
    fragile: PostgresServer, open_store: Callable[..., Any]
) -> None:
    store: Store = await open_store(fragile.new_database(TEMPLATE))
    await store.create("first")
    await asyncio.gather(*(store.job("first") for _ in range(8)))
    kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    fragile.sql("postgres", f"{kill} AND application_name = 'nemo-jobs' AND query NOT LIKE 'LISTEN%'")
    results = await asyncio.gather(*(store.job("first") for _ in range(8)), return_exceptions=True)
    assert not any(isinstance(result, BaseException) for result in results), results
    await store.create("second")


def test_a_server_that_is_not_there_is_said_at_the_start() -> None:
    begin = time.monotonic()
    with pytest.raises(Unavailable, match="can't be used now"):
        Database.open("postgresql://postgres@127.0.0.1:1/none")
    assert time.monotonic() - begin < 5
    with pytest.raises(Invalid, match="begins with"):
        Database.open("mysql://somewhere/db")


async def test_a_backup_points_to_pg_dump(
    postgres_url: str, open_store: Callable[..., Any], tmp_path: Path
) -> None:
    store: Store = await open_store(postgres_url)
    with pytest.raises(Invalid, match="pg_dump --format=custom"):
        await store.db.backup(tmp_path / "x")


async def test_steps_move_on_under_load_from_two_services(
    postgres_url: str, open_store: Callable[..., Any]
) -> None:
    stores: list[Store] = [await open_store(postgres_url, token=f"t{n}") for n in range(2)]
    for number in range(20):
        await stores[0].create(f"j-{number}", "one", "two")

    async def engine(store: Store) -> int:
        done = 0
        while found := await store.claim(limit=3):
            for step in found:
                await store.apply(step, SUBMITTED, STARTED, durable=False)
                applied = await store.apply(step, SUCCEEDED, claim_next=False)
                assert applied is not None
                done += 1
        return done

    assert sum(await asyncio.gather(*(engine(store) for store in stores))) == 40
    assert await stores[0].read(steps.waiting_counts) == {}
    found, _, _ = await stores[0].read(jobs.list_jobs, jobs.JobQuery("default", page_size=100))
    assert {job.state for job in found} == {"completed"}


async def test_a_call_that_is_merely_slow_says_nothing_about_the_database(
    postgres_url: str, open_store: Callable[..., Any]
) -> None:
    store: Store = await open_store(postgres_url)
    await store.create("first")

    def slow(tx: Tx) -> None:
        for _ in range(3):
            tx.one(sa.text("SELECT 1 FROM pg_sleep(2)"))

    waiting = asyncio.create_task(store.read(slow))
    for _ in range(50):
        assert (await store.job("first")).name == "first"
        await asyncio.sleep(0.1)
    with pytest.raises(Unavailable, match="in time"):
        await waiting
    assert store.db.problem is None

    @off_loop
    def slow_on_purpose(tx: Tx) -> str:
        tx.one(sa.text("SELECT 1 FROM pg_sleep(5)"))
        return "done"

    assert await store.write(slow_on_purpose) == "done"

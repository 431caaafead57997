"""Keys that make a repeated create harmless, on both databases."""

import asyncio
from typing import Any

import pytest

from nemo_jobs.domain.model import Conflict, Invalid, JobRecord, NotFound
from nemo_jobs.domain.states import Trigger
from nemo_jobs.store import idempotency, jobs, steps
from nemo_jobs.store.idempotency import KEPT, Once
from nemo_jobs.store.jobs import JobQuery, Lease
from tests.store.kit import LEASE, SECOND, Store, new_job

ONCE = Once("default", "ada", "key-1", "digest-1")


def answer(job: JobRecord) -> str:
    return f"{job.id} {job.name} {job.created_at}"


async def send(store: Store, name: str, once: Once = ONCE, lease: Lease | None = None, **given: Any) -> Any:
    return await store.write(
        idempotency.create_once, new_job(name, **given), once, answer, lease, store.now(), "ada"
    )


async def names(store: Store) -> set[str]:
    found = await store.read(jobs.list_jobs, JobQuery("default", page_size=100))
    return {job.name for job in found[0]}


async def test_the_same_request_has_the_same_answer_and_makes_one_job(store: Store) -> None:
    first, held = await send(store, "moth")
    assert held is None
    assert first.startswith("platform-job-")
    assert await send(store, "mole") == (first, None)
    assert await store.read(idempotency.first_answer, ONCE, store.now()) == first
    assert await names(store) == {"moth"}


async def test_another_body_under_the_same_key_is_a_conflict(store: Store) -> None:
    await send(store, "moth")
    other = Once("default", "ada", "key-1", "digest-2")
    with pytest.raises(Conflict, match="'key-1' came with another body"):
        await send(store, "mole", other)
    with pytest.raises(Conflict):
        await store.read(idempotency.first_answer, other, store.now())
    assert await names(store) == {"moth"}


@pytest.mark.parametrize(
    "other", [Once("system", "ada", "key-1", "digest-1"), Once("default", "bob", "key-1", "digest-1")]
)
async def test_a_key_counts_in_its_workspace_and_for_its_principal(store: Store, other: Once) -> None:
    first, _ = await send(store, "moth")
    second, _ = await send(store, "mole", other, workspace=other.workspace)
    assert first != second
    assert await store.read(idempotency.first_answer, other, store.now()) == second


async def test_a_create_that_fails_leaves_nothing_under_its_key(store: Store) -> None:
    await store.create("moth")
    with pytest.raises(Conflict, match="'moth' is taken"):
        await send(store, "moth")
    with pytest.raises(NotFound, match="no workspace 'nowhere'"):
        await send(store, "mole", workspace="nowhere")
    with pytest.raises(Invalid, match="project 'none' does not exist"):
        await send(store, "mole", project="none")
    assert await store.read(idempotency.first_answer, ONCE, store.now()) is None
    await send(store, "mole", Once("default", "ada", "key-1", "another digest"))
    assert await names(store) == {"moth", "mole"}


async def test_a_failing_create_takes_no_other_with_it(store: Store) -> None:
    """On SQLite they share a transaction, which runs again without the one that failed."""
    await store.create("moth")
    tries = [send(store, f"job-{n}", Once("default", "ada", f"key-{n}", "d")) for n in range(6)]
    tries.insert(3, send(store, "moth", Once("default", "ada", "bad", "d")))
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert [isinstance(result, Conflict) for result in results] == [number == 3 for number in range(7)]
    assert await names(store) == {"moth", *(f"job-{n}" for n in range(6))}
    total = await store.read(jobs.list_jobs, JobQuery("default"))
    assert total[1] == 7


async def test_of_many_at_once_one_creates_and_all_hear_of_it(store: Store) -> None:
    answers = await asyncio.gather(*(send(store, f"job-{n}") for n in range(12)))
    assert len(set(answers)) == 1
    assert len(await names(store)) == 1
    same = Once("default", "ada", "key-2", "digest")
    answers = await asyncio.gather(*(send(store, "same-name", same) for _ in range(12)))
    assert len(set(answers)) == 1
    assert len(await names(store)) == 2


async def test_another_service_waits_for_the_first_one(postgres_url: str, open_store: Any) -> None:
    here, there = await open_store(postgres_url), await open_store(postgres_url)
    for number in range(8):
        once = Once("default", "ada", f"key-{number}", "digest")
        sent = [send(store, f"job-{number}-{n}", once) for n, store in enumerate((here, there) * 3)]
        assert len({text for text, _ in await asyncio.gather(*sent)}) == 1
    assert len(await names(here)) == 8


async def test_a_key_is_forgotten_after_a_day(store: Store) -> None:
    first, _ = await send(store, "moth")
    store.clock.advance(KEPT / SECOND - 1)
    assert await store.write(idempotency.forget_keys, store.now()) == 0
    assert await send(store, "mole") == (first, None)
    store.clock.advance(2)
    assert await store.read(idempotency.first_answer, ONCE, store.now()) is None
    second, _ = await send(store, "mole")  # not swept yet, and free all the same
    assert second != first
    store.clock.advance(KEPT / SECOND)
    assert await store.write(idempotency.forget_keys, store.now()) == 1
    assert await names(store) == {"moth", "mole"}


async def test_a_job_may_be_held_from_its_first_moment(store: Store) -> None:
    lease = Lease("owner", "token", store.now() + LEASE, "host")
    _, step = await send(store, "moth", lease=lease)
    assert (step.lease_token, step.host) == ("token", "host")
    assert await store.read(steps.held, "token") == [step]
    assert (await send(store, "mole", lease=lease))[1] is None
    assert await store.read(steps.held, "token") == [step]


async def test_the_answer_outlives_the_job(store: Store) -> None:
    first, _ = await send(store, "moth")
    await store.write(jobs.request, "default", "moth", Trigger.CANCEL, store.now(), "ada")
    await store.write(jobs.delete_job, "default", "moth", store.now())
    assert await send(store, "mole") == (first, None)

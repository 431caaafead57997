"""Pages whose rows are too large to come along at once."""

from typing import Any

import pytest

from nemo_jobs.domain.filters import parse_filter
from nemo_jobs.domain.states import Trigger
from nemo_jobs.store import job_rows, jobs
from nemo_jobs.store.jobs import JobPage, JobQuery
from tests.store.kit import Store

KIB = 1024


async def walked(store: Store, query: JobQuery) -> tuple[list[str], list[int]]:
    """The names of a page, and how many rows came at a time."""
    page: JobPage = await store.read(jobs.list_jobs, query)
    names, sizes, rest = [job.name for job in page.jobs], [len(page.jobs)], page.rest
    while rest:
        found, rest = await store.read(jobs.rows_of, rest)
        names += [job.name for job in found]
        sizes.append(len(found))
    return names, sizes


@pytest.fixture
async def large(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """20 jobs of 10 KiB and a small one, where 45 KiB may come at once."""
    monkeypatch.setattr(job_rows, "BATCH", 45 * KIB)
    for number in range(20):
        text = '{"x":"' + "é" * (5 * KIB if number % 2 else 4 * KIB) + '"}'
        given: dict[str, Any] = {"spec": text} if number % 3 else {"custom_fields": text}
        await store.create(f"j-{number:02d}", **given)
    await store.create("small")
    return store


@pytest.mark.parametrize("text", [None, 'name~"j"', 'status:"created"'])
@pytest.mark.parametrize("sort", ["created_at", "-created_at", "-source"])
async def test_a_large_page_comes_bit_by_bit_and_is_the_same(
    large: Store, text: str | None, sort: str
) -> None:
    where = parse_filter([("filter", text)] if text else [])
    everything = [job.name for job in await rows(large, JobQuery("default", where, sort, 1, 100))]
    for page, size in ((1, 100), (1, 12), (2, 12), (2, 20)):
        names, sizes = await walked(large, JobQuery("default", where, sort, page, size))
        assert names == everything[(page - 1) * size : page * size]
        assert max(sizes) < 12
        assert len(sizes) > 1 or len(names) < 12


async def rows(store: Store, query: JobQuery) -> list[Any]:
    page = await store.read(jobs.list_jobs, query)
    found, rest = list(page.jobs), page.rest
    while rest:
        more, rest = await store.read(jobs.rows_of, rest)
        found += more
    return found


async def test_a_row_that_is_too_large_alone_comes_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_rows, "BATCH", 10)
    for number in range(4):
        await store.create(f"j-{number}", spec='{"x":"' + "y" * 100 + '"}')
    names, sizes = await walked(store, JobQuery("default", None, "created_at"))
    assert (names, sizes) == ([f"j-{number}" for number in range(4)], [1, 1, 1, 1])


async def test_a_small_page_comes_whole(store: Store) -> None:
    for number in range(30):
        await store.create(f"j-{number}")
    page = await store.read(jobs.list_jobs, JobQuery("default", page_size=30))
    assert (len(page.jobs), page.total, page.rest) == (30, 30, ())


async def test_a_job_that_is_deleted_meanwhile_is_left_out(large: Store) -> None:
    page = await large.read(jobs.list_jobs, JobQuery("default", None, "created_at", 1, 100))
    gone = [await large.job("j-10"), await large.job("j-11")]
    for job in gone:
        await large.request(job.name, Trigger.CANCEL)
        await large.write(jobs.delete_job, "default", job.name, large.now())
    names, rest = [job.name for job in page.jobs], page.rest
    while rest:
        found, rest = await large.read(jobs.rows_of, rest)
        names += [job.name for job in found]
    assert len(names) == 19 and not {"j-10", "j-11"} & set(names)
    assert await large.read(jobs.rows_of, (gone[0].id,)) == ([], ())

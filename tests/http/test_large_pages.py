"""Pages that memory should not hold at once are sent as they are read."""

import asyncio
import json
import tracemalloc

import pytest

from nemo_jobs.client import JobsClient
from nemo_jobs.store import job_rows
from tests.http.kit import JOBS, open_service, served

LARGE = 512 * 1024


async def fill(service, count, size):
    for number in range(count):
        await service.create(name=f"job-{number}", spec={"filler": "x" * size})
        service.clock.advance(0.001)


async def test_a_large_page_is_the_same_as_a_small_one(service, monkeypatch):
    await fill(service, 12, 2000)
    params = {"page_size": 10, "sort": "created_at", "filter": 'name~"job"'}
    whole = (await service.client.get(JOBS, params=params)).content
    monkeypatch.setattr(job_rows, "BATCH", 5000)
    for query in (params, {**params, "filter": '{"name":{"$like":"job"}}'}):
        answer = await service.client.get(JOBS, params=query)
        assert answer.headers["content-type"] == "application/json"
        assert "content-length" not in answer.headers
        assert answer.content == whole
    plain = (await service.client.get(JOBS, params={"page": 2, "page_size": 10})).json()
    assert [job["name"] for job in plain["data"]] == ["job-1", "job-0"]
    assert plain["pagination"]["current_page_size"] == 2


async def test_a_job_that_goes_meanwhile_is_not_counted(service, monkeypatch):
    await fill(service, 4, 2000)
    monkeypatch.setattr(job_rows, "BATCH", 3000)
    monkeypatch.setattr("nemo_jobs.http.jobs.store.rows_of", lambda tx, ids: ([], ()))
    page = (await service.client.get(JOBS)).json()
    assert len(page["data"]) == page["pagination"]["current_page_size"] < 4
    assert page["pagination"]["total_results"] == 4


@pytest.mark.time_limit(120)
async def test_memory_does_not_grow_with_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(job_rows, "BATCH", 2 * LARGE)
    async with open_service(tmp_path) as service, served(service.app) as port:
        await fill(service, 60, LARGE)
        target = f"{JOBS}?page_size=1000"
        tracemalloc.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        size = 0
        async with asyncio.timeout(60):
            while piece := await reader.read(65536):
                size += len(piece)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        writer.close()
        assert size > 60 * LARGE
        assert most < 20 * LARGE
        with_client = await asyncio.to_thread(listed, f"http://127.0.0.1:{port}")
        assert len(with_client["data"]) == 10
        assert len(json.dumps(with_client)) > 10 * LARGE


def listed(url):
    with JobsClient(url) as client:
        return client.list_jobs()


async def test_a_reader_who_leaves_ends_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(job_rows, "BATCH", LARGE)
    async with open_service(tmp_path) as service, served(service.app) as port:
        await fill(service, 20, LARGE)
        reads = []
        rows_of = job_rows.rows_of

        def counted(tx, ids):
            reads.append(len(ids))
            return rows_of(tx, ids)

        monkeypatch.setattr("nemo_jobs.http.jobs.store.rows_of", counted)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {JOBS}?page_size=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await reader.read(1000)
        writer.transport.abort()
        async with asyncio.timeout(10):
            await settled(reads)
        assert 0 < len(reads) < 18


async def settled(reads):
    """There have been some, and then none for a while."""
    before = 0
    while not before or before != len(reads):
        before = len(reads)
        await asyncio.sleep(0.2)

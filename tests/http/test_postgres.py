"""The same answers over PostgreSQL, and what is said while it is away."""

import asyncio
import time

import pytest

from tests.bed.postgres import Missing, PostgresServer
from tests.http.kit import JOBS, body, open_service, served, steps_named
from tests.http.test_stream import follow, lines
from tests.http.test_telemetry import metrics


@pytest.fixture(scope="module")
def server():
    try:
        server = PostgresServer.start()
    except Missing as error:
        pytest.skip(str(error))
    yield server
    server.destroy()


@pytest.fixture
async def service(server, tmp_path):
    async with open_service(tmp_path, url=server.new_database()) as running:
        yield running


async def test_every_read_and_write_answers_as_on_sqlite(service):
    get = service.client.get
    job = await service.create(platform_spec=steps_named("one", "two"), spec={"kind": "csv"})
    step = await service.start(lines=[("stdout", "hello"), ("stderr", "a\0b ☃")])
    await service.client.put(
        f"{JOBS}/moth/steps/one/tasks/task-extra", json={"status": "active", "status_details": {"epoch": 1}}
    )
    await service.finish(step)
    assert (await get(f"{JOBS}/{job['id']}")).json()["status"] == "active"
    assert (await get(f"{JOBS}/moth")).json()["status_details"] == {"epoch": 1}
    for text in (
        '{"spec.kind":"csv"}',
        'name~"ot" AND status:"active"',
        '{"created_at":{"gte":"2027-01-01"}}',
    ):
        assert (await get(JOBS, params={"filter": text})).json()["pagination"]["total_results"] == 1
    assert [line["message"] for line in (await get(f"{JOBS}/moth/logs")).json()["data"]] == [
        "hello",
        "[stderr] a\ufffdb ☃",
    ]
    tree = (await get(f"{JOBS}/moth/status")).json()
    assert [one["status"] for one in tree["steps"]] == ["completed", "created"]
    listed = (
        await get("/apis/jobs/v2/workspaces/-/jobs/-/steps", params={"filter[status]": "created"})
    ).json()
    assert [one["name"] for one in listed["data"]] == ["two"]
    counted = await metrics(service)
    assert counted['nemo_jobs_step_transitions_total{reason="finished",state="completed"}'] == 1
    assert (await service.client.post(f"{JOBS}/moth/cancel")).json()["status"] == "cancelled"
    assert (await service.client.delete(f"{JOBS}/moth")).status_code == 204


async def test_a_log_is_followed_that_another_service_writes(server, tmp_path):
    url = server.new_database()
    (tmp_path / "b").mkdir()
    async with (
        open_service(tmp_path, url=url) as reading,
        open_service(tmp_path / "b", url=url) as writing,
        served(reading.app) as port,
    ):
        await writing.create()
        async with follow(port) as reader:
            assert (await reader.event())[2]["status"] == "created"
            step = await writing.start(lines=[("stdout", "one")])
            await writing.finish(step)
            assert lines(await reader.events()) == [(0, "one")]


async def test_a_database_that_is_away_is_503_within_5_s_and_comes_back(server, tmp_path):
    async with open_service(tmp_path, url=server.new_database()) as service:
        await service.create(name="before")
        server.stop()
        try:
            for ask in (
                lambda: service.client.get(f"{JOBS}/before"),
                lambda: service.client.get(JOBS),
                lambda: service.client.post(JOBS, json=body(name="during")),
                lambda: service.client.get(f"{JOBS}/before/logs"),
            ):
                began = time.monotonic()
                answer = await ask()
                assert answer.status_code == 503
                assert "retry-after" in answer.headers
                assert time.monotonic() - began < 5
            assert (await service.client.get("/health/ready")).status_code == 503
            assert (await service.client.get("/health/live")).status_code == 200
            assert (await service.client.get("/status")).json()["status"] == "unhealthy"
        finally:
            server.resume()
        async with asyncio.timeout(10):
            while (await service.client.get("/health/ready")).status_code != 200:
                await service.client.get(f"{JOBS}/before")
                await asyncio.sleep(0.05)
        assert (await service.client.get(f"{JOBS}/before")).status_code == 200
        assert (await service.client.get(f"{JOBS}/during")).status_code == 404

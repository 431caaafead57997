"""Two services on one PostgreSQL database: what one of them decides holds for the other."""

import asyncio
import contextlib

import pytest

from tests.bed.postgres import Missing, PostgresServer
from tests.http.kit import JOBS, body, open_service

PROJECTS = "/apis/entities/v2/workspaces/default/projects"
ALL = {"name": {"$like": ""}}


@pytest.fixture(scope="module")
def server():
    try:
        server = PostgresServer.start()
    except Missing as error:
        pytest.skip(str(error))
    yield server
    server.destroy()


@pytest.fixture
async def both(server, tmp_path):
    url = server.new_database()
    async with contextlib.AsyncExitStack() as stack:
        opened = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            opened.append(await stack.enter_async_context(open_service(tmp_path / name, url=url)))
        yield opened


async def test_c088_a_repeat_that_goes_to_the_other_service_makes_no_second_job(both):
    for number in range(5):
        sent, headers = body(name=None), {"idempotency-key": f"key-{number}"}
        answers = await asyncio.gather(
            *(service.client.post(JOBS, json=sent, headers=headers) for service in both * 4)
        )
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.content for answer in answers}) == 1
        other = await both[number % 2].client.post(JOBS, json=body(name="other"), headers=headers)
        assert other.status_code == 409
    listed = (await both[0].client.get(JOBS)).json()
    assert listed["pagination"]["total_results"] == 5


async def test_jobs_projects_labels_and_many_at_once_answer_as_on_sqlite(both):
    here, there = (service.client for service in both)
    assert (await here.post(PROJECTS, json={"name": "apollo"})).status_code == 201
    dry = await there.post(f"{JOBS}?dry_run=true", json=body(project="apollo"))
    assert (dry.status_code, dry.json()["steps"][0]["problem"]) == (200, None)
    for name in ("moth", "mole"):
        labels = {"labels": {"team": name}}
        made = await here.post(JOBS, json=body(name=name, project="apollo", custom_fields=labels))
        assert made.status_code == 201, made.text
        both[0].clock.advance(0.001)
    found = await there.get(JOBS, params={"filter": 'labels.team:"mole" AND project:"apollo"'})
    assert [job["name"] for job in found.json()["data"]] == ["mole"]
    kept = await there.delete(f"{PROJECTS}/apollo")
    assert (kept.status_code, "still has 2 jobs" in kept.json()["detail"]) == (409, True)
    sent = {"filter": ALL, "expected_count": 2}
    answers = await asyncio.gather(
        *(client.post(f"{JOBS}:cancel", json=sent) for client in (here, there) * 2)
    )
    told = [job for answer in answers for job in answer.json()["data"]]
    assert sorted(job["name"] for job in told if job["outcome"] == "done") == ["mole", "moth"]
    gone = await asyncio.gather(*(client.post(f"{JOBS}:delete", json=sent) for client in (here, there)))
    outcomes = [job["outcome"] for answer in gone for job in answer.json().get("data", ())]
    assert outcomes.count("done") == 2
    assert set(outcomes) <= {"done", "gone"}
    assert (await there.delete(f"{PROJECTS}/apollo")).status_code == 200

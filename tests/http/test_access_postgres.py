"""Tokens on PostgreSQL, with two services on one database."""

import asyncio

import pytest

from nemo_jobs.http import access
from nemo_jobs.store import tokens
from tests.bed.postgres import Missing, PostgresServer
from tests.http.kit import body, open_service
from tests.http.tokens_kit import AUTH, bearer, make_task_token, make_token, open_guarded

LAB = "/apis/jobs/v2/workspaces/lab/jobs"
ANYWHERE = "/apis/jobs/v2/workspaces/-/jobs"
TOKENS = "/apis/auth/v2/tokens"


@pytest.fixture(scope="module")
def server():
    try:
        server = PostgresServer.start()
    except Missing as error:
        pytest.skip(str(error))
    yield server
    server.destroy()


@pytest.fixture
async def replicas(server, tmp_path):
    url = server.new_database()
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    async with (
        open_guarded(one, url=url) as first,
        open_service(two, config=AUTH, url=url) as second,
    ):
        yield first, second


async def status(service, token, path=LAB):
    return (await service.client.get(path, headers=bearer(token))).status_code


async def test_a_revocation_by_one_service_counts_at_the_other(replicas):
    first, second = replicas
    root = await make_token(first, {"*": ["admin"]}, principal="root")
    token = await make_token(first, {"lab": ["read"]}, principal="bob")
    assert (await status(first, token), await status(second, token)) == (200, 200)
    found = await first.db.read(tokens.find, tokens.hash_of(token))
    gone = await first.client.delete(f"{TOKENS}/{found.record.id}", headers=bearer(root))
    assert gone.status_code == 200
    assert await status(first, token) == 401
    async with asyncio.timeout(10):  # the clock stands still: only the message can tell
        while await status(second, token) != 401:
            await asyncio.sleep(0.01)
    assert access.BELIEVED <= 5


async def test_lists_tokens_and_tasks_work_as_on_sqlite(replicas):
    first, second = replicas
    root = await make_token(first, {"*": ["admin"]}, principal="root")
    made = await first.client.post(
        TOKENS, json={"principal": "ann", "grants": {"lab": ["write"]}}, headers=bearer(root)
    )
    ann = made.json()["token"]
    job = (await second.client.post(LAB, json=body(), headers=bearer(ann))).json()
    other = ANYWHERE.replace("-", "other")
    await first.client.post(other, json=body(name="bee"), headers=bearer(root))
    listed = (await second.client.get(ANYWHERE, headers=bearer(ann))).json()
    assert [item["name"] for item in listed["data"]] == ["moth"]
    assert listed["pagination"]["total_results"] == 1
    steps = (await first.client.get(f"{ANYWHERE}/-/steps", headers=bearer(ann))).json()
    assert [item["job"] for item in steps["data"]] == ["moth"]
    assert "auth_context" not in steps["data"][0]
    task = await make_task_token(first, job)
    assert await status(second, task, f"{LAB}/moth") == 200
    assert await status(second, task, f"{other}/bee") == 403
    await first.client.post(f"{LAB}/moth/cancel", headers=bearer(ann))
    assert await status(second, task, f"{LAB}/moth") == 401
    shown = (await second.client.get(TOKENS, headers=bearer(root))).json()["data"]
    assert {item["principal"] for item in shown} == {"root", "ann"}

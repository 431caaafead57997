"""GPUs over HTTP: who sees what, reservations, and what is refused before it is stored."""

import pytest

from nemo_jobs.domain.gpus import Look, Reserved, Stock, stock_of
from nemo_jobs.store import gpu_stock, gpus, steps
from nemo_jobs.store.gpu_stock import Server
from tests.http.kit import JOBS, body, open_service
from tests.http.tokens_kit import bearer, make_token, open_guarded

GPUS = "/apis/jobs/v2/gpus"
RESERVATIONS = f"{GPUS}/reservations"


def asking(number, name="moth"):
    executor = {"provider": "subprocess", "command": ["true"], "resources": {"num_gpus": number}}
    return body(name=name, platform_spec={"steps": [{"name": "work", "executor": executor}]})


def counted(number) -> Stock:
    return stock_of(Look(problem="no driver"), Reserved(everything=True), number)


async def restock(service, number, pool="here"):
    said = Server("o1", "token", pool, f"host-{pool}", ("subprocess/default",), "all", 1 << 60)
    args = (pool, said, counted(number), Reserved(everything=True), service.clock.now())
    await service.db.write(gpu_stock.attend, *args)


async def claim(service):
    now = service.clock.now()
    by = gpus.Claim("o1", "token", "here", now + 60_000_000, {("subprocess", "default"): 9})
    return (await service.db.write(gpus.claim, "here", by, now)).steps


@pytest.fixture
async def service(tmp_path):
    async with open_service(tmp_path) as made:
        await restock(made, 4)
        yield made


async def test_a_job_for_more_than_there_are_is_refused_before_it_is_stored(service):
    answer = await service.client.post(JOBS, json=asking(5))
    assert answer.status_code == 422
    assert answer.json()["detail"] == "step 'work' asks for 5 GPUs, but the pool of host-here has 4"
    assert (await service.client.get(f"{JOBS}/moth")).status_code == 404
    assert (await service.client.post(f"{JOBS}?dry_run=true", json=asking(5))).status_code == 422
    await restock(service, 8, pool="there")
    assert (await service.client.post(JOBS, json=asking(5))).status_code == 201


async def test_before_anybody_has_looked_everything_is_taken(tmp_path):
    async with open_service(tmp_path) as service:
        assert (await service.client.get(GPUS)).json() == {
            "data": [],
            "pools": [],
            "reservations": [],
            "waiting": [],
        }
        assert (await service.client.post(JOBS, json=asking(99))).status_code == 201
        answer = await service.client.post(RESERVATIONS, json={"name": "aa", "count": 1})
        assert answer.status_code == 409 and "has looked for GPUs yet" in answer.json()["detail"]


@pytest.mark.parametrize("number", [-1, 1.5, "2", 1025, 10**30, True, [1]])
async def test_numbers_that_are_none_are_refused(service, number):
    answer = await service.client.post(JOBS, json=asking(number))
    # As everywhere, a text or a truth value that is a whole number counts as one.
    assert answer.status_code == (201 if number in ("2", True) else 422), answer.text


async def test_the_stored_spec_says_the_number_only_where_one_was_given(service):
    await service.client.post(JOBS, json=asking(2))
    await service.client.post(JOBS, json=body(name="plain"))
    found = [(await service.job(name))["platform_spec"]["steps"][0]["executor"] for name in ("moth", "plain")]
    assert found[0]["resources"] == {"num_gpus": 2}
    assert "resources" not in found[1]


async def test_everything_about_the_pool_is_shown(service):
    await service.client.post(JOBS, json=asking(3))
    await claim(service)
    service.clock.advance(1)
    await service.client.post(JOBS, json=asking(2, "late"))
    reserved = await service.client.post(RESERVATIONS, json={"name": "llama", "count": 1, "wait": True})
    assert reserved.status_code == 201 and reserved.json()["state"] == "waiting"
    found = (await service.client.get(GPUS)).json()
    who = {"kind": "step", "workspace": "default", "job": "moth", "step": "work"}
    assert [one["holder"] for one in found["data"]] == [who, who, who, None]
    assert {one["health"] for one in found["data"]} == {"ok"}
    (pool,) = found["pools"]
    assert (pool["total"], pool["free"], pool["unusable"], pool["waiting"]) == (4, 1, 0, 2)
    assert pool["serving"] and pool["source"] == "count"
    assert [(one["holder"].get("job"), one["ahead"]) for one in found["waiting"]] == [("late", 0), (None, 1)]
    assert found["waiting"][1]["holder"] == {"kind": "reservation", "name": "llama"}


async def test_a_reservation_is_made_shown_and_released(service):
    made = (await service.client.post(RESERVATIONS, json={"name": "llama", "count": 2})).json()
    assert made["devices"] == ["0", "1"] and made["state"] == "held" and made["created_by"] == "anonymous"
    assert (await service.client.get(f"{RESERVATIONS}/llama")).json() == made
    again = await service.client.post(RESERVATIONS, json={"name": "llama", "count": 1})
    assert again.status_code == 409
    many = await service.client.post(RESERVATIONS, json={"name": "many", "count": 3})
    assert many.status_code == 409 and "2 of 4 free" in many.json()["detail"]
    assert (await service.client.get(f"{RESERVATIONS}/many")).status_code == 404
    assert (await service.client.delete(f"{RESERVATIONS}/llama")).status_code == 204
    assert (await service.client.delete(f"{RESERVATIONS}/llama")).status_code == 404


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"name": "a b", "count": 1}, 422),
        ({"name": "", "count": 1}, 422),
        ({"name": "aa", "count": 0}, 422),
        ({"name": "aa", "count": -1}, 422),
        ({"name": "aa", "count": 5}, 422),
        ({"name": "aa", "count": 10**30}, 422),
        ({"name": "aa"}, 422),
        ({"count": 1}, 422),
        ({"name": "aa", "count": 1, "pool": "nowhere"}, 404),
        ({"name": "aa", "count": 1, "pool": "x" * 300}, 422),
        ([], 422),
    ],
)
async def test_reservations_that_make_no_sense_are_refused(service, given, status):
    answer = await service.client.post(RESERVATIONS, json=given)
    assert answer.status_code == status, answer.text
    assert not (await service.client.get(GPUS)).json()["reservations"]


async def test_of_several_pools_one_has_to_be_named(service):
    await restock(service, 2, pool="there")
    unnamed = await service.client.post(RESERVATIONS, json={"name": "aa", "count": 1})
    assert unnamed.status_code == 422
    assert "here (host-here), there (host-there)" in unnamed.json()["detail"]
    named = await service.client.post(RESERVATIONS, json={"name": "aa", "count": 1, "pool": "host-there"})
    assert named.json()["pool"] == "there"


async def test_looking_takes_read_and_reserving_admin_and_others_steps_are_not_named(tmp_path):
    async with open_guarded(tmp_path) as service:
        await restock(service, 4)
        lab = await make_token(service, {"lab": ["write"]})
        other = await make_token(service, {"other": ["admin"]})
        root = await make_token(service, {"*": ["admin"]})
        path = "/apis/jobs/v2/workspaces/lab/jobs"
        made = await service.client.post(path, json=asking(1, "hidden"), headers=bearer(lab))
        assert made.status_code == 201
        await claim(service)
        assert (await service.client.get(GPUS)).status_code == 401
        for token, named in ((lab, True), (other, False), (root, True)):
            text = (await service.client.get(GPUS, headers=bearer(token))).text
            assert ("hidden" in text) is named
        want = {"name": "llama", "count": 1}
        for token, status in ((lab, 403), (other, 403), (root, 201)):
            answer = await service.client.post(RESERVATIONS, json=want, headers=bearer(token))
            assert answer.status_code == status
        answer = await service.client.delete(f"{RESERVATIONS}/llama", headers=bearer(other))
        assert answer.status_code == 403
        assert (await service.client.get(f"{RESERVATIONS}/llama", headers=bearer(lab))).status_code == 200


async def test_a_step_with_gpus_is_never_held_from_its_creation(service):
    asked = []
    service.engine.arrive = lambda *key: asked.append(key)
    await service.client.post(JOBS, json=asking(1))
    await service.client.post(JOBS, json=body(name="plain"))
    assert asked == [("subprocess", "default")]
    now = service.clock.now()
    lease = {"owner": "o", "token": "t", "host": "here", "now": now, "until": now + 1, "limit": 9}
    found = await service.db.write(steps.claim_waiting, "subprocess", "default", **lease)
    assert [step.job for step in found] == ["plain"]

"""Cancel, delete and rerun for all jobs that match a filter."""

import asyncio
import json

import pytest

from nemo_jobs.domain.model import Unavailable
from nemo_jobs.http import bulk
from nemo_jobs.store import jobs
from nemo_jobs.store.db import off_loop
from tests.http.kit import JOBS

ALL = {"name": {"$like": ""}}


async def ask(service, verb, **sent):
    return await service.client.post(f"{JOBS}:{verb}", json=sent)


async def ended(service, name, **over):
    await service.create(name=name, **over)
    await service.finish(await service.start())
    service.clock.advance(0.001)


async def test_cancel_by_filter_says_what_happened_to_each_job(service):
    await ended(service, "done")
    await service.create(name="runs", custom_fields={"labels": {"team": "x"}})
    await service.start()
    service.clock.advance(0.001)
    await service.create(name="waits")
    before = (await service.client.get(JOBS)).json()["data"]
    dry = (await ask(service, "cancel", filter=ALL, dry_run=True)).json()
    assert (dry["action"], dry["dry_run"], dry["count"], dry["next"]) == ("cancel", True, 3, None)
    assert [(job["name"], job["status"], job["outcome"]) for job in dry["data"]] == [
        ("done", "completed", "unchanged"),
        ("runs", "active", "done"),
        ("waits", "created", "done"),
    ]
    assert (await service.client.get(JOBS)).json()["data"] == before
    answer = await ask(service, "cancel", filter=ALL, expected_count=3)
    assert answer.status_code == 200
    told = answer.json()
    assert [(job["name"], job["status"], job["outcome"]) for job in told["data"]] == [
        ("done", "completed", "unchanged"),
        ("runs", "cancelling", "done"),
        ("waits", "cancelled", "done"),
    ]
    assert {name: told[name] for name in bulk.OUTCOMES} == {
        "done": 2,
        "unchanged": 1,
        "refused": 0,
        "gone": 0,
        "failed": 0,
    }
    again = (await ask(service, "cancel", filter='name~""', expected_count=3)).json()
    assert again["unchanged"] == 3


async def test_delete_by_filter_refuses_what_has_not_ended_and_deletes_the_rest(service):
    for name in ("a1", "b2"):
        await ended(service, name)
    await service.create(name="waits")
    told = (await ask(service, "delete", filter=ALL, expected_count=3)).json()
    assert [(job["name"], job["outcome"]) for job in told["data"]] == [
        ("a1", "done"),
        ("b2", "done"),
        ("waits", "refused"),
    ]
    assert "cancel the job first" in told["data"][2]["detail"]
    left = (await service.client.get(JOBS)).json()["data"]
    assert [job["name"] for job in left] == ["waits"]


async def test_rerun_by_filter(service):
    await ended(service, "a1")
    await service.create(name="waits")
    dry = (await ask(service, "rerun", filter=ALL, dry_run=True)).json()
    assert [job["outcome"] for job in dry["data"]] == ["done", "refused"]
    told = (await ask(service, "rerun", filter='status:"completed"', expected_count=1)).json()
    assert [(job["name"], job["status"], job["outcome"]) for job in told["data"]] == [
        ("a1", "created", "done")
    ]
    assert (await service.job("a1"))["status"] == "created"


async def test_a_repeated_rerun_runs_nothing_twice(service):
    await ended(service, "a1")
    sent = {"filter": ALL, "expected_count": 1}

    async def post(key):
        return (
            await service.client.post(f"{JOBS}:rerun", json=sent, headers={"idempotency-key": key})
        ).json()

    first = await post("k")
    attempt = (await service.job("a1"))["attempt_id"]
    await service.finish(await service.start())
    assert await post("k") == first
    assert (await service.job("a1"))["attempt_id"] == attempt
    assert (await post("k2"))["done"] == 1
    assert (await service.job("a1"))["attempt_id"] != attempt


async def test_another_number_than_expected_is_409_with_both_and_does_nothing(service):
    for name in ("a1", "b2"):
        await service.create(name=name)
    answer = await ask(service, "cancel", filter=ALL, expected_count=3)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert answer.json()["detail"].startswith("2 jobs match the filter, not 3 as expected")
    assert {job["status"] for job in (await service.client.get(JOBS)).json()["data"]} == {"created"}
    answer = await ask(service, "cancel", filter='name:"a1"', expected_count=3)
    assert answer.json()["detail"].startswith("1 job matches the filter, not 3 as expected")
    assert (await ask(service, "cancel", filter='name:"none"', expected_count=0)).json()["count"] == 0


@pytest.mark.parametrize(
    ("sent", "status", "says"),
    [
        ({"filter": ALL}, 422, "either dry_run: true"),
        ({"filter": ALL, "dry_run": False}, 422, "either dry_run: true"),
        ({"filter": ALL, "dry_run": True, "expected_count": 1}, 422, "either dry_run: true"),
        ({"filter": ALL, "expected_count": -1}, 422, "greater than or equal to 0"),
        ({"filter": ALL, "expected_count": "many"}, 422, "integer"),
        ({"dry_run": True}, 422, "Field required"),
        ({"filter": None, "dry_run": True}, 422, "valid"),
        ({"filter": [], "dry_run": True}, 422, "valid"),
        ({"filter": {}, "dry_run": True}, 400, "the filter is empty"),
        ({"filter": "", "dry_run": True}, 400, "the filter is empty"),
        ({"filter": {"nonsense": 1}, "dry_run": True}, 400, "'nonsense' is not a field"),
        ({"filter": "name:", "dry_run": True}, 400, "at position"),
        ({"filter": ALL, "dry_run": True, "cursor": "x"}, 422, "cursor is not one"),
        ({"filter": ALL, "dry_run": True, "cursor": "1" * 19 + ".a"}, 422, "cursor is not one"),
        ({"filter": "x" * 70_000, "dry_run": True}, 400, "too long"),
        ([], 422, "should be an object"),
    ],
)
async def test_a_request_that_is_wrong_says_what(service, sent, status, says):
    await service.create()
    for verb in ("cancel", "delete", "rerun"):
        answer = await service.client.post(f"{JOBS}:{verb}", json=sent)
        assert answer.status_code == status, answer.text
        assert says in json.dumps(answer.json()["detail"])
    assert (await service.job())["status"] == "created"


async def test_a_workspace_that_is_not_there_or_all_of_them_is_404(service):
    for workspace in ("nowhere", "-"):
        path = JOBS.replace("/default/", f"/{workspace}/")
        answer = await service.client.post(f"{path}:cancel", json={"filter": ALL, "dry_run": True})
        assert answer.status_code == 404
        assert repr(workspace) in answer.json()["detail"]
    other = JOBS.replace("/default/", "/system/")
    await service.create()
    answer = await service.client.post(f"{other}:cancel", json={"filter": ALL, "expected_count": 0})
    assert answer.json()["count"] == 0
    assert (await service.job())["status"] == "created"


async def test_a_verb_that_is_none_is_404_and_jobs_named_like_one_are_safe(service):
    assert (await ask(service, "explode", filter=ALL, dry_run=True)).status_code == 404
    assert (await service.client.get(f"{JOBS}:cancel")).status_code == 405


async def test_more_than_a_call_takes_goes_on_at_next(service, monkeypatch):
    monkeypatch.setattr(bulk, "MOST", 4)
    for number in range(10):
        await service.create(name=f"job-{number}")
        service.clock.advance(0.001)
    cursor, seen, left = None, [], []
    while True:
        more: dict = {} if cursor is None else {"cursor": cursor}
        count = (await ask(service, "cancel", filter=ALL, dry_run=True, **more)).json()["count"]
        told = (await ask(service, "cancel", filter=ALL, expected_count=count, **more)).json()
        seen += [job["name"] for job in told["data"]]
        left.append(count)
        cursor = told["next"]
        if cursor is None:
            break
    assert seen == [f"job-{number}" for number in range(10)]
    assert left == [10, 6, 2]
    assert {job["status"] for job in (await service.client.get(JOBS)).json()["data"]} == {"cancelled"}


async def test_a_call_that_takes_too_long_stops_and_says_where(service, monkeypatch):
    monkeypatch.setattr(bulk, "AT_ONCE", 3)
    for number in range(8):
        await service.create(name=f"job-{number}")
        service.clock.advance(0.001)
    request = jobs.request

    def slow(*given):
        service.clock.advance(11)
        return request(*given)

    monkeypatch.setattr(jobs, "request", slow)
    told = (await ask(service, "cancel", filter=ALL, expected_count=8)).json()
    assert [job["name"] for job in told["data"]] == ["job-0", "job-1", "job-2"]
    monkeypatch.setattr(jobs, "request", request)
    rest = (await ask(service, "cancel", filter=ALL, expected_count=5, cursor=told["next"])).json()
    assert [job["name"] for job in rest["data"]] == [f"job-{number}" for number in range(3, 8)]
    assert rest["next"] is None


async def test_one_that_fails_undoes_no_other(service, monkeypatch, caplog):
    for number in range(5):
        await service.create(name=f"job-{number}")
        service.clock.advance(0.001)
    request = jobs.request
    ids = {(await service.job(f"job-{number}"))["id"]: number for number in range(5)}

    def faulty(tx, workspace, name, *given):
        after = request(tx, workspace, name, *given)
        if ids[name] == 1:
            raise Unavailable("the database went away")
        if ids[name] == 3:
            raise RuntimeError("a bug")
        return after

    monkeypatch.setattr(jobs, "request", faulty)
    told = (await ask(service, "cancel", filter=ALL, expected_count=5)).json()
    assert [job["outcome"] for job in told["data"]] == ["done", "failed", "done", "failed", "done"]
    assert told["data"][1]["detail"] == "the database went away"
    assert "a bug" not in json.dumps(told)
    assert "a bug" in caplog.text
    states = [(await service.job(f"job-{number}"))["status"] for number in range(5)]
    assert states == ["cancelled", "created", "cancelled", "created", "cancelled"]


async def test_a_job_that_is_deleted_meanwhile_is_gone(service, monkeypatch):
    await ended(service, "a1")
    await ended(service, "b2")
    delete = jobs.delete_job

    def twice(tx, workspace, name, now):
        delete(tx, workspace, name, now)
        delete(tx, workspace, name, now)

    off_loop(twice)
    monkeypatch.setattr(jobs, "delete_job", twice)
    told = (await ask(service, "delete", filter=ALL, expected_count=2)).json()
    assert [job["outcome"] for job in told["data"]] == ["gone", "gone"]


async def test_two_calls_at_once_do_each_job_once(service):
    for number in range(20):
        await service.create(name=f"job-{number}")
    answers = await asyncio.gather(*(ask(service, "cancel", filter=ALL, expected_count=20) for _ in range(3)))
    done = [job["id"] for answer in answers for job in answer.json()["data"] if job["outcome"] == "done"]
    assert len(done) == len(set(done)) == 20
    assert all(answer.json()["count"] == 20 for answer in answers)

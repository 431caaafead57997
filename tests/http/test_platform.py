"""The service's own routes, and the workspaces."""

import pytest

from nemo_jobs.domain.model import Unavailable
from tests.http.kit import JOBS, body, open_service

WORKSPACES = "/apis/entities/v2/workspaces"


async def get(service, path, **params):
    answer = await service.client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_health_is_told(service):
    assert await get(service, "/health/live") == {"status": "live"}
    assert await get(service, "/health/ready") == {"status": "ready"}


async def test_versions_and_login(service):
    assert await get(service, "/cluster-info") == {"platform_version": "1.2.3", "revision": "abc"}
    assert await get(service, "/apis/auth/discovery") == {"auth_enabled": False, "oidc": None}


async def test_status_names_services_and_loops(service):
    status = await get(service, "/status")
    assert status["status"] == "healthy"
    assert "jobs" in status["services"]["ready"]
    assert status["services"]["not_ready"] == []
    assert status["controllers"] == {"healthy": True, "status": {"jobs": True}}


async def test_status_tells_what_does_not_work(service):
    service.engine.troubles = ["subprocess: working directory is full"]
    status = await get(service, "/status")
    assert (status["status"], status["problems"]) == ("degraded", ["subprocess: working directory is full"])
    service.engine.loops = {"jobs": False}
    assert (await get(service, "/status"))["controllers"]["healthy"] is False


async def test_profiles_that_are_left_out_are_told_with_the_reason(tmp_path):
    config = """
platform: {runtime: none}
jobs:
  executors:
    - {provider: cpu, profile: box, backend: docker, config: {}}
    - {provider: subprocess, profile: small, backend: subprocess, config: {max_concurrent: 2}}
"""
    async with open_service(tmp_path, config=config) as service:
        (left,) = (await get(service, "/status"))["profiles_left_out"]
        assert (left["provider"], left["profile"]) == ("cpu", "box")
        assert left["reason"]
        listed = await get(service, "/apis/jobs/v2/execution-profiles")
        assert {(item["provider"], item["profile"], item["backend"]) for item in listed} == {
            ("subprocess", "default", "subprocess"),
            ("subprocess", "small", "subprocess"),
        }
        assert set(listed[0]) == {"provider", "profile", "backend", "config", "health"}
        assert listed[0]["health"] == {"ok": True, "message": ""}
        assert listed[0]["config"]["working_directory"] == "/tmp/nhx-subprocess-jobs"
        assert listed[0]["config"]["default_task_image"] is None


async def test_a_sweep_tells_what_it_found_and_needs_an_engine(service):
    one = {"backend": "docker", "kind": "volume", "name": "v", "run": None, "made_at": 1_800_000_000_000_000}
    service.engine.ownerless = [{**one, "state": "found", "message": ""}]
    answer = await service.client.post("/apis/jobs/v2/sweep", json={"dry_run": True})
    assert answer.status_code == 200
    found = answer.json()
    assert found["dry_run"] is True and found["data"][0]["made_at"].startswith("2027-01-15T08:00:00")
    for wrong in ({"dry_run": 3}, ["x"], {"dry_run": None}):
        assert (await service.client.post("/apis/jobs/v2/sweep", json=wrong)).status_code == 422


async def test_c051_a_profile_that_can_take_no_work_says_why_in_the_list_and_in_metrics(service):
    service.engine.away = {("subprocess", "default"): "nobody answers"}
    (listed,) = await get(service, "/apis/jobs/v2/execution-profiles")
    assert listed["health"] == {"ok": False, "message": "nobody answers"}
    name = 'nemo_jobs_profile_up{profile="default",provider="subprocess"}'
    assert f"{name} 0.0" in (await service.client.get("/metrics")).text
    service.engine.away = {}
    assert f"{name} 1.0" in (await service.client.get("/metrics")).text


async def test_the_document_is_served(service):
    document = await get(service, "/openapi.json")
    assert document["openapi"].startswith("3.1")
    assert JOBS.replace("default", "{workspace}") in document["paths"]


async def test_the_workspaces_of_a_first_start(service):
    page = await get(service, WORKSPACES)
    assert [one["name"] for one in page["data"]] == ["default", "system"]
    assert page["pagination"]["page_size"] == 100
    assert set(page["data"][0]) == {
        *("id", "name", "description", "created_at", "created_by", "updated_at", "updated_by"),
    }


async def test_a_workspace_lives_from_create_to_delete(service):
    answer = await service.client.post(WORKSPACES, json={"name": "lab", "description": "ours"})
    assert answer.status_code == 201
    made = answer.json()
    assert (made["name"], made["description"]) == ("lab", "ours")
    assert (await service.client.post(WORKSPACES, json={"name": "lab"})).status_code == 409
    changed = (await service.client.put(f"{WORKSPACES}/lab", json={"description": "theirs"})).json()
    assert (changed["id"], changed["description"]) == (made["id"], "theirs")
    assert await get(service, f"{WORKSPACES}/lab") == changed
    jobs = JOBS.replace("default", "lab")
    assert (await service.client.post(jobs, json=body())).status_code == 201
    assert (await service.client.delete(f"{WORKSPACES}/lab")).status_code == 409
    await service.client.post(f"{jobs}/moth/cancel")
    await service.client.delete(f"{jobs}/moth")
    gone = await service.client.delete(f"{WORKSPACES}/lab")
    assert (gone.status_code, gone.json()["id"]) == (200, made["id"])
    missing = await service.client.get(f"{WORKSPACES}/lab")
    assert missing.status_code == 404
    assert "lab" in missing.json()["detail"]


@pytest.mark.parametrize("name", ["a", "Lab", "a b", "a--b", ""])
async def test_a_workspace_needs_a_valid_name(service, name):
    assert (await service.client.post(WORKSPACES, json={"name": name})).status_code == 422


@pytest.mark.parametrize("sort", ["name", "-name", "created_at", "-updated_at"])
async def test_workspaces_are_sorted(service, sort):
    assert len((await get(service, WORKSPACES, sort=sort))["data"]) == 2


@pytest.mark.parametrize("path", ["/", "/apis", "/nothing", "/apis/jobs/v2", "//status", "/status/"])
async def test_unknown_routes_are_404_with_a_sentence(service, path):
    answer = await service.client.get(path)
    assert answer.status_code == 404
    assert isinstance(answer.json()["detail"], str)


async def test_a_wrong_method_is_405_with_a_sentence(service):
    answer = await service.client.put(JOBS)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"
    assert isinstance(answer.json()["detail"], str)


async def test_an_unexpected_error_tells_nothing_of_the_inside(service, monkeypatch, caplog):
    async def burst(*_args, **_kw):
        raise RuntimeError("secret inside")

    monkeypatch.setattr(service.db, "read", burst)
    answer = await service.client.get(f"{JOBS}/moth")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "secret inside" in caplog.text


async def test_a_database_that_is_away_is_503_with_when_to_try_again(service, monkeypatch):
    async def away(*_args, **_kw):
        raise Unavailable("the database does not answer", 2.5)

    monkeypatch.setattr(service.db, "write", away)
    answer = await service.client.post(JOBS, json=body())
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "3"
    assert answer.json()["detail"] == "the database does not answer"


async def test_c095_a_database_with_a_problem_makes_the_service_not_ready(service, monkeypatch):
    monkeypatch.setattr(service.db._driver, "problem", "no space left in /data", raising=False)
    answer = await service.client.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["detail"] == "no space left in /data"
    assert (await service.client.get("/health/live")).status_code == 200
    status = await get(service, "/status")
    assert status["status"] == "unhealthy"
    assert {"name": "jobs", "message": "no space left in /data"} in status["services"]["not_ready"]


async def test_the_guard_stands_before_every_route(service):
    evil = {"origin": "https://evil.example"}
    assert (await service.client.post(JOBS, json=body(), headers=evil)).status_code == 403
    assert (await service.client.get("/status", headers={"host": "evil.example"})).status_code == 403
    assert (await service.client.post(JOBS, content=b"{}")).status_code == 415
    ours = {"origin": "http://localhost:3000"}
    answer = await service.client.get("/status", headers=ours)
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


async def test_configured_names_and_origins_pass(tmp_path):
    config = """
platform: {runtime: none, base_url: "http://jobs.internal:8080"}
service: {allowed_hosts: [alias.example], cors_origins: ["https://page.example"]}
"""
    async with open_service(tmp_path, config=config) as service:
        for host in ("jobs.internal:8080", "alias.example"):
            answer = await service.client.get(
                "/status", headers={"host": host, "origin": "https://page.example"}
            )
            assert answer.status_code == 200

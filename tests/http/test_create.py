"""Creating jobs: repeats under a key, dry runs, labels, projects."""

import asyncio
import json

import pytest

from nemo_jobs.store import idempotency
from tests.http.kit import JOBS, body, open_service, steps_named

PROJECTS = "/apis/entities/v2/workspaces/default/projects"


async def post(service, sent=None, *, key=None, path=JOBS, **headers):
    content = sent if isinstance(sent, bytes) else json.dumps(sent or body()).encode()
    given = {"content-type": "application/json", **headers}
    if key is not None:
        given["idempotency-key"] = key
    return await service.client.post(path, content=content, headers=given)


async def total(service):
    return (await service.client.get(JOBS)).json()["pagination"]["total_results"]


async def test_c088_a_repeat_under_the_same_key_gets_the_first_answer_again(service):
    first = await post(service, body(name=None), key="k1")
    assert first.status_code == 201
    service.clock.advance(60)
    job = first.json()
    await service.client.post(f"{JOBS}/{job['name']}/cancel")
    again = await post(service, body(name=None), key="k1")
    assert (again.status_code, again.content) == (201, first.content)
    assert await total(service) == 1
    assert (await post(service, body(name=None), key="k2")).json()["id"] != job["id"]
    assert (await post(service, body(name=None))).json()["id"] != job["id"]


async def test_c088_a_repeat_with_another_body_is_409_and_not_to_be_sent_again(service):
    await post(service, body(name="moth"), key="k1")
    answer = await post(service, body(name="mole"), key="k1")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert "'k1'" in answer.json()["detail"]
    assert await total(service) == 1


async def test_c088_of_twenty_at_once_under_one_key_all_get_the_same_answer(service):
    answers = await asyncio.gather(*(post(service, body(name=None), key="k") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert await total(service) == 1


async def test_a_refused_create_leaves_its_key_free(service):
    await service.create()
    assert (await post(service, body(), key="k1")).status_code == 409
    assert (await post(service, b"{", key="k1")).status_code == 422
    assert (await post(service, body(project="none", name="mole"), key="k1")).status_code == 422
    assert (await post(service, body(name="mole"), key="k1")).status_code == 201


@pytest.mark.parametrize("key", ["", "  ", "x" * 256, "a\tb"])
async def test_a_key_that_is_none_is_refused(service, key):
    answer = await post(service, key=key)
    assert answer.status_code == 422
    assert "Idempotency-Key must be 1 to 255" in answer.json()["detail"]


async def test_any_printable_key_will_do(service):
    for number, key in enumerate(("x" * 255, 'a "quoted" key', "~!@#", "žluť".encode())):
        first = await post(service, body(name=f"job-{number}"), key=key)
        assert first.status_code == 201, first.text
        assert (await post(service, body(name=f"job-{number}"), key=key)).content == first.content


async def test_keys_are_kept_apart_by_workspace_and_principal(service):
    first = await post(service, body(name=None), key="k")
    bob = await post(service, body(name=None), key="k", **{"x-nhx-principal-id": "bob"})
    there = await post(service, body(name=None), key="k", path=JOBS.replace("default", "system"))
    behalf = {"x-nhx-principal-id": "bob", "x-nhx-principal-on-behalf-of": "eve"}
    eve = await post(service, body(name=None), key="k", **behalf)
    assert len({answer.json()["id"] for answer in (first, bob, there, eve)}) == 4


async def test_a_key_is_free_after_a_day(service):
    first = await post(service, body(name=None), key="k")
    service.clock.advance(24 * 3600 - 1)
    assert (await post(service, body(name=None), key="k")).content == first.content
    service.clock.advance(2)
    assert (await post(service, body(name=None), key="k")).content != first.content


async def test_a_large_body_is_recognised_too(service):
    large = body(name=None, spec={"filler": "x" * 400_000})
    first = await post(service, large, key="k")
    assert first.status_code == 201
    assert (await post(service, large, key="k")).content == first.content


async def test_a_create_without_a_key_asks_nothing_about_keys(service, monkeypatch):
    def fail(*given, **more):
        raise AssertionError("a plain create has nothing to do with keys")

    monkeypatch.setattr(idempotency, "first_answer", fail)
    monkeypatch.setattr(idempotency, "create_once", fail)
    assert (await post(service)).status_code == 201


# -- dry runs


async def test_a_dry_run_tells_what_would_be_and_stores_nothing(service):
    sent = body(description="d", spec={"a": 1}, custom_fields={"labels": {"team": "x"}}, ownership=None)
    answer = await post(service, sent, path=f"{JOBS}?dry_run=true", key="k")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    (step,) = told.pop("steps")
    assert {name: told[name] for name in ("dry_run", "name", "workspace", "fileset", "spec")} == {
        "dry_run": True,
        "name": "moth",
        "workspace": "default",
        "fileset": "job-fileset-moth",
        "spec": {"a": 1},
    }
    assert told["platform_spec"]["steps"][0]["lifecycle"] == {"staleness_timeout_seconds": 0}
    assert told["custom_fields"] == {"labels": {"team": "x"}}
    assert "id" not in told
    assert (step["provider"], step["profile"], step["backend"]) == ("subprocess", "default", "subprocess")
    assert step["manifest"]["argv"] == ["true"]
    assert step["problem"] is None
    assert await total(service) == 0
    made = (await post(service, sent, key="k")).json()
    assert {name: made[name] for name in made if name in told} == {
        name: value for name, value in told.items() if name in made
    }


async def test_a_dry_run_translates_and_names_the_profile_of_each_step(tmp_path):
    config = (
        "platform: {runtime: none}\n"
        "jobs: {executors: [{provider: subprocess, profile: small, backend: subprocess}]}\n"
    )
    async with open_service(tmp_path, config=config) as service:
        cpu = {"provider": "cpu", "profile": "small", "container": {"entrypoint": ["sh"], "command": ["-c"]}}
        steps = [*steps_named("first")["steps"], {"name": "second", "executor": cpu}]
        told = (await post(service, body(platform_spec={"steps": steps}), path=f"{JOBS}?dry_run=1")).json()
        assert [(step["name"], step["provider"], step["profile"]) for step in told["steps"]] == [
            ("first", "subprocess", "default"),
            ("second", "subprocess", "small"),
        ]
        assert told["platform_spec"]["steps"][1]["executor"]["command"] == ["sh", "-c"]
        assert told["steps"][0]["manifest"]["key"] != told["steps"][1]["manifest"]["key"]


async def test_a_dry_run_makes_every_check_of_a_create(service):
    await service.create()
    wrong: list[tuple[dict, int]] = [
        ({"name": "X"}, 422),
        ({}, 409),
        ({"name": "mole", "project": "none"}, 422),
        ({"name": "mole", "output_location": "nowhere"}, 422),
        ({"name": "mole", "custom_fields": {"labels": {"a b": "x"}}}, 422),
        ({"name": "mole", "platform_spec": {"steps": []}}, 422),
    ]
    for over, status in wrong:
        dry = await post(service, body(**over), path=f"{JOBS}?dry_run=true")
        real = await post(service, body(**over))
        assert (dry.status_code, dry.json()) == (status, real.json()), over
    elsewhere = JOBS.replace("default", "nowhere")
    assert (await post(service, path=f"{elsewhere}?dry_run=true")).status_code == 422
    assert (await post(service, path=f"{JOBS}?dry_run=maybe")).status_code == 422
    assert (await post(service, body(name="mole"), path=f"{JOBS}?dry_run=false")).status_code == 201


async def test_a_dry_run_without_an_engine_says_so(service):
    object.__setattr__(service.app._api.parts, "engine", None)
    (step,) = (await post(service, path=f"{JOBS}?dry_run=true")).json()["steps"]
    assert step["manifest"] is None
    assert "runs no engine" in step["problem"]


async def test_the_manifests_of_an_answer_are_bounded(service, monkeypatch):
    monkeypatch.setattr("nemo_jobs.http.dry_run.MANIFESTS", 500)
    steps = steps_named(*(f"step-{n}" for n in range(20)))
    told = (await post(service, body(platform_spec=steps), path=f"{JOBS}?dry_run=true")).json()["steps"]
    assert len(told) == 20
    shown = [step for step in told if step["manifest"] is not None]
    assert 0 < len(shown) < 20
    assert "left out" in told[-1]["problem"]


# -- labels and projects


async def test_labels_are_kept_and_found_in_every_form_of_a_filter(service):
    labels = {"team": "vision", "app/x": ""}
    made = await service.create(name="moth", custom_fields={"labels": labels, "other": [1]})
    assert made["custom_fields"] == {"labels": labels, "other": [1]}
    await service.create(name="mole", custom_fields={"labels": {"team": "zoo"}})
    await service.create(name="newt", custom_fields={"labels": None})
    for query in (
        {"filter": '{"labels.team":"vision"}'},
        {"filter": '{"labels":{"team":"vision"}}'},
        {"filter": 'labels.team:"vision"'},
        {"filter[labels.team]": "vision"},
        {"filter[labels.team][like]": "VIS"},
        {"filter[labels][$hasKey]": "app/x"},
        {'filter[labels["app/x"]][exists]': "true"},
    ):
        answer = await service.client.get(JOBS, params=query)
        if "exists" in str(query):
            assert answer.status_code == 400
            continue
        found = answer.json()
        assert [job["name"] for job in found["data"]] == ["moth"], query
    echoed = (await service.client.get(JOBS, params={"filter": '{"labels":{"team":"zoo"}}'})).json()
    assert echoed["filter"] == {"labels.team": {"$eq": "zoo"}}


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["a"], "an object whose values are text"),
        ("a", "an object whose values are text"),
        ({"team": 3}, "the value of 'team' is 3; it must be text"),
        ({"team": {"a": "b"}}, "must be text"),
        ({"team": None}, "must be text"),
        ({"": "x"}, "can't be a key"),
        ({"a b": "x"}, "'a b' can't be a key; a key has 1 to 128 letters"),
        ({"-a": "x"}, "can't be a key"),
        ({"a": "x" * 256}, "at most 255 printable characters"),
        ({"a": "x\ny"}, "printable"),
        ({"k" * 129: "x"}, "can't be a key"),
        ({f"k{n}": "x" for n in range(65)}, "at most 64 labels; these are 65"),
    ],
)
async def test_labels_that_can_not_be_stored_are_refused_by_name(service, labels, says):
    answer = await post(service, body(custom_fields={"labels": labels}))
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert problem["loc"] == ["body", "custom_fields"]
    assert says in problem["msg"]


async def test_as_many_and_as_long_labels_as_there_may_be(service):
    labels = {f"{n:02d}{'k' * 126}": "é" * 255 for n in range(64)}
    await service.create(custom_fields={"labels": labels})
    found = await service.client.get(
        JOBS, params={"filter": json.dumps({"labels": {f"63{'k' * 126}": "é" * 255}})}
    )
    assert found.json()["pagination"]["total_results"] == 1


async def test_projects_over_http(service):
    made = await service.client.post(PROJECTS, json={"name": "apollo", "description": "d", "unknown": 1})
    assert made.status_code == 201
    project = made.json()
    assert list(project) == ["id", "name", "workspace", "description", "created_at", "updated_at"]
    assert (project["name"], project["workspace"], project["description"]) == ("apollo", "default", "d")
    assert (await service.client.get(f"{PROJECTS}/apollo")).json() == project
    again = await service.client.post(PROJECTS, json={"name": "apollo"})
    assert (again.status_code, again.headers["x-should-retry"]) == (409, "false")
    assert (await service.client.post(PROJECTS, json={"name": "A"})).status_code == 422
    listed = (await service.client.get(PROJECTS)).json()
    assert (listed["data"], listed["pagination"]["total_results"], listed["sort"]) == (
        [project],
        1,
        "created_at",
    )
    assert (await service.client.get(PROJECTS, params={"page_size": 1001})).status_code == 422
    assert (await service.client.get(PROJECTS.replace("default", "nowhere"))).status_code == 404
    unchanged = await service.client.patch(f"{PROJECTS}/apollo", json={})
    assert unchanged.json()["description"] == "d"
    assert (await service.client.put(f"{PROJECTS}/apollo", json={})).json()["description"] is None
    patched = await service.client.patch(f"{PROJECTS}/apollo", json={"description": "e"})
    assert patched.json()["description"] == "e"
    job = await service.create(project="apollo")
    assert job["project"] == "apollo"
    kept = await service.client.delete(f"{PROJECTS}/apollo")
    assert kept.status_code == 409
    assert "still has 1 job;" in kept.json()["detail"]
    await service.client.post(f"{JOBS}/moth/cancel")
    assert (await service.client.delete(f"{JOBS}/moth")).status_code == 204
    gone = await service.client.delete(f"{PROJECTS}/apollo")
    assert (gone.status_code, gone.json()["id"]) == (200, project["id"])
    for method in ("get", "delete", "patch", "put"):
        more: dict = {"json": {}} if method in ("patch", "put") else {}
        answer = await getattr(service.client, method)(f"{PROJECTS}/apollo", **more)
        assert answer.status_code == 404
        assert answer.json() == {"detail": "no project 'apollo' in workspace 'default'"}


async def test_a_job_in_an_unknown_project_is_422_and_names_it(service):
    answer = await post(service, body(project="apollo"))
    assert answer.status_code == 422
    assert "project 'apollo' does not exist" in answer.json()["detail"]
    await service.create()
    assert (await post(service, body(project="apollo"))).status_code == 409

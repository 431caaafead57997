"""Create, read, list, cancel, pause, resume, delete."""

import asyncio
import json
from urllib.parse import quote

import pytest

from nemo_jobs.domain.states import Trigger
from tests.http.kit import JOBS, body, open_service, steps_named

JOB_KEYS = {
    *("id", "attempt_id", "name", "workspace", "project", "description", "source", "spec", "platform_spec"),
    *("fileset", "output_location", "status", "status_details", "error_details", "created_at", "updated_at"),
    *("ownership", "custom_fields", "control", "reason"),
}


async def test_create_answers_the_whole_job(service):
    answer = await service.client.post(
        JOBS, json=body(name="moth-sorter", source="nightly", spec={"input": {"kind": "csv"}}, unknown=1)
    )
    assert answer.status_code == 201
    assert answer.headers["content-type"] == "application/json"
    job = answer.json()
    assert set(job) == JOB_KEYS
    assert job["id"].startswith("platform-job-")
    assert job["attempt_id"].startswith("platform-job-attempt-")
    assert (job["status"], job["workspace"], job["fileset"]) == (
        "created",
        "default",
        "job-fileset-moth-sorter",
    )
    assert job["spec"] == {"input": {"kind": "csv"}}
    assert job["platform_spec"] == {
        "steps": [
            {
                "name": "work",
                "environment": None,
                "executor": {"provider": "subprocess", "profile": "default", "command": ["true"]},
                "config": {},
                "lifecycle": {"staleness_timeout_seconds": 0},
            }
        ],
        "secrets": None,
    }
    assert job["reason"]["code"] == "queued"
    assert "subprocess/default" in job["reason"]["message"]


async def test_a_job_is_found_by_name_and_by_id(service):
    job = await service.create()
    for name in ("moth", job["id"]):
        assert (await service.client.get(f"{JOBS}/{name}")).json() == job


async def test_an_id_counts_only_in_its_workspace(service):
    job = await service.create()
    answer = await service.client.get(JOBS.replace("default", "system") + f"/{job['id']}")
    assert answer.status_code == 404


async def test_a_missing_job_is_named(service):
    answer = await service.client.get(f"{JOBS}/mole")
    assert (answer.status_code, answer.json()) == (404, {"detail": "no job 'mole' in workspace 'default'"})


async def test_c088_a_name_is_taken_once(service):
    await service.create()
    answer = await service.client.post(JOBS, json=body())
    assert answer.status_code == 409
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["detail"] == (
        "job name 'moth' is taken in workspace 'default'; choose another or delete the old job"
    )


async def test_c088_of_twenty_creates_at_once_one_wins(service):
    answers = await asyncio.gather(*(service.client.post(JOBS, json=body()) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 19


async def test_without_a_name_one_is_made_from_the_source(service):
    job = await service.create(name=None, source="Nightly Run!")
    assert job["name"].startswith("nightly-run-")


async def test_the_first_stage_that_fails_answers(service):
    """Schema, then profile, then name, then secret, in this order."""
    await service.create()
    secret = [{"name": "KEY", "from_secret": {"name": "team/key"}}]
    steps = steps_named("work")
    steps["steps"][0]["environment"] = secret

    async def post(**over):
        answer = await service.client.post(JOBS, json=body(**over))
        return answer.status_code, answer.json()["detail"]

    status, detail = await post(platform_spec=steps)
    assert status == 409
    status, detail = await post(name="other", platform_spec=steps)
    assert status == 422
    assert "KEY" in detail
    assert "team/key" in detail
    steps["steps"][0]["executor"]["profile"] = "nowhere"
    status, detail = await post(platform_spec=steps)
    assert status == 422
    assert "nowhere" in detail
    assert "subprocess/default" in detail
    steps["steps"][0]["name"] = "X"
    status, detail = await post(platform_spec=steps)
    assert status == 422
    assert detail[0]["loc"] == ["body", "platform_spec", "steps", 0, "name"]
    assert detail[0]["type"] == "string_pattern_mismatch"


@pytest.mark.parametrize(
    ("over", "word"), [({"project": "apollo"}, "apollo"), ({"output_location": "results"}, "results")]
)
async def test_what_a_job_refers_to_must_exist(service, over, word):
    answer = await service.client.post(JOBS, json=body(**over))
    assert answer.status_code == 422
    assert word in answer.json()["detail"]
    assert (await service.client.get(f"{JOBS}/moth")).status_code == 404


async def test_a_misspelt_required_key_is_named(service):
    executor = {"provider": "subprocess", "comand": ["true"]}
    step = {"name": "work", "executor": executor}
    (problem,) = (await service.client.post(JOBS, json=body(platform_spec={"steps": [step]}))).json()[
        "detail"
    ]
    assert (problem["type"], problem["loc"][-1]) == ("missing", "command")
    assert "'comand'" in problem["msg"]
    del executor["comand"]
    (problem,) = (await service.client.post(JOBS, json=body(platform_spec={"steps": [step]}))).json()[
        "detail"
    ]
    assert problem["msg"] == "Field required"


async def test_create_in_an_unknown_workspace_is_422_and_says_which(service):
    answer = await service.client.post(JOBS.replace("default", "nowhere"), json=body())
    assert answer.status_code == 422
    assert "'nowhere'" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("executor", "kind"),
    [({"provider": "abacus"}, "union_tag_invalid"), ({"command": ["true"]}, "union_tag_not_found")],
)
async def test_executors_without_a_known_provider_have_their_own_error_types(service, executor, kind):
    spec = {"steps": [{"name": "work", "executor": executor}]}
    answer = await service.client.post(JOBS, json=body(platform_spec=spec))
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert problem["type"] == kind
    assert problem["loc"] == ["body", "platform_spec", "steps", 0, "executor"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"a":"\\ud800"}',
        b'{"spec":' + b"[" * 5000,
        b'"text"',
        b"1e999",
        b"\x00",
    ],
)
async def test_bodies_that_are_no_request_are_422(service, raw):
    answer = await service.client.post(JOBS, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], list)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_are_not_json_never_get_in(service, value):
    raw = json.dumps(body(spec={"x": "?"})).replace('"?"', value)
    answer = await service.client.post(JOBS, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 422


async def test_a_body_full_of_faults_has_a_short_answer(service):
    raw = json.dumps(body(platform_spec={"steps": [1] * 200_000}))
    answer = await service.client.post(JOBS, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert len(answer.content) < 100_000


async def test_the_value_of_a_secret_is_dropped(service):
    spec = {**steps_named("work"), "secrets": [{"name": "key", "value": "hush", "ref_id": "r"}]}
    job = await service.create(platform_spec=spec)
    assert job["platform_spec"]["secrets"] == [{"name": "key", "value": None, "ref_id": "r"}]
    assert "hush" not in (await service.client.get(f"{JOBS}/moth")).text


async def test_identity_headers_are_kept_with_the_job(service):
    headers = {
        "x-nhx-principal-id": "ada",
        "x-nhx-principal-groups": "a, b",
        "x-nhx-principal-email": "ada@x.example",
    }
    answer = await service.client.post(JOBS, json=body(), headers=headers)
    assert answer.status_code == 201
    (step,) = (await service.client.get(f"{JOBS}/moth/steps")).json()["data"]
    assert step["auth_context"]["principal_id"] == "ada"
    assert step["auth_context"]["principal_groups"] == ["a", "b"]


@pytest.mark.parametrize(
    "headers", [{"x-nhx-principal-email": "x" * 321}, {"x-nhx-principal-groups": "g," * 101 + "h"}]
)
async def test_identity_headers_are_bounded(service, headers):
    assert (await service.client.post(JOBS, json=body(), headers=headers)).status_code == 422


ODD_NAMES = [
    *("a/b", "naïve", "..", ".", "x" * 300, "Upper", "trailing ", " leading", "a", "1abc", "a--b", "ab-"),
    *(
        "a\nb",
        "ab\n",
        "a\tb",
        "a b",
        "a%2fb",
        "%2e%2e",
        "a\\b",
        "a?b",
        "a#b",
        "a;b",
        "a'b",
        'a"b',
        "a,b",
        "a:b",
    ),
    *(
        "../../etc/passwd",
        "-ab",
        "_ab",
        ".ab",
        "日本",
        "a\u202eb",
        "ａｂ",
        "a" * 52,
        "null\u0000",
        "",
        "*",
        "$HOME",
        "{}",
    ),
]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_c059_odd_names_are_refused_with_the_rule(service, name):
    answer = await service.client.post(JOBS, json=body(name=name))
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][-1] == "name"


@pytest.mark.parametrize("name", [name for name in ODD_NAMES if name.strip(".")])
async def test_c059_odd_names_in_paths_are_404(service, name):
    once = quote(name, safe="")
    for part in (once, quote(once, safe="")):
        for method, path in [
            ("GET", f"{JOBS}/{part}"),
            ("POST", f"{JOBS}/{part}/cancel"),
            ("DELETE", f"{JOBS}/{part}"),
            ("GET", f"{JOBS}/{part}/logs"),
            ("GET", f"{JOBS}/moth/steps/{part}"),
            ("GET", f"/apis/jobs/v2/workspaces/{part}/jobs"),
            ("GET", f"/apis/jobs/v2/workspaces/{part}/jobs/moth"),
            ("GET", f"/apis/entities/v2/workspaces/{part}"),
        ]:
            answer = await service.client.request(method, path)
            assert answer.status_code in (404, 422), (method, path, answer.text)


@pytest.mark.parametrize("name", ["ab", "a@b", "a+b", "a.b", "a_b", "a-b", "a..b", "x" * 51, "a1.2+3@4_5-6"])
async def test_c059_each_accepted_name_works_everywhere(service, name):
    job = await service.create(name=name)
    at = f"{JOBS}/{quote(name, safe='')}"
    assert (await service.client.get(at)).json()["id"] == job["id"]
    assert (await service.client.get(f"{at}/logs")).status_code == 200
    assert (await service.client.get(f"{at}/status")).status_code == 200
    assert (await service.client.post(f"{at}/cancel")).json()["status"] == "cancelled"
    assert (await service.client.delete(at)).status_code == 204
    assert (await service.client.get(at)).status_code == 404


@pytest.mark.parametrize("trigger", [None, Trigger.SUBMITTED, Trigger.STARTED])
async def test_c075_a_job_that_has_not_ended_is_not_deleted(service, trigger):
    await service.create()
    if trigger:
        await service.apply(await service.claim(), trigger)
    answer = await service.client.delete(f"{JOBS}/moth")
    assert answer.status_code == 409
    assert answer.headers["x-should-retry"] == "false"
    assert "cancel" in answer.json()["detail"]
    assert "'moth'" in answer.json()["detail"]


async def test_c075_after_the_end_delete_takes_the_log_along_and_frees_the_name(service):
    await service.create()
    step = await service.start(lines=[("stdout", "old")])
    await service.finish(step)
    answer = await service.client.delete(f"{JOBS}/moth")
    assert (answer.status_code, answer.content) == (204, b"")
    await service.create()
    assert (await service.client.get(f"{JOBS}/moth/logs")).json()["data"] == []


async def test_cancel_pause_and_resume_answer_the_job(service):
    await service.create()
    await service.start()
    for action, status in [
        ("pause", "pausing"),
        ("resume", "pausing"),
        ("cancel", "cancelling"),
        ("pause", "cancelling"),
    ]:
        answer = await service.client.post(f"{JOBS}/moth/{action}")
        assert (answer.status_code, answer.json()["status"]) == (200, status)
        assert set(answer.json()) == JOB_KEYS


async def test_a_paused_job_resumes(service):
    await service.create()
    step = await service.start()
    await service.client.post(f"{JOBS}/moth/pause")
    await service.apply(step, Trigger.STOPPED)
    assert (await service.job())["status"] == "paused"
    assert (await service.client.post(f"{JOBS}/moth/resume")).json()["status"] == "resuming"


async def test_the_status_tree_has_objects_for_details(service):
    await service.create(platform_spec=steps_named("collect", "fit"))
    step = await service.start()
    tree = (await service.client.get(f"{JOBS}/moth/status")).json()
    assert {
        "id",
        "name",
        "created_at",
        "updated_at",
        "status",
        "error_details",
        "status_details",
        "steps",
    } <= set(tree)
    (shown,) = tree["steps"]
    assert (shown["id"], shown["name"], shown["status"]) == (step.id, "collect", "active")
    assert shown["error_details"] == {}
    (task,) = shown["tasks"]
    assert set(task) == {
        *("id", "name", "created_at", "updated_at", "status"),
        *("error_details", "error_stack", "status_details"),
    }
    assert task["error_details"] == {}
    assert task["error_stack"] is None


async def test_status_details_are_merged_key_by_key(service):
    await service.create()
    for details in ({"epoch": 1, "loss": 2.5}, {"epoch": 2, "more": {"deep": True}}):
        answer = await service.client.patch(f"{JOBS}/moth/status-details", json=details)
        assert (answer.status_code, answer.content) == (200, b"null")
    assert (await service.job())["status_details"] == {"epoch": 2, "loss": 2.5, "more": {"deep": True}}


@pytest.mark.parametrize("raw", ["[]", "1", '"x"', "null", "", "{", '{"x": NaN}'])
async def test_status_details_must_be_an_object(service, raw):
    await service.create()
    answer = await service.client.patch(
        f"{JOBS}/moth/status-details", content=raw, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422


async def test_status_details_of_a_missing_job_are_404(service):
    assert (await service.client.patch(f"{JOBS}/mole/status-details", json={})).status_code == 404


async def test_c076_a_list_tells_how_much_there_is(service):
    for number in range(57):
        service.clock.advance(1)
        await service.create(name=f"job-{number:02}")
    page = (await service.client.get(JOBS)).json()
    assert page["sort"] == "-created_at"
    assert "filter" not in page
    assert page["pagination"] == {
        "total_results": 57,
        "total_pages": 6,
        "page_size": 10,
        "page": 1,
        "current_page_size": 10,
    }
    names = []
    for number in range(1, 7):
        page = (await service.client.get(JOBS, params={"page": number})).json()
        names += [job["name"] for job in page["data"]]
    assert names == [f"job-{number:02}" for number in range(56, -1, -1)]


async def test_a_page_past_the_end_is_empty_and_counts_right(service):
    await service.create()
    for number in (2, 10**15, 2**62):
        page = (await service.client.get(JOBS, params={"page": number, "page_size": 1000})).json()
        assert page["data"] == []
        assert page["pagination"]["total_results"] == 1
        assert page["pagination"]["page"] == number


async def test_an_empty_list_has_one_page(service):
    page = (await service.client.get(JOBS)).json()
    assert page["pagination"]["total_pages"] == 1


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"page": "0"}, "greater_than"),
        ({"page": "x"}, "int_parsing"),
        ({"page_size": "-1"}, "greater_than"),
        ({"sort": "name"}, "literal_error"),
    ],
)
async def test_parameters_out_of_bounds_are_422_with_their_place(service, params, kind):
    answer = await service.client.get(JOBS, params=params)
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    (name,) = params
    assert (problem["type"], problem["loc"], problem["input"]) == (kind, ["query", name], params[name])


async def test_a_page_size_above_the_limit_is_a_flat_422(service):
    answer = await service.client.get(JOBS, params={"page_size": 1001})
    assert answer.status_code == 422
    assert "1000" in answer.json()["detail"]


async def test_a_filter_is_echoed_and_counts(service):
    await service.create(name="one", source="nightly")
    await service.create(name="two", source="manual")
    page = (await service.client.get(JOBS, params={"filter": '{"source":"nightly"}'})).json()
    assert [job["name"] for job in page["data"]] == ["one"]
    assert page["filter"] == {"source": {"$eq": "nightly"}}
    assert page["pagination"]["total_results"] == 1


async def test_the_status_filter_of_the_command_line_is_any_of(service):
    await service.create()
    page = (await service.client.get(JOBS, params={"filter": '{"status":["created","error"]}'})).json()
    assert page["pagination"]["total_results"] == 1


@pytest.mark.parametrize(
    "text", ["oops", "{", "", '{"nope":1}', '{"status":{"$exists":true}}', "((((", '{"spec.a":"\\ud800"}']
)
async def test_a_filter_that_is_none_is_400(service, text):
    answer = await service.client.get(JOBS, params={"filter": text})
    assert answer.status_code == 400
    assert isinstance(answer.json()["detail"], str)


async def test_odd_values_in_a_spec_break_no_filter(service):
    await service.create(spec={"a": "x", "deep": [1, {"b": None}], "big": 10**30, "": 1})
    for text in ('{"spec.a":"x"}', '{"spec.deep":{"$contains":1}}', '{"spec.big":{"$gt":1}}'):
        assert (await service.client.get(JOBS, params={"filter": text})).status_code == 200


async def test_the_list_of_all_workspaces_is_at_a_hyphen(service):
    await service.create()
    assert (await service.client.post(JOBS.replace("default", "system"), json=body())).status_code == 201
    page = (await service.client.get(JOBS.replace("default", "-"))).json()
    assert {job["workspace"] for job in page["data"]} == {"default", "system"}


async def test_the_list_of_an_unknown_workspace_is_404_and_names_it(service):
    answer = await service.client.get(JOBS.replace("default", "nowhere"))
    assert answer.status_code == 404
    assert "nowhere" in answer.json()["detail"]


async def test_a_nul_in_the_query_is_422(service):
    assert (await service.client.get(f"{JOBS}?filter=name:%22a%00%22")).status_code == 422
    assert (await service.client.get(f"{JOBS}?filter=%ff")).status_code == 422


async def test_c081_times_are_utc_with_microseconds_whatever_the_zone(tmp_path, monkeypatch):
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        async with open_service(tmp_path) as service:
            job = await service.create()
            assert job["created_at"] == "2027-01-15T08:00:00.000000Z"
            for value, found in [
                ("2027-01-15T08:00:00Z", 1),
                ("2027-01-15T13:30:00+05:30", 1),
                ("2027-01-15T08:00:00", 1),
                ("2027-01-15T13:30:01+05:30", 0),
                ("2027-01-15T08:00:01", 0),
            ]:
                text = json.dumps({"created_at": {"$gte": value}})
                page = (await service.client.get(JOBS, params={"filter": text})).json()
                assert page["pagination"]["total_results"] == found, value
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_status_details_are_bounded(service):
    await service.create()
    half = {"a": "x" * (1 << 19)}
    assert (await service.client.patch(f"{JOBS}/moth/status-details", json=half)).status_code == 200
    answer = await service.client.patch(f"{JOBS}/moth/status-details", json={"b": "x" * (1 << 19)})
    assert answer.status_code == 422
    assert "at most 1048576" in answer.json()["detail"]
    assert (await service.job())["status_details"] == half

"""Steps and tasks: the controllers' list, and what tasks report."""

import asyncio
import json

import pytest

from nemo_jobs.domain.states import State, Trigger
from tests.http.kit import JOBS, body, steps_named

STEPS = f"{JOBS}/moth/steps"
ALL = "/apis/jobs/v2/workspaces/-/jobs/-/steps"
STEP = "work"
TASK = f"{STEPS}/{STEP}/tasks/task-1"


async def page(service, path=ALL, **params):
    answer = await service.client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def jobs_of(found):
    return [step["job"] for step in found["data"]]


async def test_a_step_in_context_has_what_controllers_need(service):
    job = await service.create()
    found = await page(service, STEPS)
    assert found["pagination"] == {
        "total_results": 1,
        "total_pages": 1,
        "page_size": 25,
        "page": 1,
        "current_page_size": 1,
    }
    assert (found["sort"], found["filter"]) == ("created_at", {"job": "moth"})
    (step,) = found["data"]
    assert {
        "id",
        "job",
        "attempt_id",
        "fileset",
        "workspace",
        "name",
        "step_spec",
        "status",
        "auth_context",
    } <= set(step)
    assert (step["job"], step["attempt_id"], step["name"]) == ("moth", job["attempt_id"], "work")
    assert step["step_spec"] == job["platform_spec"]["steps"][0]
    assert step["auth_context"]["principal_id"] == ""


async def test_the_hyphen_lists_all_workspaces_and_all_jobs(service):
    await service.create(name="one")
    await service.client.post(JOBS.replace("default", "system"), json=body(name="two"))
    assert sorted(jobs_of(await page(service))) == ["one", "two"]
    assert jobs_of(await page(service, ALL.replace("/workspaces/-/", "/workspaces/system/"))) == ["two"]
    assert "filter" not in await page(service)


async def test_an_unknown_job_has_an_empty_page(service):
    assert (await page(service, f"{JOBS}/mole/steps"))["data"] == []


async def test_the_job_of_the_path_wins_over_the_filter(service):
    await service.create(name="one")
    await service.create(name="two")
    found = await page(service, f"{JOBS}/one/steps", **{"filter[job]": "two"})
    assert jobs_of(found) == ["one"]
    assert found["filter"] == {"job": "one"}


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"filter[status]": "created,resuming"}, ["waits"]),
        ({"filter[status]": "active"}, ["runs"]),
        ({"filter": '{"status":["active"]}'}, ["runs"]),
        ({"filter": '{"status":"active"}'}, ["runs"]),
        ({"filter": '{"source":"night"}'}, ["waits"]),
        ({"filter[source]": "night"}, ["waits"]),
        ({"filter": '{"job":"runs"}'}, ["runs"]),
        ({"filter[job]": "waits", "filter[status]": "created"}, ["waits"]),
        ({"filter[job]": "waits", "filter[status]": "active"}, []),
        ({"filter[task_cleanup_pending]": "true"}, []),
        ({"filter[task_cleanup_pending]": "false"}, ["runs", "waits"]),
        ({"filter": '{"task_cleanup_pending":true}'}, []),
    ],
)
async def test_each_form_of_filter_narrows(service, params, names):
    await service.create(name="runs", source="day")
    await service.start()
    service.clock.advance(1)
    await service.create(name="waits", source="night")
    assert jobs_of(await page(service, **params)) == names


@pytest.mark.parametrize(
    ("params", "loc"),
    [
        ({"filter[status]": "created,nope"}, ["query", "filter", "status", 1]),
        ({"filter": '{"status":["nope"]}'}, ["query", "filter", "status", 0]),
        ({"filter[status]": ""}, ["query", "filter", "status", 0]),
        ({"filter[nope]": "x"}, ["query", "filter", "nope"]),
        ({"filter[task_cleanup_pending]": "maybe"}, ["query", "filter", "task_cleanup_pending"]),
    ],
)
async def test_a_filter_value_that_is_wrong_is_422_with_its_place(service, params, loc):
    answer = await service.client.get(ALL, params=params)
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert problem["loc"] == loc
    if "status" in loc:
        assert all(state.value in problem["msg"] for state in State)


@pytest.mark.parametrize("text", ["oops", "[1]", "", '{"job":"\\ud800"}'])
async def test_a_filter_that_is_no_object_is_422(service, text):
    assert (await service.client.get(ALL, params={"filter": text})).status_code == 422


async def test_a_walk_sees_every_step_that_matched_although_others_leave_the_list(service):
    """A controller moves the steps of each page on before it asks for the next one."""
    for number in range(40):
        service.clock.advance(1)
        await service.create(name=f"job-{number:02}")
    seen, number = [], 1
    while True:
        found = await page(service, page=number, page_size=6, **{"filter[status]": "created"})
        for step in found["data"]:
            seen.append(step["job"])
            await service.apply(await service.claim(), Trigger.SUBMITTED)
        if number >= found["pagination"]["total_pages"]:
            break
        number += 1
    assert seen == [f"job-{number:02}" for number in range(40)]


@pytest.mark.parametrize("sort", ["created_at", "-created_at", "updated_at", "-updated_at"])
async def test_a_walk_in_any_order_gives_each_step_once_and_the_true_totals(service, sort):
    for number in range(20):
        service.clock.advance(1)
        await service.create(name=f"job-{number:02}")
    seen, totals = [], set()
    for number in range(1, 5):
        found = await page(service, page=number, page_size=6, sort=sort)
        seen += jobs_of(found)
        totals.add((found["pagination"]["total_results"], found["pagination"]["total_pages"]))
    names = [f"job-{number:02}" for number in range(20)]
    assert seen == (names[::-1] if sort.startswith("-") else names)
    assert totals == {(20, 4)}


@pytest.mark.parametrize("number", [2**63 - 1, 10**20])
async def test_a_page_far_behind_the_end_is_empty(service, number):
    await service.create()
    for path in (STEPS, ALL, "/apis/entities/v2/workspaces"):
        answer = await service.client.get(path, params={"page": number, "page_size": 1000})
        assert (answer.status_code, answer.json()["data"]) == (200, [])


async def test_a_step_has_every_key(service):
    job = await service.create()
    step = (await service.client.get(f"{STEPS}/work")).json()
    assert set(step) == {
        *("id", "entity_id", "name", "workspace", "parent", "attempt_id", "project", "config", "status"),
        *(
            "status_details",
            "error_details",
            "db_version",
            "created_at",
            "created_by",
            "updated_at",
            "updated_by",
        ),
    }
    assert step["id"] == step["entity_id"]
    assert step["parent"] == step["attempt_id"] == job["attempt_id"]
    assert step["config"] == {"_step_spec_name": "work"}
    assert step["status_details"]["reason"] == "queued"


async def test_a_missing_step_is_told_with_all_names(service):
    await service.create()
    answer = await service.client.get(f"{STEPS}/rest")
    assert answer.status_code == 404
    assert all(name in answer.json()["detail"] for name in ("rest", "moth", "default"))


async def patch(service, step="work", **update):
    return await service.client.patch(f"{STEPS}/{step}/status", json=update)


async def test_an_outside_controller_moves_a_step_on(service):
    await service.create(platform_spec=steps_named("work", "rest"))
    answer = await patch(service, status="active", status_details={"pid": 7})
    assert answer.status_code == 200
    assert answer.json()["status"] == "active"
    assert answer.json()["status_details"]["pid"] == 7
    assert (await service.job())["status"] == "active"
    assert "pid" not in (await service.job())["status_details"]
    await patch(service, status="completed")
    assert (await service.job())["status"] == "active"
    assert (await service.client.get(f"{STEPS}/rest")).json()["status"] == "created"


async def test_an_error_of_a_step_is_the_jobs(service):
    await service.create()
    await patch(service, status="active")
    await patch(service, status="error", error_details={"message": "no luck"})
    job = await service.job()
    assert (job["status"], job["error_details"]["message"]) == ("error", "no luck")


async def test_c100_a_step_never_leaves_a_final_state(service):
    await service.create()
    step = await service.start()
    await service.finish(step)
    before = (await service.client.get(f"{STEPS}/work")).json()
    answer = await patch(service, status="active")
    assert answer.status_code == 409
    assert answer.headers["x-should-retry"] == "false"
    assert "work" in answer.json()["detail"]
    assert "active" in answer.json()["detail"]
    assert (await service.client.get(f"{STEPS}/work")).json() == before


async def test_c100_an_update_meant_for_another_step_is_409(service):
    await service.create()
    answer = await patch(service, status="active", expected_step_id="platform-job-step-other")
    assert answer.status_code == 409
    assert (await service.job())["status"] == "created"


async def test_c100_twenty_updates_at_once_leave_one_result(service):
    await service.create()
    answers = await asyncio.gather(
        *(patch(service, status="error" if number % 2 else "cancelled") for number in range(20))
    )
    winner = (await service.job())["status"]
    for number, answer in enumerate(answers):
        wanted = "error" if number % 2 else "cancelled"
        assert answer.status_code == (200 if wanted == winner else 409)


async def test_c100_an_update_after_the_deletion_is_404(service):
    await service.create()
    await service.client.post(f"{JOBS}/moth/cancel")
    await service.client.delete(f"{JOBS}/moth")
    assert (await patch(service, status="active")).status_code == 404


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"status": "done"},
        {"status": None},
        {"status": "active", "status_details": []},
        {"status": "active", "error_details": 1},
    ],
)
async def test_a_status_update_that_does_not_fit_is_422(service, update):
    await service.create()
    assert (await patch(service, **update)).status_code == 422


async def put(service, path=TASK, **update):
    return await service.client.put(path, json=update)


async def test_a_task_reports_progress_and_the_job_shows_it(service):
    await service.create()
    await service.start()
    answer = await put(service, status="active", status_details={"percentage_done": 35})
    assert answer.status_code == 200
    task = answer.json()
    assert set(task) == {
        *("id", "entity_id", "parent", "step_id", "name", "workspace", "project", "status", "status_details"),
        *(
            "error_details",
            "error_stack",
            "created_by",
            "created_at",
            "updated_by",
            "updated_at",
            "db_version",
        ),
    }
    assert task["parent"] == task["step_id"]
    assert (task["status"], task["status_details"]["percentage_done"]) == ("active", 35)
    assert (await service.job())["status_details"] == {"percentage_done": 35}
    assert (await service.client.get(TASK)).json() == task
    listed = (await service.client.get(f"{STEPS}/work/tasks")).json()["data"]
    assert task in listed


async def test_c100_a_late_report_is_200_and_changes_no_state(service):
    await service.create()
    step = await service.start()
    await put(service, status="active")
    await service.finish(step, Trigger.FAILED)
    before = (await service.client.get(TASK)).json()
    answer = await put(service, status="active", status_details={"epoch": 9})
    assert answer.status_code == 200
    assert answer.json()["status"] == before["status"] == "error"
    assert (await service.job())["status"] == "error"


@pytest.mark.parametrize("name", ["Task", "a", "a--b", "x%20y"])
async def test_a_new_task_needs_a_valid_name(service, name):
    await service.create()
    await service.start()
    answer = await put(service, f"{STEPS}/work/tasks/{name}", status="active")
    assert answer.status_code == 422


@pytest.mark.parametrize("path", [f"{JOBS}/mole/steps/work/tasks/task-1", f"{STEPS}/rest/tasks/task-1"])
async def test_tasks_of_what_is_missing_are_404(service, path):
    await service.create()
    assert (await put(service, path, status="active")).status_code == 404
    assert (await service.client.get(path)).status_code == 404
    assert (await service.client.get(path.rsplit("/", 1)[0])).status_code == 404


async def test_a_nul_in_a_report_is_422(service):
    await service.create()
    await service.start()
    assert (await put(service, error_stack="a\0b")).status_code == 422
    raw = json.dumps({"status_details": {"x": "\0"}})
    answer = await service.client.put(TASK, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 422

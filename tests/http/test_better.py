"""Points in which the answers differ from the original on purpose, seen over HTTP."""

import pytest

from tests.http.kit import JOBS, steps_named


async def put_status(service, step, status, name="moth"):
    answer = await service.client.patch(f"{JOBS}/{name}/steps/{step}/status", json={"status": status})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_updated_at_moves_with_every_state_and_sorts(service):
    await service.create(name="first")
    service.clock.advance(1)
    await service.create(name="second")
    seen = [(await service.job("first"))["updated_at"]]
    for status in ("pending", "active", "completed"):
        service.clock.advance(1)
        await put_status(service, "work", status, "first")
        seen.append((await service.job("first"))["updated_at"])
    assert seen == sorted(set(seen))
    listed = (await service.client.get(f"{JOBS}?sort=-updated_at")).json()["data"]
    assert [job["name"] for job in listed] == ["first", "second"]


async def test_there_is_no_hundredth_step_that_is_the_last(service):
    names = [f"step-{number:03}" for number in range(104)]
    await service.create(platform_spec=steps_named(*names))
    for name in names:
        service.clock.advance(1)
        await put_status(service, name, "active")
        await put_status(service, name, "completed")
    assert (await service.job())["status"] == "completed"
    last = await service.client.get(f"{JOBS}/moth/steps/{names[-1]}")
    assert last.json()["status"] == "completed"
    page = (await service.client.get(f"{JOBS}/moth/steps?page_size=104")).json()
    assert [step["name"] for step in page["data"]] == names
    assert len((await service.job_status())["steps"]) == 104


async def test_cancel_works_while_a_step_is_pausing(service):
    await service.create()
    await service.start()
    paused = await service.client.post(f"{JOBS}/moth/pause")
    assert paused.json()["status"] == "pausing"
    cancelled = await service.client.post(f"{JOBS}/moth/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelling")


async def test_a_pending_clean_up_is_no_detail_of_the_step(service):
    await service.create()
    step = await service.start()
    await service.client.post(f"{JOBS}/moth/cancel")
    seen = (await service.client.get(f"{JOBS}/moth/steps/{step.name}")).json()
    assert seen["status"] == "cancelling" and "task_cleanup_pending" not in seen["status_details"]
    for wanted in ("true", "false"):
        answer = await service.client.get(f"{JOBS}/moth/steps?filter[task_cleanup_pending]={wanted}")
        assert answer.status_code == 200


@pytest.mark.parametrize("name", ["A", "a b", "%F0%9F%A6%89", "x" * 300, "-x", "a--b", "%00", "..%2F.."])
@pytest.mark.parametrize("rest", ["jobs", "jobs/moth", "jobs/moth/logs", "jobs/moth/steps"])
async def test_a_workspace_that_can_not_be_is_never_a_500(service, name, rest):
    answer = await service.client.get(f"/apis/jobs/v2/workspaces/{name}/{rest}")
    assert answer.status_code in (200, 404, 422) and answer.status_code != 500
    if answer.status_code == 200:
        assert rest.endswith("steps") and answer.json()["data"] == []


async def test_a_missing_job_is_told_alike_on_every_route(service):
    gets = ("", "/status", "/logs", "/results", "/steps/work", "/steps/work/tasks", "/attempts")
    texts = set()
    for rest in gets:
        answer = await service.client.get(f"{JOBS}/mole{rest}")
        assert answer.status_code == 404, rest
        texts.add("no job 'mole' in workspace 'default'" in answer.json()["detail"])
    for rest in ("/cancel", "/pause", "/resume", "/rerun"):
        answer = await service.client.post(f"{JOBS}/mole{rest}")
        assert answer.status_code == 404, rest
        texts.add("no job 'mole' in workspace 'default'" in answer.json()["detail"])
    answer = await service.client.patch(f"{JOBS}/mole/status-details", json={})
    texts.add("no job 'mole' in workspace 'default'" in answer.json()["detail"])
    assert texts == {True}

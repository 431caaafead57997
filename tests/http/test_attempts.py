"""Attempts, reruns, changes of a job and its control, over HTTP."""

import json

import pytest

from nemo_jobs.domain.states import Trigger
from nemo_jobs.store import attempts
from nemo_jobs.store.attempts import AttemptQuery
from tests.http.kit import JOBS, body, open_service, served, steps_named
from tests.http.test_stream import follow

MOTH = f"{JOBS}/moth"


async def failed(service, *names, lines=()):
    """A job whose last started step failed."""
    job = await service.create(platform_spec=steps_named(*names) if names else body()["platform_spec"])
    for _ in names[:-1]:
        await service.finish(await service.start())
    await service.finish(await service.start(lines=lines), Trigger.FAILED)
    return job


async def ok(answer, status=200):
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


async def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    detail = answer.json()["detail"]
    assert all(word in str(detail) for word in words), detail
    if status == 409:
        assert answer.headers["x-should-retry"] == "false"
    return detail


async def test_a_rerun_answers_with_the_job_at_its_new_attempt(service):
    before = await failed(service)
    after = await ok(await service.client.post(f"{MOTH}/rerun"))
    assert after["id"] == before["id"] and after["attempt_id"] != before["attempt_id"]
    assert (after["status"], after["error_details"], after["reason"]["code"]) == ("created", None, "queued")
    assert after == await service.job()
    detail = await refused(
        await service.client.post(f"{MOTH}/rerun"), 409, "moth", "created", "cancel it first"
    )
    assert isinstance(detail, str)
    await refused(await service.client.post(f"{JOBS}/mole/rerun"), 404, "mole", "default")
    by_id = await service.client.post(f"{JOBS}/{before['id']}/cancel")
    assert by_id.status_code == 200
    assert (await ok(await service.client.post(f"{JOBS}/{before['id']}/rerun")))["status"] == "created"


async def test_a_rerun_runs_as_its_caller(service):
    await failed(service)
    headers = {"x-nhx-principal-id": "ada"}
    await ok(await service.client.post(f"{MOTH}/rerun", headers=headers))
    listed = await ok(await service.client.get(f"{MOTH}/steps"))
    assert listed["data"][0]["auth_context"]["principal_id"] == "ada"


async def test_a_rerun_from_a_step_keeps_the_ones_before(service):
    await failed(service, "one", "two", "three")
    await refused(await service.client.post(f"{MOTH}/rerun?from_step=nine"), 422, "nine", "one, two, three")
    await refused(await service.client.post(f"{MOTH}/rerun?from_step="), 422, "no step ''")
    after = await ok(await service.client.post(f"{MOTH}/rerun?from_step=three"))
    assert after["status"] == "active"
    tree = await service.job_status()
    assert [(step["name"], step["status"]) for step in tree["steps"]] == [
        ("one", "completed"),
        ("two", "completed"),
        ("three", "created"),
    ]
    kept = tree["steps"][0]
    assert kept["status_details"]["reason"] == "kept_from_attempt" and kept["tasks"] == []
    first = (await ok(await service.client.get(f"{MOTH}/attempts/0")))["id"]
    assert kept["status_details"]["kept_from_attempt"] == first
    await service.finish(await service.start(), Trigger.FAILED)
    assert (await service.job())["status"] == "error"


async def test_attempts_are_listed_with_all_that_is_theirs(service):
    job = await failed(service, lines=[("stdout", "first")])
    await ok(await service.client.post(f"{MOTH}/rerun"))
    page = await ok(await service.client.get(f"{MOTH}/attempts"))
    assert page["sort"] == "-seq" and "filter" not in page
    assert page["pagination"] == {
        "total_results": 2,
        "total_pages": 1,
        "page_size": 25,
        "page": 1,
        "current_page_size": 2,
    }
    new, old = page["data"]
    assert (new["seq"], new["is_current"], new["status"]) == (1, True, "created")
    assert (old["seq"], old["is_current"], old["status"]) == (0, False, "error")
    assert old["id"] == job["attempt_id"] and old["job"] == job["id"] and old["workspace"] == "default"
    assert old["platform_spec"] == job["platform_spec"] and old["spec"] == job["spec"]
    assert old["error_details"]["message"] and new["error_details"] is None
    assert set(old["reason"]) == {"code", "message", "since"}
    for selector in (old["id"], "0"):
        assert await ok(await service.client.get(f"{MOTH}/attempts/{selector}")) == old
    for selector in (new["id"], "1", "current"):
        assert await ok(await service.client.get(f"{MOTH}/attempts/{selector}")) == new
    for query, seqs in (
        ("sort=seq", [0, 1]),
        ("page_size=1&page=2", [0]),
        ("page=7", []),
        ('filter={"status":["error"]}', [0]),
        ('filter={"status":"error"}', [0]),
        ("filter[status]=created,active", [1]),
        ("filter[status]=error&filter[status]=created", [1, 0]),
    ):
        page = await ok(await service.client.get(f"{MOTH}/attempts?{query}"))
        assert [one["seq"] for one in page["data"]] == seqs, query


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "attempts?sort=name", 422),
        ("GET", "attempts?page=0", 422),
        ("GET", "attempts?page_size=1001", 422),
        ("GET", "attempts?filter=oops", 422),
        ("GET", "attempts?filter[status]=lost", 422),
        ("GET", "attempts?filter[name]=x", 422),
        ("GET", "attempts/9", 404),
        ("GET", "attempts/-1", 404),
        ("GET", "attempts/99999999999", 404),
        ("GET", "attempts/platform-job-attempt-x", 404),
        ("GET", "attempts/latest", 422),
        ("GET", "attempts/%00", 404),
        ("GET", "attempts/9/steps", 404),
        ("GET", "attempts/0/steps?filter[status]=x", 422),
        ("GET", "attempts/0/steps/nope", 404),
        ("GET", "attempts/0/steps/work/tasks/nope", 404),
        ("PUT", "attempts/0/steps/work/tasks/-bad-", 422),
        ("PUT", "attempts/7/steps/work/tasks/task-a", 404),
        ("PATCH", "attempts/0/steps/work/status", 422),
        ("PATCH", "attempts/0/status-details?expected_step_status=active", 422),
        ("PATCH", "attempts/0/status-details?expected_step_id=x&expected_step_status=lost", 422),
        ("PATCH", "attempts/0/status-details?expected_step_id=x", 409),
    ],
)
async def test_what_does_not_fit_is_refused(service, method, path, status):
    await failed(service)
    given: dict = {} if method == "GET" else {"json": {}}
    answer = await service.client.request(method, f"{MOTH}/{path}", **given)
    assert answer.status_code == status, answer.text


async def test_steps_and_tasks_of_an_attempt_are_its_own(service):
    job = await failed(service)
    old = job["attempt_id"]
    await ok(await service.client.post(f"{MOTH}/rerun"))
    listed = await ok(await service.client.get(f"{MOTH}/attempts/{old}/steps"))
    (step,) = listed["data"]
    assert (step["attempt_id"], step["status"], step["job"]) == (old, "error", "moth")
    shown = await ok(await service.client.get(f"{MOTH}/attempts/{old}/steps/work"))
    assert (shown["id"], shown["parent"], shown["status"]) == (step["id"], old, "error")
    current = await ok(await service.client.get(f"{MOTH}/attempts/current/steps/work"))
    assert current["id"] != step["id"] and current == await ok(await service.client.get(f"{MOTH}/steps/work"))
    (task,) = (await ok(await service.client.get(f"{MOTH}/attempts/0/steps/work/tasks")))["data"]
    assert task == await ok(await service.client.get(f"{MOTH}/attempts/0/steps/work/tasks/{task['name']}"))
    assert (await ok(await service.client.get(f"{MOTH}/attempts/1/steps/work/tasks")))["data"] == []


async def test_c100_writes_to_an_old_attempt_never_touch_the_job(service):
    job = await failed(service)
    old = f"{MOTH}/attempts/{job['attempt_id']}"
    await ok(await service.client.post(f"{MOTH}/rerun"))
    before = await service.job()
    assert await ok(await service.client.patch(f"{old}/status-details", json={"note": 1})) is None
    late = {"status": "active", "status_details": {"percentage_done": 9}}
    put = await ok(await service.client.put(f"{old}/steps/work/tasks/task-late", json=late))
    assert put["status"] == "error"
    await refused(
        await service.client.patch(f"{old}/steps/work/status", json={"status": "active"}),
        409,
        "work",
        "error",
    )
    assert await service.job() == before
    assert (await ok(await service.client.get(old)))["status_details"]["note"] == 1


async def test_details_are_guarded_by_what_the_writer_expects(service):
    await failed(service)
    old_step = (await ok(await service.client.get(f"{MOTH}/steps/work")))["id"]
    await ok(await service.client.post(f"{MOTH}/rerun"))
    step = (await ok(await service.client.get(f"{MOTH}/steps/work")))["id"]
    details = f"{MOTH}/attempts/current/status-details"
    await ok(await service.client.patch(f"{details}?expected_step_id={step}", json={"a": 1}))
    good = f"expected_step_id={step}&expected_step_status=created"
    await ok(await service.client.patch(f"{details}?{good}", json={"b": 1}))
    assert (await service.job())["status_details"] == {"a": 1, "b": 1}
    bad = f"expected_step_id={step}&expected_step_status=active"
    await refused(await service.client.patch(f"{details}?{bad}", json={"c": 1}), 409, "created", "not active")
    await refused(await service.client.patch(f"{details}?expected_step_id={old_step}", json={"c": 1}), 409)
    await refused(
        await service.client.patch(f"{MOTH}/attempts/0/status-details?expected_step_id={old_step}", json={}),
        409,
        "not the current one",
    )
    assert (await service.job())["status_details"] == {"a": 1, "b": 1}


async def test_c083_logs_are_chosen_by_number_id_or_current(service):
    job = await failed(service, lines=[("stdout", "first")])
    await ok(await service.client.post(f"{MOTH}/rerun"))
    await service.finish(await service.start(lines=[("stdout", "second")]))
    for selector, text in ((0, "first"), (job["attempt_id"], "first"), (1, "second"), ("current", "second")):
        page = await ok(await service.client.get(f"{MOTH}/logs?attempt_id={selector}"))
        assert [line["message"] for line in page["data"]] == [text]
    assert [line["message"] for line in (await ok(await service.client.get(f"{MOTH}/logs")))["data"]] == [
        "second"
    ]
    await refused(await service.client.get(f"{MOTH}/logs?attempt_id=2"), 404)
    await refused(await service.client.get(f"{MOTH}/logs?attempt_id=latest"), 422, "latest", "current")


async def test_a_stream_ends_with_its_attempt_although_the_job_runs_again(tmp_path):
    async with open_service(tmp_path) as service, served(service.app) as port:
        await service.create()
        step = await service.start(lines=[("stdout", "first")])
        async with follow(port) as reader:
            events = [await reader.event(), await reader.event()]
            await service.finish(step, Trigger.FAILED)
            await ok(await service.client.post(f"{MOTH}/rerun"))
            events += await reader.events()
        assert events[-1][0] == "end" and events[-1][2]["status"] == "error"
        assert [event[2]["message"] for event in events if event[0] == "message"] == ["first"]


async def test_a_job_is_changed_for_attempts_to_come(service):
    job = await failed(service)
    spec = {"spec": {"k": 2}, "platform_spec": steps_named("work", "more")}
    changed = await ok(await service.client.patch(MOTH, json={"description": "text", **spec}))
    assert changed["description"] == "text" and changed["spec"] == {"k": 2}
    assert [step["name"] for step in changed["platform_spec"]["steps"]] == ["work", "more"]
    assert changed["attempt_id"] == job["attempt_id"] and changed["status"] == "error"
    assert (await ok(await service.client.get(f"{MOTH}/attempts/0")))["spec"] == job["spec"]
    await ok(await service.client.post(f"{MOTH}/rerun"))
    assert (await ok(await service.client.get(f"{MOTH}/attempts/1")))["spec"] == {"k": 2}
    # What is not named stays, null clears.
    assert (await ok(await service.client.patch(MOTH, json={})))["description"] == "text"
    assert (await ok(await service.client.patch(MOTH, json={"description": None})))["description"] is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spec": {}}, ("together",)),
        ({"platform_spec": steps_named("work")}, ("together",)),
        ({"spec": {}, "platform_spec": {"steps": []}}, ("steps",)),
        ({"spec": {}, "platform_spec": steps_named("a-b", "a-b")}, ("a-b",)),
        ({"description": 5}, ("description",)),
        ({"description": "a\0b"}, ("NUL",)),
        ([], ("body",)),
    ],
)
async def test_a_change_is_checked_like_a_new_job(service, change, words):
    await service.create()
    await refused(await service.client.patch(MOTH, json=change), 422, *words)
    unknown = steps_named("work")
    unknown["steps"][0]["executor"]["profile"] = "nowhere"
    await refused(
        await service.client.patch(MOTH, json={"spec": {}, "platform_spec": unknown}), 422, "nowhere"
    )
    await refused(await service.client.patch(f"{JOBS}/mole", json={"description": "x"}), 404, "mole")


async def test_control_is_set_at_creation_and_later(service):
    made = await service.create(control={"pause_ttl_seconds": 60})
    assert made["control"] == {"pause_ttl_seconds": 60}
    changed = await ok(await service.client.patch(f"{MOTH}/control", json={"pause_ttl_seconds": 0}))
    assert changed["control"] == {"pause_ttl_seconds": 0} == (await service.job())["control"]
    for unchanged in ({}, {"pause_ttl_seconds": None}):
        kept = await ok(await service.client.patch(f"{MOTH}/control", json=unchanged))
        assert kept["control"] == {"pause_ttl_seconds": 0}
    wrong: object
    for wrong in (-1, 1.5, "soon", [], 1 << 40):
        answer = await service.client.patch(f"{MOTH}/control", json={"pause_ttl_seconds": wrong})
        await refused(answer, 422, "pause_ttl_seconds")
    answer = await service.client.patch(f"{MOTH}/control", json={"pause_ttl_seconds": 2_592_001})
    await refused(answer, 422, "pause_ttl_seconds is 2592001", "2592000 s")
    await refused(await service.client.patch(f"{JOBS}/mole/control", json={}), 404, "mole")
    plain = await service.create(name="mole")
    assert plain["control"] is None


async def test_a_pause_that_may_not_last_so_long_creates_nothing(service):
    answer = await service.client.post(JOBS, json=body(control={"pause_ttl_seconds": 3_000_000}))
    await refused(answer, 422, "2592000")
    assert (await service.client.get(MOTH)).status_code == 404


async def test_a_json_text_of_details_is_not_parsed_twice(service):
    """What a job's details hold travels to the attempt as it is."""
    await service.create()
    await service.client.patch(f"{MOTH}/status-details", json={"x": '{"a":1}', "n": 1})
    await service.finish(await service.start(), Trigger.FAILED)
    await ok(await service.client.post(f"{MOTH}/rerun"))
    assert (await service.job())["status_details"] == {"n": 1}
    old = await ok(await service.client.get(f"{MOTH}/attempts/0"))
    assert json.loads(old["status_details"]["x"]) == {"a": 1}


async def test_a_rerun_that_is_sent_twice_is_one(service):
    await failed(service)
    answers = [
        await ok(await service.client.post(f"{MOTH}/rerun", headers={"idempotency-key": "k-1"}))
        for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert (await ok(await service.client.get(f"{MOTH}/attempts")))["pagination"]["total_results"] == 2
    other = await service.client.post(f"{MOTH}/rerun?from_step=work", headers={"idempotency-key": "k-1"})
    await refused(other, 409, "k-1")
    await refused(
        await service.client.post(f"{MOTH}/rerun", headers={"idempotency-key": "k-2"}), 409, "created"
    )


async def test_a_page_of_large_attempts_is_sent_in_pieces(service):
    """Never held in memory as a whole: each attempt may have run another spec of megabytes."""
    await failed(service)
    for number in range(5):
        spec = {"spec": {"n": number, "pad": "x" * 3_000_000}, "platform_spec": steps_named("work")}
        await ok(await service.client.patch(MOTH, json=spec))
        await ok(await service.client.post(f"{MOTH}/rerun"))
        await service.client.post(f"{MOTH}/cancel")
    first = await service.db.read(attempts.list_attempts, "default", "moth", AttemptQuery())
    assert len(first.attempts) == 3 and len(first.rest) == 3
    page = await ok(await service.client.get(f"{MOTH}/attempts"))
    assert [one["seq"] for one in page["data"]] == [5, 4, 3, 2, 1, 0]
    assert page["pagination"]["current_page_size"] == 6 and page["sort"] == "-seq"
    assert [one["spec"].get("n") for one in page["data"]] == [4, 3, 2, 1, 0, None]

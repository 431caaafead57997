"""Pages of a log."""

import pytest

from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.http.cursors import base58
from nemo_jobs.store.steps import TaskChange
from tests.http.kit import JOBS, steps_named

LOGS = f"{JOBS}/moth/logs"
A, B = "task-" + "a" * 32, "task-" + "b" * 32


async def read(service, path=LOGS, **params):
    answer = await service.client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def texts(page):
    return [line["message"] for line in page["data"]]


@pytest.fixture
async def two_steps(service):
    """A finished job: step `one` printed 50 lines, step `two` 50 more."""
    await service.create(platform_spec=steps_named("one", "two"))
    for number, (step_name, task) in enumerate([("one", A), ("two", B)]):
        step = await service.start(task=task)
        assert step.name == step_name
        for line in range(50):
            service.clock.advance(0.001)
            await service.apply(step, lines=[("stdout", f"line {50 * number + line}")], task=task)
        await service.finish(step, Trigger.SUCCEEDED)
    return service


async def test_a_line_has_its_five_keys_and_stderr_is_told(service):
    await service.create()
    await service.start(lines=[("stdout", "ready"), ("stderr", "disk is slow")], task=A)
    page = await read(service)
    assert page["data"] == [
        {
            "timestamp": "2027-01-15T08:00:00.000000Z",
            "job": "moth",
            "job_step": "work",
            "job_task": A,
            "message": message,
        }
        for message in ("ready", "[stderr] disk is slow")
    ]
    assert (page["total"], page["next_page"], page["prev_page"]) == (2, None, None)


async def test_pages_of_long_lines_are_short_and_lose_none(service):
    """A page is built in memory, and so is what a follower is sent: neither grows with the lines."""
    await service.create()
    step = await service.start()
    lines = [f"{number:02}" + "x" * (1 << 20) for number in range(40)]
    for line in lines:
        await service.apply(step, lines=[("stdout", line)])
    await service.finish(step)
    seen, sizes = [], []
    cursor: dict[str, str] = {}
    while True:
        found = await read(service, limit=10_000, **cursor)
        seen += texts(found)
        sizes.append(len(found["data"]))
        if found["next_page"] is None:
            break
        cursor = {"page_cursor": found["next_page"]}
    assert seen == lines
    assert max(sizes) <= 9
    found = await read(service, tail=10_000)
    back = texts(found)
    assert 1 <= len(back) <= 9
    while found["prev_page"] is not None:
        found = await read(service, limit=10_000, page_cursor=found["prev_page"])
        assert 1 <= len(found["data"]) <= 9
        back = texts(found) + back
    assert back == lines


async def test_a_job_without_output_has_an_empty_page(service):
    await service.create()
    assert await read(service) == {"data": [], "total": 0, "next_page": None, "prev_page": None}


async def test_the_log_is_found_by_id_as_well(service):
    job = await service.create()
    await service.start(lines=[("stdout", "x")])
    assert texts(await read(service, f"{JOBS}/{job['id']}/logs")) == ["x"]


async def test_pages_follow_one_another_to_the_end(two_steps):
    found: list[str] = []
    cursor: dict[str, str] = {}
    pages = 0
    while True:
        page = await read(two_steps, limit=30, **cursor)
        found += texts(page)
        pages += 1
        assert page["total"] == 100
        if page["next_page"] is None:
            break
        cursor = {"page_cursor": page["next_page"]}
    assert pages == 4
    assert found == [f"line {n}" for n in range(100)]


async def test_previous_pages_lead_back_to_the_start(two_steps):
    page = await read(two_steps, limit=30)
    assert page["prev_page"] is None
    second = await read(two_steps, limit=30, page_cursor=page["next_page"])
    back = await read(two_steps, limit=30, page_cursor=second["prev_page"])
    assert texts(back) == texts(page)
    again = await read(two_steps, limit=30, page_cursor=back["next_page"])
    assert texts(again) == texts(second)


@pytest.mark.parametrize("count", [1, 50, 99, 100, 101, 10_000])
async def test_c027_tail_gives_exactly_the_newest_lines_oldest_first(two_steps, count):
    page = await read(two_steps, tail=count)
    wanted = [f"line {n}" for n in range(max(0, 100 - count), 100)]
    assert texts(page) == wanted
    assert page["total"] == 100
    assert page["next_page"] is None
    assert (page["prev_page"] is None) == (count >= 100)


async def test_c027_walking_back_from_a_tail_gives_the_whole_log(two_steps):
    page = await read(two_steps, tail=30)
    windows = [texts(page)]
    while page["prev_page"]:
        page = await read(two_steps, limit=30, page_cursor=page["prev_page"])
        windows.append(texts(page))
    assert [text for window in reversed(windows) for text in window] == [f"line {n}" for n in range(100)]


@pytest.mark.parametrize("tail", ["0", "-1", "10001", "x", ""])
async def test_c027_a_tail_out_of_bounds_is_422_and_names_the_parameter(two_steps, tail):
    answer = await two_steps.client.get(LOGS, params={"tail": tail})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["query", "tail"]


@pytest.mark.parametrize("limit", ["0", "10001", "1.5"])
async def test_a_limit_out_of_bounds_is_422(two_steps, limit):
    answer = await two_steps.client.get(LOGS, params={"limit": limit})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["query", "limit"]


@pytest.mark.parametrize("other", ["limit", "page_cursor"])
async def test_c027_tail_with_another_way_to_page_is_400_and_names_both(two_steps, other):
    answer = await two_steps.client.get(LOGS, params={"tail": "5", other: "5"})
    assert answer.status_code == 400
    assert "tail" in answer.json()["detail"]
    assert other in answer.json()["detail"]


async def test_c027_a_cursor_of_another_filter_or_job_is_refused(two_steps):
    cursor = (await read(two_steps, limit=5, step_id="one"))["next_page"]
    await two_steps.create(name="other")
    for path, params in [
        (LOGS, {}),
        (LOGS, {"step_id": "two"}),
        (LOGS, {"step_id": "one", "task_id": A}),
        (f"{JOBS}/other/logs", {}),
    ]:
        answer = await two_steps.client.get(path, params={**params, "page_cursor": cursor})
        assert answer.status_code == 422
        assert answer.json() == {"detail": "Invalid page cursor", "code": "invalid_page_cursor"}


async def test_the_order_of_checks_is_types_then_conflicts_then_job_then_cursor(service):
    get = service.client.get
    mole = f"{JOBS}/mole/logs"
    assert (await get(mole, params={"tail": "0", "limit": "5"})).status_code == 422
    assert (await get(mole, params={"tail": "1", "limit": "5"})).status_code == 400
    assert (await get(mole, params={"page_cursor": "?"})).status_code == 404
    await service.create()
    assert (await get(LOGS, params={"page_cursor": "?"})).status_code == 422


async def test_c083_each_filter_narrows_alone_and_together(two_steps):
    steps = {step["name"]: step for step in (await two_steps.job_status())["steps"]}
    first = [f"line {n}" for n in range(50)]
    for attempt in ({}, {"attempt_id": "0"}, {"attempt_id": "current"}):
        for step in ({}, {"step_id": "one"}, {"step_id": steps["one"]["id"]}):
            for task in ({}, {"task_id": A}, {"task_id": steps["one"]["tasks"][0]["id"]}):
                page = await read(two_steps, limit=1000, **attempt, **step, **task)
                assert texts(page) == (first if step or task else [f"line {n}" for n in range(100)])
                assert page["total"] == len(page["data"])
    assert texts(await read(two_steps, step_id="two", task_id=A)) == []


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"step_id": "three"}, "three"),
        ({"step_id": "platform-job-step-7neaYuHZyUq4Mdz2d9cVi4"}, "platform-job-step-7neaYuHZyUq4Mdz2d9cVi4"),
        ({"task_id": "task-nope"}, "task-nope"),
        ({"attempt_id": "7"}, "7"),
        ({"attempt_id": "-1"}, "-1"),
        ({"attempt_id": "99999999999"}, "99999999999"),
        (
            {"attempt_id": "platform-job-attempt-7neaYuHZyUq4Mdz2d9cVi4"},
            "platform-job-attempt-7neaYuHZyUq4Mdz2d9cVi4",
        ),
    ],
)
async def test_c083_what_the_job_does_not_have_is_404_never_all_lines(two_steps, params, word):
    answer = await two_steps.client.get(LOGS, params=params)
    assert answer.status_code == 404
    assert word in answer.json()["detail"]


async def test_c083_a_step_whose_turn_has_not_come_is_empty(service):
    await service.create(platform_spec=steps_named("one", "two"))
    await service.start(lines=[("stdout", "x")])
    assert texts(await read(service, step_id="two")) == []


@pytest.mark.parametrize("attempt", ["x", "1.0", "", "Current", "१"])
async def test_c083_an_attempt_that_is_none_of_the_forms_is_422(service, attempt):
    await service.create()
    assert (await service.client.get(LOGS, params={"attempt_id": attempt})).status_code == 422


async def test_the_attempt_is_selected_by_its_id(two_steps):
    job = await two_steps.job()
    assert len((await read(two_steps, attempt_id=job["attempt_id"], limit=1000))["data"]) == 100


def numbered(page, direction=0):
    return base58(f"[{page}, {direction}]".encode())


async def test_stored_cursors_of_older_services_still_lead_to_their_page(two_steps):
    page = await read(two_steps, limit=30, page_cursor="nQx83Xfi")
    assert texts(page) == [f"line {n}" for n in range(30, 60)]
    newest = await read(two_steps, limit=30, page_cursor=numbered(1, 1))
    assert texts(newest) == [f"line {n}" for n in range(99, 69, -1)]
    assert newest["next_page"] is None
    older = await read(two_steps, limit=30, page_cursor=newest["prev_page"])
    assert texts(older) == [f"line {n}" for n in range(69, 39, -1)]
    assert older["next_page"] == numbered(1, 1)
    last = await read(two_steps, limit=30, page_cursor=numbered(4, 1))
    assert texts(last) == [f"line {n}" for n in range(9, -1, -1)]
    assert last["prev_page"] is None
    assert texts(await read(two_steps, limit=30, page_cursor=numbered(9, 1))) == []


async def test_older_cursors_count_only_lines_of_the_filter(two_steps):
    page = await read(two_steps, limit=20, step_id="two", page_cursor=numbered(2))
    assert texts(page) == [f"line {n}" for n in range(70, 90)]
    newest = await read(two_steps, limit=20, step_id="one", page_cursor=numbered(3, 1))
    assert texts(newest) == [f"line {n}" for n in range(9, -1, -1)]


@pytest.mark.parametrize("page", [101, 10**9, 2**52])
async def test_a_page_past_the_end_is_empty_and_tells_the_true_total(two_steps, page):
    for direction in (0, 1):
        found = await read(two_steps, limit=10_000, page_cursor=numbered(page, direction))
        assert (found["data"], found["total"], found["next_page"] is None) == ([], 100, direction == 0)


async def test_a_cursor_shows_the_same_lines_when_more_have_come(service):
    await service.create()
    step = await service.start(lines=[("stdout", str(n)) for n in range(10)])
    cursor = (await read(service, limit=6))["next_page"]
    before = texts(await read(service, limit=6, page_cursor=cursor))
    await service.apply(step, lines=[("stdout", "10"), ("stdout", "11")])
    after = await read(service, limit=6, page_cursor=cursor)
    assert texts(after)[: len(before)] == before == ["6", "7", "8", "9"]
    assert texts(after) == ["6", "7", "8", "9", "10", "11"]


@pytest.mark.parametrize(
    "text",
    ["", " ", "a\x00b", "\x1b[31mred\x1b[0m", '"quoted" \\ back', "ünï ☃ 🎉", "\u2028\u2029", "x" * 100_000],
)
async def test_any_text_comes_back_as_it_was(service, text):
    await service.create()
    await service.start(lines=[("stdout", text)])
    assert texts(await read(service)) == [text.replace("\0", "\ufffd")]


async def test_a_task_that_was_only_reported_is_known(service):
    await service.create()
    step = await service.start()
    await service.apply(step, tasks=[TaskChange("task-other", 1, State.ACTIVE, {}, None, None)])
    assert texts(await read(service, task_id="task-other")) == []

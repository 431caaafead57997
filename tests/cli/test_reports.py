"""Reporting steps and tasks by hand, as a runner of one's own would."""

import json

import pytest

from tests.cli.conftest import Nemo
from tests.cli.scripted import Reply, scripted

STEP = {"id": "platform-job-step-1", "name": "work", "status": "active"}
TASK = {"id": "platform-job-task-1", "name": "task-1", "status": "pending"}
BASE = "/apis/jobs/v2/workspaces/default/jobs/moth"


def test_a_step_is_moved_with_its_details(nemo: Nemo) -> None:
    with scripted(Reply(body=STEP)) as server:
        ran = nemo(
            *("--base-url", server.url, "jobs", "steps", "update-status", "work", "--job", "moth"),
            *("--status", "error", "--error-details", '{"message": "no"}', "--status-details", '{"a": 1}'),
        )
        assert (ran.code, json.loads(ran.out)) == (0, STEP)
        (asked,) = server.seen
        assert (asked.method, asked.target) == ("PATCH", f"{BASE}/steps/work/status")
        assert asked.json == {
            "status": "error",
            "error_details": {"message": "no"},
            "status_details": {"a": 1},
        }


def test_a_task_is_reported_from_a_file_and_options_go_before_it(nemo: Nemo) -> None:
    with scripted(Reply(body=TASK)) as server:
        ran = nemo(
            *("--base-url", server.url, "jobs", "tasks", "create-or-update", "task-1"),
            *("--job", "moth", "--step", "work", "--status", "active"),
            *("--input-data", '{"status": "error", "error_stack": "boom"}'),
        )
        assert (ran.code, json.loads(ran.out)) == (0, TASK)
        (asked,) = server.seen
        assert (asked.method, asked.target) == ("PUT", f"{BASE}/steps/work/tasks/task-1")
        assert asked.json == {"status": "active", "error_stack": "boom"}


def test_a_task_needs_no_fields(nemo: Nemo) -> None:
    with scripted(Reply(body=TASK)) as server:
        words = ("jobs", "tasks", "create-or-update", "task-1", "--job", "moth", "--step", "work")
        assert nemo("--base-url", server.url, *words).code == 0
        assert server.seen[0].json == {}


def test_an_attempt_of_another_run_is_addressed(nemo: Nemo) -> None:
    with scripted(Reply(body=STEP)) as server:
        at = ("--base-url", server.url)
        nemo(*at, "jobs", "steps", "get", "work", "--job", "moth", "--attempt-id", "current")
        nemo(*at, "jobs", "tasks", "get", "t", "--job", "moth", "--step", "work", "--attempt-id", "a-1")
        nemo(
            *(*at, "jobs", "steps", "update-status", "work", "--job", "moth"),
            *("--status", "active", "--attempt-id", "a-1"),
        )
        assert [request.target for request in server.seen] == [
            f"{BASE}/attempts/current/steps/work",
            f"{BASE}/attempts/a-1/steps/work/tasks/t",
            f"{BASE}/attempts/a-1/steps/work/status",
        ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("steps", "update-status", "work", "--job", "m"), "status: required, but missing"),
        (("steps", "update-status", "work", "--job", "m", "--status", "done"), "is not one of"),
        (
            ("steps", "update-status", "work", "--job", "m", "--input-data", "{status: active, colour: red}"),
            "colour: unknown; known: error_details, expected_step_id, status, status_details",
        ),
        (
            ("tasks", "create-or-update", "t", "--job", "m", "--step", "s", "--input-data", "{status: 1}"),
            "status: must be text, not int (1)",
        ),
        (("tasks", "create-or-update", "t", "--job", "m"), "--step"),
        (("get-logs", "m", "--attempt-id", "first"), "neither a number from 0 nor 'platform-job-attempt-"),
        (("get-logs", "m", "--attempt-id", "-1"), "neither a number"),
    ],
)
def test_what_cannot_be_right_is_refused_before_it_is_sent(
    nemo: Nemo, words: tuple[str, ...], says: str
) -> None:
    with scripted(Reply(500)) as server:
        ran = nemo("--base-url", server.url, "jobs", *words)
        assert ran.code == 2
        assert says in ran.err
        assert server.seen == []


def test_the_code_of_a_report_is_shown(nemo: Nemo) -> None:
    ran = nemo(
        *("jobs", "steps", "update-status", "work", "--job", "moth"),
        *("--status", "active", "-f", "code"),
    )
    assert "client.update_job_step_status('work', job='moth', status='active')" in ran.out


def test_twice_verbose_shows_the_heads_of_answers(nemo: Nemo) -> None:
    reply = Reply(body=STEP, headers={"x-request-id": "r-17"})
    with scripted(reply) as server:
        words = ("--base-url", server.url, "jobs", "steps", "get", "work", "--job", "moth")
        assert "r-17" not in nemo("-v", *words).err
        assert "x-request-id: r-17" in nemo("-vv", *words).err

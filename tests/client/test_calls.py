"""Every call: what it sends, in both clients and by each of its names."""

from typing import Any

import pytest

from nemo_jobs.client import UNSET, BadAnswer, Conflict, NotFound, Unprocessable
from nemo_jobs.http.app import OPERATIONS
from nemo_jobs.http.routes import Routes
from tests.cli.scripted import Reply, job, page, scripted, tree
from tests.client.conftest import Connect

JOBS = "/apis/jobs/v2/workspaces/lab/jobs"
IN = "/apis/jobs/v2/workspaces/{workspace}"
FILESET = "/apis/files/v2/workspaces/{workspace}/filesets/{name}"
SPEC: dict[str, Any] = {"source": "s", "spec": {}, "platform_spec": {"steps": []}}
CREATE = {"name": "moth", **SPEC}
LISTED = {"data": [], "next_page": None, "prev_page": None, "total": 0, **page([])}

#: name, arguments, fields; then method, path and query, body.
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str, Any]] = [
    ("create_job", (), CREATE, "POST", JOBS, CREATE),
    ("create", (), {**CREATE, "description": None}, "POST", JOBS, CREATE),
    (
        "create_job",
        (),
        {**CREATE, "labels": {"a": "1"}, "custom_fields": {"x": 1, "labels": {"b": "2"}}},
        "POST",
        JOBS,
        {**CREATE, "custom_fields": {"x": 1, "labels": {"b": "2", "a": "1"}}},
    ),
    ("dry_run_job", (), SPEC, "POST", f"{JOBS}?dry_run=true", SPEC),
    ("get_job", ("moth",), {}, "GET", f"{JOBS}/moth", None),
    ("retrieve", ("moth",), {}, "GET", f"{JOBS}/moth", None),
    ("list_jobs", (), {"page": 2, "page_size": 5}, "GET", f"{JOBS}?page=2&page_size=5", None),
    ("list", (), {"sort": "-source"}, "GET", f"{JOBS}?sort=-source", None),
    ("list_jobs", (), {"workspace": "-"}, "GET", "/apis/jobs/v2/workspaces/-/jobs", None),
    ("update_job", ("m",), {"description": None}, "PATCH", f"{JOBS}/m", {"description": None}),
    ("update", ("m",), {"description": UNSET, "spec": {}, "platform_spec": {"steps": []}}, "PATCH",
     f"{JOBS}/m", {"spec": {}, "platform_spec": {"steps": []}}),
    ("update_job_control", ("m",), {"pause_ttl_seconds": 0}, "PATCH", f"{JOBS}/m/control",
     {"pause_ttl_seconds": 0}),
    ("delete_job", ("m",), {}, "DELETE", f"{JOBS}/m", None),
    ("delete", ("m",), {}, "DELETE", f"{JOBS}/m", None),
    ("cancel_job", ("m",), {}, "POST", f"{JOBS}/m/cancel", None),
    ("cancel", ("m",), {}, "POST", f"{JOBS}/m/cancel", None),
    ("pause_job", ("m",), {}, "POST", f"{JOBS}/m/pause", None),
    ("pause", ("m",), {}, "POST", f"{JOBS}/m/pause", None),
    ("resume_job", ("m",), {}, "POST", f"{JOBS}/m/resume", None),
    ("resume", ("m",), {}, "POST", f"{JOBS}/m/resume", None),
    ("rerun_job", ("m",), {}, "POST", f"{JOBS}/m/rerun", None),
    ("get_job_status", ("m",), {}, "GET", f"{JOBS}/m/status", None),
    ("get_status", ("m",), {}, "GET", f"{JOBS}/m/status", None),
    ("update_job_status_details", ("m", {"a": 1}), {}, "PATCH", f"{JOBS}/m/status-details", {"a": 1}),
    ("update_status_details", ("m", {}), {}, "PATCH", f"{JOBS}/m/status-details", {}),
    ("list_job_logs", ("m",), {"tail": 3, "attempt_id": 0}, "GET",
     f"{JOBS}/m/logs?tail=3&attempt_id=0", None),
    ("get_logs", ("m",), {"step_id": "s", "task_id": "t"}, "GET", f"{JOBS}/m/logs?step_id=s&task_id=t", None),
    ("list_job_attempts", ("m",), {"sort": "seq"}, "GET", f"{JOBS}/m/attempts?sort=seq", None),
    ("attempts.list", ("m",), {}, "GET", f"{JOBS}/m/attempts", None),
    ("get_job_attempt", ("current",), {"job": "m"}, "GET", f"{JOBS}/m/attempts/current", None),
    ("attempts.retrieve", ("a",), {"job": "m"}, "GET", f"{JOBS}/m/attempts/a", None),
    (
        "update_job_attempt_status_details",
        ("a", {"x": 1}),
        {"job": "m", "expected_step_id": "s1"},
        "PATCH",
        f"{JOBS}/m/attempts/a/status-details?expected_step_id=s1",
        {"x": 1},
    ),
    ("list_steps", ("m",), {"filter": {"status": ["error"]}}, "GET",
     f"{JOBS}/m/steps?filter=%7B%22status%22%3A%5B%22error%22%5D%7D", None),
    ("steps.list", ("-",), {}, "GET", f"{JOBS}/-/steps", None),
    ("list_steps", ("m",), {"attempt_id": "a"}, "GET", f"{JOBS}/m/attempts/a/steps", None),
    ("get_job_step", ("fit",), {"job": "m"}, "GET", f"{JOBS}/m/steps/fit", None),
    ("steps.retrieve", ("fit",), {"job": "m"}, "GET", f"{JOBS}/m/steps/fit", None),
    ("update_job_step_status", ("fit",), {"job": "m", "status": "active", "expected_step_id": "i"}, "PATCH",
     f"{JOBS}/m/steps/fit/status", {"status": "active", "expected_step_id": "i"}),
    ("steps.update_status", ("fit",), {"job": "m", "status": "error", "error_details": {}, "attempt_id": "a"},
     "PATCH", f"{JOBS}/m/attempts/a/steps/fit/status", {"status": "error", "error_details": {}}),
    ("list_job_step_tasks", ("fit",), {"job": "m"}, "GET", f"{JOBS}/m/steps/fit/tasks", None),
    ("tasks.list", ("fit",), {"job": "m"}, "GET", f"{JOBS}/m/steps/fit/tasks", None),
    ("get_job_step_task", ("t",), {"job": "m", "step": "fit"}, "GET", f"{JOBS}/m/steps/fit/tasks/t", None),
    ("tasks.retrieve", ("t",), {"job": "m", "step": "fit"}, "GET", f"{JOBS}/m/steps/fit/tasks/t", None),
    ("update_job_step_task", ("t",), {"job": "m", "step": "fit", "error_stack": "x"}, "PUT",
     f"{JOBS}/m/steps/fit/tasks/t", {"error_stack": "x"}),
    ("tasks.create_or_update", ("t",), {"job": "m", "step": "fit"}, "PUT", f"{JOBS}/m/steps/fit/tasks/t", {}),
    ("get_job_step", ("fit",), {"job": "m", "attempt_id": "a"}, "GET",
     f"{JOBS}/m/attempts/a/steps/fit", None),
    ("tasks.list", ("fit",), {"job": "m", "attempt_id": "a"}, "GET", f"{JOBS}/m/attempts/a/steps/fit/tasks",
     None),
    ("get_job_step_task", ("t",), {"job": "m", "step": "fit", "attempt_id": "a"}, "GET",
     f"{JOBS}/m/attempts/a/steps/fit/tasks/t", None),
    ("update_job_step_task", ("t",), {"job": "m", "step": "fit", "status": "active", "attempt_id": "a"},
     "PUT", f"{JOBS}/m/attempts/a/steps/fit/tasks/t", {"status": "active"}),
    ("create_job_result", ("w",), {"job": "m", "artifact_url": "lab/f#w"}, "POST", f"{JOBS}/m/results/w",
     {"artifact_url": "lab/f#w", "artifact_storage_type": "fileset"}),
    ("results.create", ("w",), {"job": "m", "artifact_url": "f#w", "attempt_id": "a"}, "POST",
     f"{JOBS}/m/results/w", {"artifact_url": "f#w", "artifact_storage_type": "fileset", "attempt_id": "a"}),
    ("list_job_results", ("m",), {"sort": "created_at"}, "GET", f"{JOBS}/m/results?sort=created_at", None),
    ("results.list", ("m",), {}, "GET", f"{JOBS}/m/results", None),
    ("get_job_result", ("w",), {"job": "m", "attempt_id": "a"}, "GET",
     f"{JOBS}/m/results/w?attempt_id=a", None),
    ("results.retrieve", ("w",), {"job": "m"}, "GET", f"{JOBS}/m/results/w", None),
    ("list_workspaces", (), {"page": 1}, "GET", "/apis/entities/v2/workspaces?page=1", None),
    ("workspaces.retrieve", ("w",), {}, "GET", "/apis/entities/v2/workspaces/w", None),
    ("create_workspace", ("w",), {}, "POST", "/apis/entities/v2/workspaces", {"name": "w"}),
    ("update_workspace", ("w",), {"description": None}, "PUT", "/apis/entities/v2/workspaces/w",
     {"description": None}),
    ("delete_workspace", ("w",), {}, "DELETE", "/apis/entities/v2/workspaces/w", None),
    ("projects.list", (), {}, "GET", "/apis/entities/v2/workspaces/lab/projects", None),
    ("create_project", ("p",), {"description": "d"}, "POST", "/apis/entities/v2/workspaces/lab/projects",
     {"name": "p", "description": "d"}),
    ("get_project", ("p",), {}, "GET", "/apis/entities/v2/workspaces/lab/projects/p", None),
    ("update_project", ("p",), {"description": None}, "PATCH", "/apis/entities/v2/workspaces/lab/projects/p",
     {"description": None}),
    ("delete_project", ("p",), {}, "DELETE", "/apis/entities/v2/workspaces/lab/projects/p", None),
    ("secrets.list", (), {}, "GET", "/apis/secrets/v2/workspaces/lab/secrets", None),
    ("create_secret", ("k", "v"), {}, "POST", "/apis/secrets/v2/workspaces/lab/secrets",
     {"name": "k", "value": "v"}),
    ("get_secret", ("k",), {}, "GET", "/apis/secrets/v2/workspaces/lab/secrets/k", None),
    ("update_secret", ("k",), {"value": "w"}, "PATCH", "/apis/secrets/v2/workspaces/lab/secrets/k",
     {"value": "w"}),
    ("delete_secret", ("k",), {}, "DELETE", "/apis/secrets/v2/workspaces/lab/secrets/k", None),
    ("create_fileset", ("f",), {"purpose": "model"}, "POST", "/apis/files/v2/workspaces/lab/filesets",
     {"name": "f", "purpose": "model"}),
    ("filesets.list", (), {}, "GET", "/apis/files/v2/workspaces/lab/filesets", None),
    ("get_fileset", ("f",), {}, "GET", "/apis/files/v2/workspaces/lab/filesets/f", None),
    ("update_fileset", ("f", {"description": "d"}), {}, "PATCH", "/apis/files/v2/workspaces/lab/filesets/f",
     {"description": "d"}),
    ("delete_fileset", ("f",), {}, "DELETE", "/apis/files/v2/workspaces/lab/filesets/f", None),
    ("list_files", ("f",), {"path": "a/b"}, "GET",
     "/apis/files/v2/workspaces/lab/filesets/f/files?path=a%2Fb", None),
    ("delete_file", ("a/ü b",), {"fileset": "f"}, "DELETE",
     "/apis/files/v2/workspaces/lab/filesets/f/-/a/%C3%BC%20b", None),
    ("access_secret", ("k",), {}, "GET", "/apis/secrets/v2/workspaces/lab/secrets/k/access", None),
    ("rotate_secrets_key", (), {"hand_over": False}, "POST", "/apis/secrets/v2/rotate-key",
     {"hand_over": False}),
    ("create_token", ("ann",), {"grants": {"lab": ("read",)}}, "POST", "/apis/auth/v2/tokens",
     {"principal": "ann", "grants": {"lab": ["read"]}}),
    ("list_tokens", (), {"page": 2}, "GET", "/apis/auth/v2/tokens?page=2", None),
    ("revoke_token", ("t",), {}, "DELETE", "/apis/auth/v2/tokens/t", None),
    ("sweep", (), {"dry_run": True}, "POST", "/apis/jobs/v2/sweep", {"dry_run": True}),
    ("get_gpus", (), {}, "GET", "/apis/jobs/v2/gpus", None),
    ("reserve_gpus", ("llama", 2), {"wait": True}, "POST", "/apis/jobs/v2/gpus/reservations",
     {"name": "llama", "count": 2, "wait": True}),
    ("get_gpu_reservation", ("a b",), {}, "GET", "/apis/jobs/v2/gpus/reservations/a%20b", None),
    ("release_gpus", ("llama",), {}, "DELETE", "/apis/jobs/v2/gpus/reservations/llama", None),
    ("get_service_status", (), {}, "GET", "/status", None),
    ("get_cluster_info", (), {}, "GET", "/cluster-info", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args", "fields", "method", "target", "body"), CALLS, ids=[call[0] for call in CALLS]
)
def test_a_call_sends_what_the_interface_says(
    connect: Connect,
    name: str,
    args: tuple[Any, ...],
    fields: dict[str, Any],
    method: str,
    target: str,
    body: Any,
) -> None:
    with scripted(Reply(body=LISTED)) as server:
        call: Any = connect(server.url, workspace="lab")
        for part in name.split("."):
            call = getattr(call, part)
        call(*args, **fields)
        (asked,) = server.seen
        assert (asked.method, asked.target) == (method, target)
        assert (asked.json if asked.body else None) == body


#: The spellings that programs of this family use.
SPELLINGS = """
    cancel_job create_job create_job_result delete_job download_job_result get_execution_profiles get_job
    get_job_result get_job_status get_job_step get_job_step_task list_job_logs list_job_results
    list_job_step_tasks list_jobs list_steps pause_job resume_job update_job_status_details
    update_job_step_status update_job_step_task
    create retrieve list delete cancel pause resume get_status get_logs list_execution_profiles
    update_status_details watch_job results.create results.list results.retrieve results.download steps.list
    steps.retrieve steps.update_status tasks.list tasks.retrieve tasks.create_or_update
    run wait follow_logs rerun
"""


@pytest.mark.parametrize("name", SPELLINGS.split())
def test_both_clients_know_every_spelling(connect: Connect, name: str) -> None:
    found: Any = connect("http://localhost:1").client
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


ROUTES = Routes(OPERATIONS)
#: What no method is for: `follow_logs`, downloads and bulk calls have tests of their own, the rest is
#: for tasks, monitors and browsers.
ELSEWHERE = {
    ("GET", "/apis/jobs/v2/execution-profiles"),
    ("GET", f"{IN}/jobs/{{name}}/logs/stream"),
    ("GET", f"{IN}/jobs/{{job}}/results/{{name}}/download"),
    *(("POST", f"{IN}/jobs:{verb}") for verb in ("cancel", "delete", "rerun")),
    ("GET", f"{FILESET}/-/{{path...}}"),
    ("HEAD", f"{FILESET}/-/{{path...}}"),
    ("PUT", f"{FILESET}/-/{{path...}}"),
    ("POST", f"{FILESET}/otlp/v1/logs"),
    ("POST", f"{FILESET}/otlp/v1/logs/query"),
    ("PUT", "/apis/entities/v2/workspaces/{workspace}/projects/{name}"),
    *(("GET", path) for path in ("/health/live", "/health/ready", "/metrics", "/openapi.json")),
    ("GET", "/apis/auth/discovery"),
    ("POST", "/apis/auth/v2/exchange"),
}


@pytest.mark.parametrize(("method", "target"), sorted({call[3:5] for call in CALLS}))
def test_every_call_has_a_route(method: str, target: str) -> None:
    ROUTES.find(method, target.partition("?")[0].encode())


def test_every_route_has_a_call() -> None:
    reached = {ROUTES.find(call[3], call[4].partition("?")[0].encode())[0] for call in CALLS}
    missing = {(found.method, found.path) for found in OPERATIONS if found not in reached} - ELSEWHERE
    assert missing == set()


def test_profiles_are_a_list(connect: Connect) -> None:
    with scripted(Reply(body=[{"provider": "subprocess"}])) as server:
        client = connect(server.url)
        assert client.get_execution_profiles() == client.list_execution_profiles()
        assert server.targets == ["GET /apis/jobs/v2/execution-profiles"] * 2


def test_keys_that_this_version_does_not_know_are_kept(connect: Connect) -> None:
    with scripted(Reply(body=job(from_tomorrow={"a": [1]}))) as server:
        assert connect(server.url).get_job("x")["from_tomorrow"] == {"a": [1]}


def test_text_of_every_alphabet_goes_both_ways(connect: Connect) -> None:
    text = "Ключ 鍵 🔑 \u202e \x00 \ud800"
    with scripted(lambda seen: Reply(201, seen.json)) as server:
        made = connect(server.url).create_job(**{**SPEC, "spec": {text: text}})
        assert made["spec"] == {text: text}


def test_a_create_carries_the_same_key_in_each_try_and_another_one_in_the_next_call(connect: Connect) -> None:
    with scripted(Reply(drop=True), Reply(503, {"detail": "later"}), Reply(201, job())) as server:
        client = connect(server.url)
        client.create_job(**CREATE)
        client.create_job(**CREATE)
        client.create_job(**CREATE, idempotency_key="mine")
        keys = [request.headers["idempotency-key"] for request in server.seen]
        assert keys[0] == keys[1] == keys[2]
        assert len({*keys}) == 3
        assert keys[-1] == "mine"


def test_bulk_calls_say_what_they_expect(connect: Connect) -> None:
    with scripted(Reply(body={"data": []})) as server:
        client = connect(server.url, workspace="lab")
        client.cancel_jobs({"status": ["active"]}, dry_run=True)
        client.delete_jobs('source:"x"', expected_count=3)
        client.rerun_jobs({"status": "error"})
        assert [(seen.target, seen.json) for seen in server.seen] == [
            (f"{JOBS}:cancel", {"filter": {"status": ["active"]}, "dry_run": True}),
            (f"{JOBS}:delete", {"filter": 'source:"x"', "expected_count": 3}),
            (f"{JOBS}:rerun", {"filter": {"status": "error"}}),
        ]


@pytest.mark.parametrize(("status", "kind"), [(404, NotFound), (409, Conflict), (422, Unprocessable)])
def test_errors_carry_status_and_detail(connect: Connect, status: int, kind: type[Exception]) -> None:
    headers = {"x-should-retry": "false", "retry-after": "7"}
    with scripted(Reply(status, {"detail": "no job 'x'", "code": "gone"}, headers)) as server:
        with pytest.raises(kind) as caught:
            connect(server.url).get_job("x")
        error: Any = caught.value
        assert (error.status, error.detail, error.code) == (status, "no job 'x'", "gone")
        assert (str(error), error.method, error.tries, error.retry_after) == ("no job 'x'", "GET", 1, 7)


def test_an_answer_of_another_shape_is_an_error_of_its_own(connect: Connect) -> None:
    with scripted(Reply(body=[1])) as server, pytest.raises(BadAnswer, match="list, not dict"):
        connect(server.url).get_job("x")


@pytest.mark.parametrize("call", ["get_job", "cancel_job", "delete_job", "get_workspace", "get_secret"])
def test_an_empty_name_is_refused_here(connect: Connect, call: str) -> None:
    with scripted(Reply(body={})) as server:
        with pytest.raises(ValueError, match="empty"):
            getattr(connect(server.url), call)("")
        assert server.seen == []


def test_names_never_leave_their_place(connect: Connect) -> None:
    names = ["a/b", "naïve", "..", ".", "a?b#c", "a b", "%2e", "x" * 300, "\n"]
    with scripted(Reply(body={})) as server:
        client = connect(server.url, workspace="lab")
        for name in names:
            client.get_job_step(name, job=name)
        for asked in server.seen:
            parts = asked.target.split("/")
            assert (len(parts), parts[8]) == (10, "steps")
            assert parts[7] not in (".", "..")


def test_a_token_that_would_break_out_of_its_header_is_refused(connect: Connect) -> None:
    with scripted(Reply(body={})) as server:
        for token in ("a\r\nx: y", "tökén"):
            with pytest.raises(ValueError, match="authorization") as caught:
                connect(server.url, token=token).get_job("x")
            assert token not in str(caught.value)
        assert server.seen == []


def test_waiting_looks_at_the_status_and_gives_the_job(connect: Connect) -> None:
    replies = [Reply(body=tree(state)) for state in ("created", "active", "active", "completed")]
    with scripted(*replies, Reply(body=job(status="completed"))) as server:
        client = connect(server.url)
        assert client.wait("moth-sorter", check=True)["status"] == "completed"
        base = "GET /apis/jobs/v2/workspaces/default/jobs"
        assert server.targets == [
            f"{base}/moth-sorter/status",
            # By its id: another job may take its name meanwhile.
            *[f"{base}/platform-job-1/status"] * 3,
            f"{base}/platform-job-1",
        ]
        assert client.pauses == pytest.approx([0.1, 0.15, 0.225])


def test_help_shows_names_and_results(connect: Connect) -> None:
    import inspect

    client = connect("http://localhost:1").client
    assert str(inspect.signature(client.get_job)).endswith("-> 'Job'")
    assert "check: 'bool' = False" in str(inspect.signature(client.wait))
    assert client.get_job.__doc__ == "One job, by name or id."

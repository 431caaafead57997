"""The commands one by one: what they send, print and answer, against scripted services."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Nemo
from tests.cli.scripted import Reply, Seen, job, line, page, scripted

SPEC = ("--source", "s", "--spec", "{}", "--platform-spec", '{"steps": [{"name": "a1"}]}')
JOBS = "/apis/jobs/v2/workspaces/default/jobs"


def test_a_list_is_json_in_a_pipe_with_omitted_keys_as_null(nemo: Nemo) -> None:
    with scripted(Reply(body=page([job("one")]))) as server:
        ran = nemo("--base-url", server.url, "jobs", "list")
        found = json.loads(ran.out)
        assert (ran.code, ran.err) == (0, "")
        assert list(found) == ["data", "sort", "pagination"]
        assert found["data"][0]["project"] is None
        assert found["data"][0]["reason"] is None
        assert server.targets == [f"GET {JOBS}"]


def test_global_options_work_before_and_after_the_command(nemo: Nemo) -> None:
    with scripted(Reply(body=page([job("one")]))) as server:
        before = nemo("--base-url", server.url, "-f", "raw", "jobs", "list").out
        after = nemo("jobs", "list", "-f", "raw", "--base-url", server.url).out
        between = nemo("jobs", "--base-url", server.url, "list", "--output", "raw").out
        assert before == after == between
        assert before.count("\n") == 1


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("table", "NAME  DESCRIPTION  STATUS   CREATED_AT\n"),
        (
            "markdown",
            "| name | description | status | created_at |\n| --- | --- | --- | --- |\n| one | a\\|b |",
        ),
        ("csv", "name,description,status,created_at\none,a|b,created,2027-03-04T09:15:27.104233Z\n"),
        ("yaml", "data:\n- id: platform-job-one\n"),
        ("raw", '{"data":[{"id":"platform-job-one"'),
        ("json", '{\n  "data": [\n'),
    ],
)
def test_every_format_of_a_list(nemo: Nemo, form: str, expected: str) -> None:
    with scripted(Reply(body=page([job("one", description="a|b")]))) as server:
        ran = nemo("--base-url", server.url, "jobs", "list", "-f", form)
        assert ran.code == 0
        assert ran.out.startswith(expected)


def test_a_status_that_no_job_can_have_is_told(nemo: Nemo) -> None:
    with scripted(Reply(body=page([]))) as server:
        words = ("--base-url", server.url, "jobs", "list", "-f", "json", "--filter.status")
        assert nemo(*words, "error").err == ""
        ran = nemo(*words, "complete", "--filter.status", "error")
        assert (ran.code, json.loads(ran.out)["data"]) == (0, [])
        assert "'complete' is no status of a job, so none matches" in ran.err
        assert "completed" in ran.err


def test_columns_are_chosen_by_name(nemo: Nemo) -> None:
    with scripted(Reply(body=page([job("one")]))) as server:
        base = ("--base-url", server.url, "jobs", "list", "-f", "csv")
        assert nemo(*base, "-c", "name, status").out == "name,status\none,created\n"
        assert nemo(*base, "-c", "all").out.startswith("id,attempt_id,name,workspace")
        ran = nemo(*base, "-c", "nmae")
        assert (ran.code, ran.out) == (2, "")
        assert "no column 'nmae'; there are: id," in ran.err


def test_c076_a_list_says_when_there_is_more(nemo: Nemo) -> None:
    with scripted(Reply(body=page([job(str(n)) for n in range(10)], total=57))) as server:
        for form in ("table", "json"):
            ran = nemo("--base-url", server.url, "jobs", "list", "-f", form)
            assert ran.err == "showing 10 of 57 jobs; --all-pages shows all, --page N another page\n"
        assert json.loads(ran.out)["pagination"]["total_results"] == 57


def test_c076_all_pages_are_merged_and_nothing_is_shown_twice(nemo: Nemo) -> None:
    def script(seen: Seen) -> Reply:
        number = int(match[1]) if (match := re.search(r"[?&]page=(\d+)", seen.target)) else 1
        names = {1: ["a", "b"], 2: ["b", "c"], 3: ["d"]}[number]
        return Reply(body=page([job(name) for name in names], total=5, number=number, size=2))

    with scripted(script) as server:
        ran = nemo("--base-url", server.url, "jobs", "list", "--all-pages")
        found = json.loads(ran.out)
        assert [item["name"] for item in found["data"]] == ["a", "b", "c", "d"]
        assert found["pagination"]["total_results"] == 4
        assert ran.err == ""
        ran = nemo("--base-url", server.url, "jobs", "list", "--all-pages", "--stream")
        assert [json.loads(text)["name"] for text in ran.out.splitlines()] == ["a", "b", "c", "d"]


def test_filters_join_and_reach_the_service_as_json(nemo: Nemo) -> None:
    from urllib.parse import parse_qs, urlsplit

    def sent(*options: str) -> Any:
        with scripted(Reply(body=page([]))) as server:
            assert nemo("--base-url", server.url, "jobs", "list", *options).code == 0
            return parse_qs(urlsplit(server.seen[0].target).query).get("filter", [None])[0]

    assert json.loads(sent("--filter.status", "error", "--filter.status", "paused")) == {
        "status": ["error", "paused"]
    }
    assert sent("--filter", 'source~"night"') == 'source~"night"'
    assert json.loads(sent("--filter", '{"name": "x"}', "--filter.source", "s")) == {
        "$and": [{"name": "x"}, {"source": "s"}]
    }
    assert nemo("jobs", "list", "--filter", "name:x", "--filter.source", "s").code == 2


@pytest.mark.parametrize(
    ("verb", "state", "told"),
    [
        ("cancel", "completed", True),
        ("cancel", "cancelling", False),
        ("pause", "error", True),
        ("pause", "pausing", False),
        ("resume", "pausing", True),
        ("resume", "resuming", False),
    ],
)
def test_an_act_that_changes_nothing_is_told(nemo: Nemo, verb: str, state: str, told: bool) -> None:
    with scripted(Reply(body=job("one", status=state))) as server:
        ran = nemo("--base-url", server.url, "jobs", verb, "one")
        assert (ran.code, json.loads(ran.out)["status"]) == (0, state)
        assert ran.err == (f"job 'one' is {state}: there was nothing to {verb}\n" if told else "")


@pytest.mark.parametrize("command", ["get", "get-status", "cancel", "pause", "resume"])
def test_commands_on_one_job(nemo: Nemo, command: str) -> None:
    paths = {"get": "GET {}", "get-status": "GET {}/status"}
    with scripted(Reply(body=job())) as server:
        ran = nemo("--base-url", server.url, "jobs", command, "moth-sorter", "--workspace", "lab")
        path = "/apis/jobs/v2/workspaces/lab/jobs/moth-sorter"
        assert server.targets == [paths.get(command, f"POST {{}}/{command}").format(path)]
        assert (ran.code, json.loads(ran.out), ran.err) == (0, job(), "")


def test_a_single_object_has_no_table(nemo: Nemo, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(Reply(body=job())) as server:
        ran = nemo("--base-url", server.url, "jobs", "get", "x", "-f", "table")
        assert (ran.code, ran.out) == (2, "")
        monkeypatch.setenv("NHX_OUTPUT_FORMAT", "table")
        assert json.loads(nemo("--base-url", server.url, "jobs", "get", "x").out) == job()
        assert nemo("--base-url", server.url, "jobs", "get", "x", "-f", "yaml").out.startswith("id: platform")


def test_code_prints_python_and_sends_nothing(nemo: Nemo) -> None:
    ran = nemo("jobs", "get", "x", "-f", "code", "--workspace", "lab")
    assert ran.out == (
        "from nemo_jobs.client import JobsClient\n\n"
        "client = JobsClient('http://localhost:8080', workspace='lab')\n"
        "answer = client.get_job('x')\n"
    )
    compile(nemo("jobs", "create", "x", *SPEC, "-f", "code").out, "code", "exec")
    compile(nemo("jobs", "list", "-f", "code", "--filter.status", "error").out, "code", "exec")
    assert nemo("jobs", "tail", "-f", "x", "--output-format", "code").code == 0


def test_delete_confirms_on_stderr(nemo: Nemo) -> None:
    with scripted(Reply(204)) as server:
        ran = nemo("--base-url", server.url, "jobs", "delete", "x")
        assert (ran.code, ran.out, ran.err) == (0, "", "deleted job 'x'\n")


def test_status_details_print_null(nemo: Nemo) -> None:
    with scripted(Reply(200, b"null")) as server:
        ran = nemo("--base-url", server.url, "jobs", "update-status-details", "x", "--body", '{"a": 1}')
        assert (ran.code, ran.out, server.seen[0].json) == (0, "null\n", {"a": 1})
        assert nemo("jobs", "update-status-details", "x").code == 2
        assert nemo("jobs", "update-status-details", "x", "--body", "[1]").code == 2


def test_create_takes_fields_from_options_and_file(nemo: Nemo, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("source: file\nspec: {}\nplatform_spec:\n  steps: [{name: a1}]\ndescription: old\n")
    with scripted(Reply(201, job())) as server:
        ran = nemo(
            *("--base-url", server.url, "jobs", "create", "mine", "--input-file", str(file)),
            *("--description", "new"),
        )
        assert ran.code == 0
        assert server.seen[0].json == {
            "name": "mine",
            "source": "file",
            "spec": {},
            "platform_spec": {"steps": [{"name": "a1"}]},
            "description": "new",
        }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "source: required, but missing\n  spec: required, but missing\n  platform_spec: required"),
        ((*SPEC, "--wait", "--watch"), "--wait and --watch can't go together"),
        ((*SPEC, "--timeout", "0"), "x>=1"),
        (("--input-data", "{sorce: x}"), "sorce: unknown; known: custom_fields, description"),
        (("--input-data", "source: [1]"), "source: must be text, not list"),
        (("--input-data", "source: 1\nsource: 2"), "the key 'source' is written twice"),
        (("--input-data", '{"a": 1, "a": 2}'), "the key 'a' is written twice"),
        (("--input-data", "- just\n- a list"), "must be an object"),
        (("--input-data", "{"), "is neither JSON nor YAML"),
        (("--input-file", "/nonexistent/x.yaml"), "can't be read: No such file"),
        (("--platform-spec", "{"), "is not JSON"),
        (("--spec", "[]"), "must be a JSON object"),
        (("",), "is empty"),
    ],
)
def test_c025_wrong_input_exits_with_2_and_lists_the_problems(
    nemo: Nemo, words: tuple[str, ...], says: str
) -> None:
    ran = nemo("jobs", "create", *words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_c088_a_missing_name_is_made_before_the_first_try(nemo: Nemo) -> None:
    taken = Reply(409, {"detail": "job name is taken"}, {"x-should-retry": "false"})
    with scripted(Reply(drop=True), taken, lambda seen: Reply(body=job("found"))) as server:
        ran = nemo("--base-url", server.url, "jobs", "create", *SPEC)
        names = [request.json["name"] for request in server.seen[:2]]
        assert names[0] == names[1]
        assert re.fullmatch(r"s-[a-z0-9]{8}", names[0])
        assert server.targets[2] == f"GET {JOBS}/{names[0]}"
        assert (ran.code, json.loads(ran.out)["name"]) == (0, "found")


def test_c088_with_a_given_name_a_second_try_says_that_the_job_may_be_there(nemo: Nemo) -> None:
    taken = Reply(409, {"detail": "job name 'mine' is taken"}, {"x-should-retry": "false"})
    with scripted(Reply(drop=True), taken) as server:
        ran = nemo("--base-url", server.url, "jobs", "create", "mine", *SPEC)
        assert ran.code == 3
        assert "job name 'mine' is taken" in ran.err
        assert "an earlier try got no answer and may have created it" in ran.err
    with scripted(taken) as server:
        ran = nemo("--base-url", server.url, "jobs", "create", "mine", *SPEC)
        assert (ran.code, ran.err) == (3, "error: conflict (409): job name 'mine' is taken\n")


def test_c048_run_sends_argv_and_variables_as_they_are(nemo: Nemo) -> None:
    argv = ["a b", "$HOME", "$(PATH)", "`id`", "*", "", "x\ny", "--", "é", "-f", "--name", "caf\udcc3\udca9"]
    with scripted(Reply(201, job())) as server:
        ran = nemo(
            *("--base-url", server.url, "jobs", "run", "--name", "mine", "-e", "A=b=$c", "-e", "E="),
            *("--profile", "big", "--", "python3", *argv),
        )
        assert ran.code == 0
        sent = server.seen[0].json
        (step,) = sent["platform_spec"]["steps"]
        assert step["executor"] == {
            "provider": "subprocess",
            "profile": "big",
            "command": ["python3", *argv[:-1], "café"],
        }
        assert step["environment"] == [{"name": "A", "value": "b=$c"}, {"name": "E", "value": ""}]
        assert sent["name"] == "mine"


def test_run_takes_options_of_the_command_without_dashes_in_front(nemo: Nemo) -> None:
    with scripted(Reply(201, job())) as server:
        assert nemo("--base-url", server.url, "jobs", "run", "ls", "-l", "--help").code == 0
        assert server.seen[0].json["platform_spec"]["steps"][0]["executor"]["command"] == [
            "ls",
            "-l",
            "--help",
        ]
    assert nemo("jobs", "run").code == 2
    assert nemo("jobs", "run", "--env", "novalue", "--", "x").code == 2
    ran = nemo("jobs", "run", "--", "\udcff")
    assert (ran.code, "must be UTF-8" in ran.err) == (2, True)


def log_page(*lines: Any, following: str | None = None, total: int = 0) -> dict[str, Any]:
    return {"data": list(lines), "total": total or len(lines), "next_page": following, "prev_page": None}


def test_logs_as_json_keep_everything_and_as_text_nothing_that_acts(nemo: Nemo) -> None:
    nasty = "\x1b[31mred\x1b[0m \x9b2J \x7f ö"
    with scripted(Reply(body=log_page(line(nasty)))) as server:
        ran = nemo("--base-url", server.url, "jobs", "get-logs", "x")
        assert json.loads(ran.out)["data"][0]["message"] == nasty
        assert not set(ran.out) & set("\x1b\x9b\x7f")
        ran = nemo("--base-url", server.url, "jobs", "get-logs", "x", "-f", "csv")
        assert ran.out == "timestamp,message\n2027-03-04T09:15:00.000000Z,red   ö\n"


def test_all_pages_of_a_log_end_at_null(nemo: Nemo) -> None:
    pages = [log_page(line(str(n)), following=f"c{n}") for n in range(3)] + [log_page(line("end"))]
    replies = [Reply(body=item) for item in pages]
    with scripted(*replies) as server:
        ran = nemo("--base-url", server.url, "jobs", "get-logs", "x", "--all-pages")
        assert json.loads(ran.out) == {
            "data": [*(line(str(n)) for n in range(3)), line("end")],
            "next_page": None,
        }
    with scripted(*replies) as server:
        ran = nemo("--base-url", server.url, "jobs", "get-logs", "x", "--all-pages", "--stream")
        assert [json.loads(text)["message"] for text in ran.out.splitlines()] == ["0", "1", "2", "end"]


def test_a_log_page_says_when_there_is_more(nemo: Nemo) -> None:
    with scripted(Reply(body=log_page(line("a"), following="c", total=9))) as server:
        ran = nemo("--base-url", server.url, "jobs", "get-logs", "x", "--limit", "1")
        assert ran.err == "showing 1 of 9 lines; --all-pages shows all, --page-cursor the next page\n"


def test_c083_each_filter_of_a_log_is_sent_and_an_empty_answer_is_told(nemo: Nemo) -> None:
    for command in ("get-logs", "tail"):
        with scripted(Reply(body=log_page())) as server:
            ran = nemo(
                *("--base-url", server.url, "jobs", command, "x", "--attempt-id", "1"),
                *("--step-id", "s1", "--task-id", "t1"),
            )
            assert "attempt_id=1&step_id=s1&task_id=t1" in server.seen[0].target
            assert "no lines for" in ran.err
        assert nemo("jobs", command, "x", "--attempt-id", "first").code == 2


def test_tail_prints_local_time_step_task_and_message(nemo: Nemo, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        with scripted(Reply(body=log_page(line("ready"), line("\x1b[2Jnext", 1)))) as server:
            ran = nemo("--base-url", server.url, "jobs", "tail", "x", "-n", "2")
            assert ran.out == "[14:45:00] step-0/task-1 | ready\n[14:45:01] step-0/task-1 | next\n"
            assert ran.err == "times are local: IST (UTC+05:30)\n"
            assert server.seen[0].target.endswith("?tail=2")
            as_json = nemo("--base-url", server.url, "-f", "json", "jobs", "tail", "x")
            assert json.loads(as_json.out)["data"][0]["timestamp"] == "2027-03-04T09:15:00.000000Z"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("count", ["0", "-1", "10001", "x"])
def test_c027_a_wrong_number_of_lines_is_refused(nemo: Nemo, count: str) -> None:
    assert nemo("jobs", "tail", "x", "-n", count).code == 2
    assert nemo("jobs", "get-logs", "x", "--tail", count).code == 2
    assert nemo("jobs", "get-logs", "x", "--tail", "5", "--limit", "5").code == 2


def test_steps_and_tasks(nemo: Nemo) -> None:
    base = f"GET {JOBS}/moth/steps"
    with scripted(Reply(body=page([{"id": "s", "name": "fit", "workspace": "default"}]))) as server:
        assert nemo("--base-url", server.url, "jobs", "steps", "list", "moth", "-f", "csv").out == (
            "name,workspace,created_at\nfit,default,\n"
        )
        nemo("--base-url", server.url, "jobs", "steps", "get", "fit", "--job", "moth")
        nemo("--base-url", server.url, "jobs", "tasks", "list", "fit", "--job", "moth")
        nemo("--base-url", server.url, "jobs", "tasks", "get", "t1", "--job", "moth", "--step", "fit")
        assert server.targets == [base, f"{base}/fit", f"{base}/fit/tasks", f"{base}/fit/tasks/t1"]


def test_profiles_are_a_bare_list(nemo: Nemo) -> None:
    profile = {"provider": "subprocess", "profile": "default", "backend": "subprocess", "config": {"a": 1}}
    with scripted(Reply(body=[profile])) as server:
        base = ("--base-url", server.url, "jobs", "list-execution-profiles")
        assert json.loads(nemo(*base).out) == [profile]
        assert nemo(*base, "-f", "table").out.splitlines()[0].split() == [
            "PROFILE",
            "BACKEND",
            "PROVIDER",
            "CONFIG",
        ]


def test_prune_deletes_what_ended_long_ago_one_by_one(nemo: Nemo) -> None:
    def script(seen: Seen) -> Reply:
        if seen.method == "GET":
            return Reply(body=page([job("old"), job("kept"), job("gone"), job("last")]))
        name = seen.target.rsplit("/", 1)[1]
        return {
            "kept": Reply(409, {"detail": "not ended"}, {"x-should-retry": "false"}),
            "gone": Reply(404),
        }.get(name, Reply(204))

    with scripted(script) as server:
        ran = nemo("--base-url", server.url, "jobs", "prune", "--older-than", "30d", "--dry-run")
        assert (ran.out.split(), len(server.seen)) == (["old", "kept", "gone", "last"], 1)
        ran = nemo("--base-url", server.url, "jobs", "prune", "--older-than", "30d")
        assert ran.out.split() == ["old", "last"]
        assert ran.err == "kept 'kept': not ended\ndeleted 2 jobs\n"
    for wrong in ("30", "d", "-1d", "1y", ""):
        assert nemo("jobs", "prune", "--older-than", wrong).code == 2


FAILURES = [
    (400, "bad request (400)"),
    (401, "not signed in (401)"),
    (403, "not allowed (403)"),
    (404, "not found (404)"),
    (409, "conflict (409)"),
    (422, "refused value (422)"),
    (418, "refused (418)"),
]


@pytest.mark.parametrize(("status", "kind"), FAILURES)
@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("get", "x"),
        ("get-status", "x"),
        ("cancel", "x"),
        ("pause", "x"),
        ("resume", "x"),
        ("delete", "x"),
        ("get-logs", "x"),
        ("tail", "x"),
        ("tail", "-f", "x"),
        ("list-execution-profiles",),
        ("create", *SPEC),
        ("run", "--", "true"),
        ("steps", "list", "x"),
        ("prune", "--older-than", "1d"),
    ],
)
def test_c025_what_the_service_refuses_exits_with_3(
    nemo: Nemo, words: tuple[str, ...], status: int, kind: str
) -> None:
    reply = Reply(status, {"detail": "because"}, {"x-should-retry": "false"})
    with scripted(reply) as server:
        ran = nemo("--base-url", server.url, "jobs", *words)
        assert (ran.code, ran.out) == (3, "")
        assert f"error: {kind}: because\n" in ran.err


def test_c025_an_answer_that_makes_no_sense_exits_with_3(nemo: Nemo) -> None:
    with scripted(Reply(200, b"<html>")) as server:
        ran = nemo("--base-url", server.url, "jobs", "list")
        assert (ran.code, ran.out) == (3, "")
        assert "unexpected answer" in ran.err


@pytest.mark.parametrize("words", [("jobs", "list"), ("jobs", "run", "--", "true"), ("workspaces", "list")])
def test_a_service_that_does_not_run_is_told_in_one_line(nemo: Nemo, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    ran = nemo("--base-url", url, *words)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == f"error: no service is running at {url}; start one with: nemo services run\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("jbos",), "no command 'jbos'; did you mean 'jobs'?"),
        (("jobs", "lst"), "did you mean 'list'?"),
        (("jobs", "list", "--pag", "1"), "No such option"),
        (("jobs", "get"), "Missing argument 'NAME'"),
        (("--base-url", "localhost:8080", "jobs", "list"), "is not a base URL"),
        (("-f", "xml", "jobs", "list"), "'xml' is not one of"),
        (("jobs", "list", "--page", "0"), "x>=1"),
        (("jobs", "list", "-f", "table", "--stream"), "--stream goes with"),
    ],
)
def test_c025_wrong_usage_exits_with_2(nemo: Nemo, words: tuple[str, ...], says: str) -> None:
    with scripted(Reply(body=page([]))) as server:
        ran = nemo("--base-url", server.url, *words)
        assert (ran.code, ran.out) == (2, "")
        assert says in ran.err


def test_verbose_shows_requests_and_never_the_token(nemo: Nemo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NHX_ACCESS_TOKEN", "s3cret")
    with scripted(Reply(body=page([]))) as server:
        ran = nemo("--base-url", server.url, "jobs", "list", "-v")
        assert json.loads(ran.out)["data"] == []
        assert f"GET {JOBS} -> 200 in" in ran.err
        assert "s3cret" not in ran.err
        assert server.seen[0].headers["authorization"] == "Bearer s3cret"


def test_workspaces(nemo: Nemo) -> None:
    base = "/apis/entities/v2/workspaces"
    with scripted(
        Reply(body={**page([{"id": "w", "name": "lab"}]), "message": "ok", "name": "lab"})
    ) as server:
        assert nemo("--base-url", server.url, "workspaces", "list", "-f", "csv").out == (
            "name,description,created_at\nlab,,\n"
        )
        assert nemo("--base-url", server.url, "workspaces", "create", "lab", "--description", "d").code == 0
        assert nemo("--base-url", server.url, "workspaces", "get", "lab").code == 0
        assert (
            nemo("--base-url", server.url, "workspaces", "delete", "lab").err == "deleted workspace 'lab'\n"
        )
        assert server.targets == [f"GET {base}", f"POST {base}", f"GET {base}/lab", f"DELETE {base}/lab"]
        assert server.seen[1].json == {"name": "lab", "description": "d"}


def test_config_set_writes_a_context_that_works(nemo: Nemo, tmp_path: Path) -> None:
    ran = nemo("config", "set", "--base-url", "http://lab.example:1", "--workspace", "moths")
    assert (ran.code, ran.out) == (0, "")
    shown = json.loads(nemo("config", "show").out)
    assert (shown["base_url"], shown["workspace"]) == ("http://lab.example:1", "moths")
    file = tmp_path / "config" / "nhx" / "config.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    nemo("config", "set", "--context", "far", "--base-url", "http://far.example", "--activate")
    nemo("config", "set", "--context", "third", "--base-url", "http://third.example")
    assert json.loads(nemo("config", "show").out)["base_url"] == "http://far.example"
    assert json.loads(nemo("--context", "default", "config", "show").out)["workspace"] == "moths"
    assert nemo("config", "set", "--base-url", "nonsense").code == 2
    assert nemo("config", "set").code == 2


def test_config_check_exits_with_0_or_2(nemo: Nemo, tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text("platform: {runtime: none}\nsecrets: {a: 1}\n")
    ran = nemo("config", "check", str(good))
    assert (ran.code, "subprocess/default" in ran.out) == (0, True)
    assert "warning: " in ran.err
    bad = tmp_path / "bad.yaml"
    bad.write_text("platform: {runtime: nonne}\njobs: {reconcile_interval_secods: 2}\nsecrets: {}\n")
    ran = nemo("config", "check", str(bad))
    assert "warning: " in ran.err and "bad.yaml:3" in ran.err
    assert (ran.code, ran.out) == (2, "")
    assert "bad.yaml:1" in ran.err
    assert "bad.yaml:2" in ran.err
    assert nemo("config", "check", str(tmp_path / "none.yaml")).code == 2

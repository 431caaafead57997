"""The commands against a real service with real processes."""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.client import JobsClient
from tests.e2e.service import NEMO, Service

Run = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(tmp_path_factory.mktemp("cli"), environ={"TZ": "Asia/Kolkata"})
    try:
        yield started.start()
    finally:
        started.close()


@pytest.fixture
def environ(service: Service, tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "TZ": "America/New_York",
        "NHX_BASE_URL": service.url,
    }


@pytest.fixture
def nemo(environ: dict[str, str]) -> Any:
    def run(*words: str, **more: str) -> Run:
        return subprocess.run(
            [NEMO, *words], env=environ | more, capture_output=True, text=True, timeout=50, check=False
        )

    return run


def ok(ran: Run) -> Any:
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def spec(*scripts: str) -> str:
    steps = [
        {"name": f"step-{n}", "executor": {"provider": "subprocess", "command": ["sh", "-c", script]}}
        for n, script in enumerate(scripts)
    ]
    return json.dumps({"source": "tests", "spec": {}, "platform_spec": {"steps": steps}})


def test_c048_argv_and_variables_reach_the_program_byte_for_byte(nemo: Any) -> None:
    argv = ["a b", "$HOME", "$(PATH)", "`id`", "*", "", "x\ny", "--", "é", '"', "'", "\\"]
    show = "import sys, os, json; print(json.dumps([sys.argv[1:], os.environ['V']]))"
    ran = nemo("jobs", "run", "-e", "V=a=$b `c`", "--follow", "--", "python3", "-c", show, *argv)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [argv, "a=$b `c`"]


def test_c025_the_exit_code_is_the_truth(nemo: Any) -> None:
    assert (
        nemo("jobs", "run", "--name", "fails", "--follow", "--", "sh", "-c", "echo bad; exit 9").returncode
        == 1
    )
    assert nemo("jobs", "watch", "fails").returncode == 1
    assert "bad" in nemo("jobs", "get-logs", "fails").stdout
    assert nemo("jobs", "get-logs", "fails").returncode == 0
    assert nemo("jobs", "create", "works", "--input-data", spec("true"), "--wait").returncode == 0
    ok(nemo("jobs", "run", "--name", "stopped", "--", "sleep", "60"))
    ok(nemo("jobs", "cancel", "stopped"))
    assert nemo("jobs", "watch", "stopped").returncode == 1
    for words in (("get", "nothing"), ("get-logs", "nothing"), ("tail", "nothing"), ("cancel", "nothing")):
        assert nemo("jobs", *words).returncode == 3
    assert nemo("jobs", "get", "works", "--workspace", "elsewhere").returncode == 3
    assert nemo("jobs", "watch", "nothing").returncode == 1


def test_create_with_watch_prints_the_job_and_then_its_progress(nemo: Any) -> None:
    ran = nemo("jobs", "create", "seen", "--input-data", spec("echo one", "echo two"), "--watch")
    assert ok(ran)["name"] == "seen"
    assert "step-0/task-" in ran.stderr
    assert "| two" in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith("job seen: completed after")


@pytest.fixture(scope="module")
def hundred(service: Service, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job of two steps with 50 lines each."""
    script = 'i=0; while [ $i -lt 50 ]; do echo "{} $i"; i=$((i+1)); done'
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "NHX_BASE_URL": service.url}
    data = spec(script.format("first"), script.format("second"))
    subprocess.run(
        [NEMO, "jobs", "create", "hundred", "--input-data", data, "--wait"],
        env=environ,
        capture_output=True,
        timeout=50,
        check=True,
    )
    return "hundred"


def test_c027_tail_gives_exactly_as_many_lines_as_asked(nemo: Any, hundred: str) -> None:
    whole = [item["message"] for item in ok(nemo("jobs", "get-logs", hundred, "--all-pages"))["data"]]
    assert len(whole) == 100
    for count in (1, 50, 99, 100, 101, 10000):
        lines = nemo("jobs", "tail", hundred, "-n", str(count)).stdout.splitlines()
        assert [text.split(" | ", 1)[1] for text in lines] == whole[-count:]
    page = ok(nemo("jobs", "get-logs", hundred, "--tail", "30"))
    found = [item["message"] for item in page["data"]]
    while page["prev_page"]:
        page = ok(nemo("jobs", "get-logs", hundred, "--page-cursor", page["prev_page"], "--limit", "30"))
        found = [item["message"] for item in page["data"]] + found
    assert found == whole


def test_c083_each_filter_narrows_alone_and_together_and_nothing_is_ignored(nemo: Any, hundred: str) -> None:
    steps = ok(nemo("jobs", "steps", "list", hundred))["data"]
    assert [item["name"] for item in steps] == ["step-0", "step-1"]
    tasks = ok(nemo("jobs", "tasks", "list", "step-1", "--job", hundred))["data"]
    task = tasks[0]["name"]
    assert ok(nemo("jobs", "tasks", "get", task, "--job", hundred, "--step", "step-1"))["name"] == task
    assert ok(nemo("jobs", "steps", "get", "step-1", "--job", hundred))["status"] == "completed"

    def count(*options: str) -> tuple[int, int]:
        listed = ok(nemo("jobs", "get-logs", hundred, "--all-pages", *options))["data"]
        tailed = nemo("jobs", "tail", hundred, "-n", "1000", *options).stdout.splitlines()
        return len(listed), len(tailed)

    assert count("--attempt-id", "0") == (100, 100)
    assert count("--step-id", "step-0") == (50, 50)
    assert count("--step-id", steps[0]["id"]) == (50, 50)
    assert count("--task-id", task) == (50, 50)
    assert count("--attempt-id", "0", "--step-id", "step-1", "--task-id", task) == (50, 50)
    for wrong in (("--attempt-id", "1"), ("--step-id", "nope"), ("--task-id", "task-nope")):
        for command in ("get-logs", "tail"):
            ran = nemo("jobs", command, hundred, *wrong)
            assert (ran.returncode, ran.stdout) == (3, ""), (command, wrong)
            assert wrong[1] in ran.stderr


def test_c036_json_keeps_what_text_leaves_out(nemo: Any) -> None:
    nasty = r"\033[31mred\033[0m \033]0;pwn\007 \033[2J done\n"
    ran = nemo("jobs", "run", "--name", "nasty", "--follow", "--", "printf", nasty)
    assert ran.stdout == "red   done\n"
    assert ok(nemo("jobs", "get-logs", "nasty"))["data"][0]["message"] == (
        "\x1b[31mred\x1b[0m \x1b]0;pwn\x07 \x1b[2J done"
    )


def test_c059_every_legal_name_can_be_used_and_others_are_refused_with_the_rule(nemo: Any) -> None:
    for name in ("a1", "a.b@c+d_e-f", "x" * 51):
        ok(nemo("jobs", "run", "--name", name, "--", "true"))
        assert nemo("jobs", "watch", name).returncode == 0
        assert ok(nemo("jobs", "get", name))["name"] == name
        assert nemo("jobs", "delete", name).returncode == 0
        assert nemo("jobs", "get", name).returncode == 3
    for name in ("a/b", "naïve", "..", "x" * 300, "Upper", "trailing ", "a--b", "a-", "1a", "a"):
        ran = nemo("jobs", "run", "--name", name, "--", "true")
        assert (ran.returncode, ran.stdout) == (3, ""), name
        assert "422" in ran.stderr
        assert nemo("jobs", "get", name).returncode == 3


def test_c076_57_jobs_are_counted_as_57(nemo: Any, service: Service) -> None:
    ok(nemo("workspaces", "create", "many"))
    with JobsClient(service.url, workspace="many") as client:
        body = json.loads(spec("true"))
        ids = {client.create_job(name=f"job-{number}", **body)["id"] for number in range(57)}
    first = nemo("jobs", "list", "-w", "many")
    assert ok(first)["pagination"] == {
        "total_results": 57,
        "total_pages": 6,
        "page_size": 10,
        "page": 1,
        "current_page_size": 10,
    }
    assert "showing 10 of 57 jobs" in first.stderr
    assert {item["id"] for item in ok(nemo("jobs", "list", "-w", "many", "--all-pages"))["data"]} == ids
    assert len(nemo("jobs", "list", "-w", "many", "-f", "csv", "--page-size", "20").stdout.splitlines()) == 21


def test_c081_times_are_utc_wherever_service_and_command_are(nemo: Any) -> None:
    created = ok(nemo("jobs", "run", "--name", "dated", "--", "true"))["created_at"]
    assert created.endswith("Z")
    assert nemo("jobs", "watch", "dated").returncode == 0
    assert ok(nemo("jobs", "get", "dated", TZ="Asia/Tokyo"))["created_at"] == created
    from datetime import datetime, timedelta, timezone

    moment = datetime.fromisoformat(created)
    india = moment.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat()
    for text in (created, india, moment.replace(tzinfo=None).isoformat()):
        expression = json.dumps({"name": "dated", "created_at": {"$gte": text}})
        assert len(ok(nemo("jobs", "list", "--filter", expression))["data"]) == 1, text
        expression = json.dumps({"name": "dated", "created_at": {"$gt": text}})
        assert len(ok(nemo("jobs", "list", "--filter", expression))["data"]) == 0, text


def test_c040_ctrl_c_during_follow_leaves_the_job_running(nemo: Any, environ: dict[str, str]) -> None:
    ok(nemo("jobs", "run", "--name", "goes-on", "--", "sh", "-c", "echo here; exec sleep 60"))
    process = subprocess.Popen(
        [NEMO, "jobs", "tail", "-f", "goes-on"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    assert process.stdout.readline().endswith(b"| here\n")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"the job goes on; come back with: nemo jobs tail -f goes-on\n" in err
    assert b"Traceback" not in err
    assert ok(nemo("jobs", "get", "goes-on"))["status"] == "active"
    ok(nemo("jobs", "cancel", "goes-on"))
    assert nemo("jobs", "watch", "goes-on").returncode == 1


def test_pause_and_resume(nemo: Any, environ: dict[str, str]) -> None:
    script = "test -e there && exit 0; touch there; echo once; exec sleep 60"
    data = spec(f"cd $NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH; {script}")
    ok(nemo("jobs", "create", "paused", "--input-data", data))
    assert nemo("jobs", "tail", "paused").returncode == 0
    follower = subprocess.Popen(
        [NEMO, "jobs", "watch", "paused"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert follower.stdout
    assert b"once" in follower.stdout.readline()
    ok(nemo("jobs", "pause", "paused"))
    _, err = follower.communicate(timeout=30)
    assert follower.returncode == 1
    assert b"go on with: nemo jobs resume paused" in err
    ok(nemo("jobs", "resume", "paused"))
    assert nemo("jobs", "watch", "paused").returncode == 0


@pytest.fixture
def lossy(service: Service) -> Iterator[str]:
    """A proxy in front of the service that loses the answer of the first request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        losing = [True]

        def relay() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client, socket.create_connection(("127.0.0.1", service.port)) as upstream:
                    request = client.recv(1 << 20)
                    upstream.sendall(request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
                    answer = b""
                    while piece := upstream.recv(65536):
                        answer += piece
                    if not losing.pop() if losing else True:
                        client.sendall(answer)

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_c088_a_lost_answer_never_makes_two_jobs(nemo: Any, lossy: str) -> None:
    ok(nemo("workspaces", "create", "lossy"))
    data = spec("true").replace("tests", "lost-answer")
    job = ok(nemo("--base-url", lossy, "jobs", "create", "--input-data", data, "-w", "lossy"))
    listed = ok(nemo("jobs", "list", "-w", "lossy"))["data"]
    assert [item["name"] for item in listed] == [job["name"]]


def test_backup_while_the_service_runs(nemo: Any, service: Service, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    ran = nemo("db", "backup", str(target), "--data-dir", str(service.data_dir))
    assert ran.returncode == 0, ran.stderr
    import sqlite3

    with sqlite3.connect(target) as copy:
        assert copy.execute("SELECT count(*) FROM job").fetchone()[0] > 0
    copy.close()
    assert nemo("db", "backup", str(target), "--data-dir", str(service.data_dir)).returncode == 1


def test_prune_takes_old_ended_jobs_and_nothing_else(nemo: Any) -> None:
    ok(nemo("workspaces", "create", "old"))
    for name in ("done", "live"):
        ok(nemo("jobs", "run", "--name", name, "-w", "old", "--", "sleep", "0" if name == "done" else "60"))
    assert nemo("jobs", "watch", "done", "-w", "old").returncode == 0
    assert nemo("jobs", "prune", "--older-than", "1h", "-w", "old").stdout == ""
    assert nemo("jobs", "prune", "--older-than", "0s", "-w", "old", "--dry-run").stdout == "old/done\n"
    ran = nemo("jobs", "prune", "--older-than", "0s", "-w", "old")
    assert (ran.stdout, ran.stderr) == ("old/done\n", "deleted 1 jobs\n")
    assert [item["name"] for item in ok(nemo("jobs", "list", "-w", "old"))["data"]] == ["live"]
    ok(nemo("jobs", "cancel", "live", "-w", "old"))


@pytest.mark.parametrize("form", ["json", "yaml", "raw"])
def test_every_reading_command_prints_one_document(nemo: Any, hundred: str, form: str) -> None:
    import yaml

    for words in (
        ("list",),
        ("get", hundred),
        ("get-status", hundred),
        ("get-logs", hundred),
        ("list-execution-profiles",),
        ("steps", "list", hundred),
        ("tasks", "list", "step-0", "--job", hundred),
    ):
        ran = nemo("-v", "jobs", *words, "-f", form, PYTHONWARNINGS="always")
        assert ran.returncode == 0
        document = yaml.safe_load(ran.stdout) if form == "yaml" else json.loads(ran.stdout)
        assert document

"""Cases of the command line and its client, every command against a real service."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from nemo_jobs.client import JobsClient
from tests.cases.kit import cancel, create, first_line, script
from tests.e2e.service import JOBS, NEMO, Client, Service, free_port, until

#: What is read when Python starts, as a plugin of somebody else would be.
NOISE = "import warnings; warnings.warn('a plugin is old', DeprecationWarning)\n"
READING = (
    ("jobs", "list"),
    ("jobs", "list", "--filter", '{"name":"nobody"}'),
    ("jobs", "get", "JOB"),
    ("jobs", "get-status", "JOB"),
    ("jobs", "get-logs", "JOB"),
    ("jobs", "list-execution-profiles"),
    ("jobs", "attempts", "list", "JOB"),
    ("jobs", "steps", "list", "JOB"),
    ("jobs", "tasks", "list", "step-1", "--job", "JOB"),
    ("jobs", "results", "list", "JOB"),
    ("jobs", "results", "get", "left", "--job", "JOB"),
    ("workspaces", "list"),
    ("workspaces", "get", "default"),
    ("projects", "list"),
    ("secrets", "list"),
)
CHANGING = (
    ("jobs", "cancel", "JOB"),
    ("jobs", "pause", "JOB"),
    ("jobs", "resume", "JOB"),
    ("jobs", "rerun", "JOB"),
    ("jobs", "delete", "JOB"),
    ("jobs", "tail", "JOB"),
    ("jobs", "tail", "-f", "JOB"),
    ("jobs", "update-status-details", "JOB", "--body", "{}"),
    ("jobs", "results", "download", "left", "--job", "JOB", "-o", "out"),
    ("workspaces", "delete", "nowhere"),
    ("projects", "get", "nowhere"),
    ("secrets", "delete", "nowhere"),
)


def run(place: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {
        **{"PATH": "/usr/bin:/bin", "HOME": str(place), "LANG": "C.UTF-8", "NHX_BASE_URL": url},
        **{"PYTHONPATH": str(place / "plugins"), "PYTHONWARNINGS": "always"},
    }
    (place / "plugins").mkdir(exist_ok=True)
    (place / "plugins" / "sitecustomize.py").write_text(NOISE)
    command = [str(NEMO), *words]
    return subprocess.run(command, env=environ, cwd=place, capture_output=True, text=True, timeout=60)


def about(words: tuple[str, ...], job: str) -> tuple[str, ...]:
    return tuple(job if word == "JOB" else word for word in words)


@pytest.fixture(scope="module")
def ended(shared: Service) -> str:
    client = shared.client()
    script(client, "commands", "echo said; echo x > $NEMO_JOB_RESULTS_PATH/left")
    assert client.wait("commands")["status"] == "completed"
    return "commands"


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_c016_stdout_is_one_document_and_nothing_else(
    words: tuple[str, ...], ended: str, shared: Service, tmp_path: Path
) -> None:
    ran = run(tmp_path, shared.url, "-v", *about(words, ended), "-f", "json")
    assert ran.returncode == 0, ran.stderr
    json.loads(ran.stdout)
    assert "a plugin is old" in ran.stderr


#: A list of steps by job is a filter, which a job that is not there matches with none.
FILTERING = ("jobs", "steps", "list", "JOB")
#: Goes on asking while the service is away, since a log may be followed over its restarts.
PATIENT = ("jobs", "tail", "-f", "JOB")


@pytest.mark.parametrize("words", [*READING, *CHANGING], ids=" ".join)
def test_c025_what_could_not_be_done_is_no_success(
    words: tuple[str, ...], shared: Service, tmp_path: Path
) -> None:
    if words != PATIENT:
        away = run(tmp_path, f"http://127.0.0.1:{free_port()}", *about(words, "nothing"))
        assert (away.returncode, away.stdout) == (3, ""), away
        assert "Traceback" not in away.stderr
    if words != FILTERING and ("JOB" in words or "nowhere" in words):
        unknown = run(tmp_path, shared.url, *about(words, "nothing"))
        assert (unknown.returncode, unknown.stdout) == (3, ""), unknown
        assert "error: " in unknown.stderr


def test_c076_iterators_of_the_client_give_every_job_once(shared: Service) -> None:
    with JobsClient(shared.url, workspace="counted") as client:
        assert shared.client().post("/apis/entities/v2/workspaces", {"name": "counted"}).status in (200, 201)
        step = {"name": "step-1", "executor": {"provider": "subprocess", "command": ["true"]}}
        for number in range(57):
            client.create_job(name=f"c076-{number}", source="tests", spec={}, platform_spec={"steps": [step]})
        names = [job["name"] for job in client.iter_jobs()]
    assert sorted(names) == sorted(f"c076-{number}" for number in range(57))


def test_c034_an_upload_that_is_killed_leaves_no_result_and_can_be_repeated(
    client: Client, shared: Service, tmp_path: Path
) -> None:
    create(client, "c034-upload", ["true"])
    client.wait("c034-upload")
    file = tmp_path / "weights"
    with file.open("wb") as made:
        made.truncate(160 << 20)
    partial = shared.data_dir / "files" / "partial"
    command = [str(NEMO), "jobs", "results", "upload", "weights", str(file), "--job", "c034-upload"]
    environ = {**shared.environ, "NHX_BASE_URL": shared.url, "HOME": str(tmp_path)}
    process = subprocess.Popen(command, env=environ)
    until(lambda: any(path.stat().st_size for path in partial.iterdir()), 30, every=0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    assert client.get(f"{JOBS}/c034-upload/results").json == {"data": []}
    until(lambda: not list(partial.iterdir()), 20)
    assert subprocess.run(command, env=environ, capture_output=True, check=False).returncode == 0
    path = f"{JOBS}/c034-upload/results/weights/download"
    last = client.call("GET", path, headers={"range": "bytes=-1"})
    assert (last.status, last.body) == (206, b"\0")
    assert last.headers["content-range"].endswith(f"/{160 << 20}")
    assert client.call("DELETE", f"{JOBS}/c034-upload").status == 204  # its bytes go, too


def test_c096_a_cancelled_job_keeps_its_log_and_its_storage(client: Client) -> None:
    save = "echo half > $NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/ckpt; echo saved; sleep 300"
    look = "cat $NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/ckpt"
    script(client, "c096-kept", f'test -e "$NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/ckpt" && {look} || ({save})')
    first_line(client, "c096-kept")
    cancel(client, "c096-kept")
    assert client.wait("c096-kept")["status"] == "cancelled"
    assert client.messages("c096-kept") == ["saved"]
    assert client.post(f"{JOBS}/c096-kept/rerun").status in (200, 201)
    assert client.wait("c096-kept")["status"] == "completed"
    assert client.messages("c096-kept")[-1] == "half"

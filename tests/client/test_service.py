"""Both clients against a real service with real processes, kills included."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.client import (
    AsyncJobsClient,
    BadRequest,
    Conflict,
    JobFailed,
    JobsClient,
    NotFound,
    Retry,
    Unprocessable,
    WaitExpired,
)
from tests.client.both import Both
from tests.e2e.service import Service

LETTERS = "naïve 鍵 🔑"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(tmp_path_factory.mktemp("client"))
    try:
        yield started.start()
    finally:
        started.close()


class Real(Both):
    """A client that really waits."""

    def __init__(self, kind: str, url: str, **settings: Any) -> None:
        super().__init__(kind, url, **settings)
        if kind == "sync":
            self.client.transport.retry = Retry()
        else:
            self.client.transport.sleep = asyncio.sleep


@pytest.fixture
def client(service: Service, kind: str) -> Iterator[Real]:
    with Real(kind, service.url) as made:
        yield made


def spec(*scripts: str, names: tuple[str, ...] = ("one", "two", "three")) -> dict[str, Any]:
    steps = [
        {"name": name, "executor": {"provider": "subprocess", "command": ["sh", "-c", script]}}
        for name, script in zip(names, scripts, strict=False)
    ]
    return {"source": "tests", "spec": {}, "platform_spec": {"steps": steps}}


def test_a_command_runs_to_its_end_and_its_log_is_read(client: Real) -> None:
    job = client.run(["sh", "-c", 'echo "$1 $X"', "sh", LETTERS], env={"X": "ü"}, check=True)
    assert job["status"] == "completed"
    assert [line["message"] for line in client.iter_job_logs(job["name"])] == [f"{LETTERS} ü"]
    assert [line["message"] for line in client.follow_logs(job["id"])] == [f"{LETTERS} ü"]
    tree = client.get_job_status(job["name"])
    (task,) = tree["steps"][0]["tasks"]
    assert client.get_job_step_task(task["name"], job=job["name"], step="run")["status"] == "completed"
    assert client.tasks.list("run", job=job["name"])["data"][0]["id"] == task["id"]
    assert client.get_job_step("run", job=job["name"])["status_details"]["exit_code"] == 0
    assert [item["name"] for item in client.iter_steps(job["name"])] == ["run"]
    client.delete_job(job["name"])
    with pytest.raises(NotFound, match=job["name"]):
        client.get_job(job["name"])


def test_a_failure_is_the_jobs_and_not_the_clients(client: Real, kind: str) -> None:
    job = client.run(["sh", "-c", "exit 9"], name=f"fails-{kind}")
    assert (job["status"], job["error_details"]["exit_code"]) == ("error", 9)
    with pytest.raises(JobFailed, match="code 9") as caught:
        client.wait(job["name"], check=True)
    assert caught.value.job["id"] == job["id"]


def test_a_wait_that_expires_leaves_the_job_alone(client: Real) -> None:
    job = client.run(["sleep", "60"], wait=False)
    with pytest.raises(WaitExpired):
        client.wait(job["name"], timeout=0.3)
    assert client.get_job(job["name"])["status"] in ("created", "pending", "active")
    client.cancel_job(job["name"])
    assert client.wait(job["name"])["status"] == "cancelled"
    states = [tree["status"] for tree in client.watch_job(job["name"])]
    assert states == ["cancelled"]


def test_a_job_is_paused_resumed_and_run_again(client: Real) -> None:
    job = client.run(["sleep", "60"], wait=False)
    name = job["name"]
    while client.get_job(name)["status"] != "active":
        pass
    client.pause_job(name)
    assert client.wait(name)["status"] == "paused"
    client.resume_job(name)
    with pytest.raises(Conflict, match=name):
        client.rerun_job(name)
    client.cancel_job(name)
    assert client.wait(name)["status"] == "cancelled"
    again = client.rerun_job(name)
    assert again["attempt_id"] != job["attempt_id"]
    attempts = client.iter_job_attempts(name)
    assert [(item["seq"], item["is_current"]) for item in attempts] == [(1, True), (0, False)]
    assert client.get_job_attempt("current", job=name)["id"] == again["attempt_id"]
    old = client.list_steps(name, attempt_id=job["attempt_id"])["data"]
    assert [step["status"] for step in old] == ["cancelled"]
    client.cancel_job(name)
    client.wait(name)
    changed = client.update_job(name, description=LETTERS)
    assert changed["description"] == LETTERS
    assert client.update_job(name, description=None)["description"] is None


def test_the_same_key_makes_one_job(client: Real, kind: str) -> None:
    wanted = {**spec("true"), "idempotency_key": f"once-{kind}"}
    first, second = client.create_job(**wanted), client.create_job(**wanted)
    assert first == second
    with pytest.raises(Conflict):
        client.create_job(**{**wanted, "source": "other"})


def test_a_dry_run_stores_nothing(client: Real, kind: str) -> None:
    name = f"dry-{kind}"
    plan = client.dry_run_job(**spec("true"), name=name, labels={"team": "moths"})
    assert plan["steps"]
    with pytest.raises(NotFound):
        client.get_job(name)


def test_many_jobs_are_listed_by_label_and_treated_at_once(client: Real, kind: str) -> None:
    label = {"batch": f"b-{kind}"}
    made = [client.create_job(**spec("sleep 60"), labels=label)["name"] for _ in range(5)]
    wanted = {"labels.batch": f"b-{kind}"}
    found = client.iter_jobs(filter=wanted, page_size=2, sort="created_at")
    assert [job["name"] for job in found] == made
    assert client.cancel_jobs(wanted, dry_run=True)["count"] == 5
    with pytest.raises(Conflict, match="5"):
        client.cancel_jobs(wanted, expected_count=4)
    assert client.cancel_jobs(wanted, expected_count=5)["count"] == 5
    for name in made:
        client.wait(name)
    assert client.delete_jobs(wanted, expected_count=5)["done"] == 5
    assert client.iter_jobs(filter=wanted) == []


def test_refusals_tell_what_is_wrong(client: Real) -> None:
    with pytest.raises(Unprocessable, match="name"):
        client.create_job(**spec("true"), name="UPPER")
    with pytest.raises(BadRequest):
        client.list_jobs(filter="oops")
    with pytest.raises(NotFound, match="nowhere"):
        client.list_jobs(workspace="nowhere")
    with pytest.raises(Unprocessable) as caught:
        client.list_job_logs(client.run(["true"])["name"], page_cursor="nonsense")
    assert caught.value.code == "invalid_page_cursor"


def test_workspaces_projects_and_secrets(client: Real, kind: str) -> None:
    place = f"lab-{kind}"
    client.create_workspace(place, description="d")
    assert place in [item["name"] for item in client.iter_workspaces(page_size=1)]
    assert client.update_workspace(place, description=LETTERS)["description"] == LETTERS
    client.create_project("moths", workspace=place)
    assert [item["name"] for item in client.iter_projects(workspace=place)] == ["moths"]
    client.delete_project("moths", workspace=place)
    client.create_secret("key", "swordfish-17", workspace=place)
    client.update_secret("key", description="d", workspace=place)
    (shown,) = client.iter_secrets(workspace=place)
    assert shown["name"] == "key"
    assert "swordfish" not in repr(shown)
    client.delete_secret("key", workspace=place)
    client.delete_workspace(place)
    with pytest.raises(NotFound):
        client.get_workspace(place)


def test_files_go_in_and_out(client: Real, kind: str, tmp_path: Path) -> None:
    big = tmp_path / "big.bin"
    big.write_bytes(os.urandom(3 << 20))
    name = f"store-{kind}"
    client.create_fileset(name, purpose="dataset")
    for path, content in (("a/big.bin", big), (f"b/{LETTERS}.txt", b"x"), ("c/pieces", iter([b"1", b"2"]))):
        client.put_file(path, content, fileset=name)
    files = client.list_files(name)["data"]
    assert {item["path"]: item["size"] for item in files} == {
        "a/big.bin": 3 << 20,
        f"b/{LETTERS}.txt": 1,
        "c/pieces": 2,
    }
    download = client.download_file("a/big.bin", fileset=name)
    assert download.about.size == 3 << 20
    client.done(download.write_to_file(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    with pytest.raises(NotFound):
        client.put_file("x", big, fileset="nowhere")
    client.delete_file("c/pieces", fileset=name)
    with pytest.raises(NotFound):
        client.download_file("c/pieces", fileset=name)
    client.delete_fileset(name)


def test_results_are_collected_uploaded_and_downloaded(client: Real, kind: str, tmp_path: Path) -> None:
    job = client.run(["sh", "-c", 'echo 17 > "$NEMO_JOB_RESULTS_PATH/answer"'], check=True)
    name = job["name"]
    assert [item["name"] for item in client.iter_job_results(name)] == ["answer"]
    assert client.done(client.download_job_result("answer", job=name).read()) == b"17\n"
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "x").write_bytes(b"x")
    (folder / "y").write_bytes(b"y")
    client.upload_job_result("tree", folder, job=name)
    download = client.download_job_result("tree", job=name)
    target = client.done(download.write_to_file(tmp_path))
    assert target == str(tmp_path / "tree.tar.gz")
    import tarfile

    with tarfile.open(target) as tar:
        assert sorted(item.name for item in tar.getmembers() if item.isfile()) == ["tree/deep/x", "tree/y"]
    client.upload_job_result("note", LETTERS.encode(), job=name)
    assert client.get_job_result("note", job=name)["job"] == job["id"]
    client.upload_job_result("note", b"newer", job=name)  # a program saves again
    assert client.done(client.download_job_result("note", job=name).read()) == b"newer"
    with pytest.raises(Conflict):
        client.upload_job_result("tree", b"no folder", job=name)
    assert len(client.results.list(name)["data"]) == 3
    with pytest.raises(Conflict, match="'answer' already, which is kept"):
        client.upload_job_result("answer", b"42", job=name)
    assert client.done(client.download_job_result("answer", job=name).read()) == b"17\n"
    kept = [item["path"] for item in client.list_files(job["fileset"])["data"]]
    assert not [path for path in kept if path.startswith("results/") and path.endswith("/answer")]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Service]:
    """A service that a test may kill."""
    started = Service(tmp_path)
    try:
        yield started.start()
    finally:
        started.close()


def restarted(own: Service, seen: threading.Event) -> threading.Thread:
    """Kill the service once something was seen, and start it again."""

    def work() -> None:
        assert seen.wait(20)
        own.kill()
        own.start()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


COUNTING = 'i=0; while [ $i -lt 40 ]; do echo "line $i"; i=$((i+1)); sleep 0.05; done'


def test_no_line_is_lost_or_doubled_while_the_service_is_killed(own: Service) -> None:
    seen = threading.Event()
    thread = restarted(own, seen)
    with JobsClient(own.url) as client:
        name = client.run(["sh", "-c", COUNTING], wait=False)["name"]
        lines = []
        for line in client.follow_logs(name):
            lines.append(line["message"])
            seen.set()
        assert lines == [f"line {n}" for n in range(40)]
        assert client.wait(name)["status"] == "completed"
    thread.join(20)


async def test_many_async_followers_and_waiters_survive_a_kill(own: Service) -> None:
    seen = threading.Event()
    thread = restarted(own, seen)
    async with AsyncJobsClient(own.url) as client:
        name = (await client.run(["sh", "-c", COUNTING], wait=False))["name"]

        async def follow() -> list[str]:
            lines = []
            async for line in client.follow_logs(name):
                lines.append(line["message"])
                seen.set()
            return lines

        async with asyncio.timeout(50):
            *logs, first, second = await asyncio.gather(
                follow(), follow(), follow(), client.wait(name), client.wait(name)
            )
        assert logs == [[f"line {n}" for n in range(40)]] * 3
        assert first["status"] == second["status"] == "completed"
    thread.join(20)

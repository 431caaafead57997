"""Results of real jobs: links, files in motion, kills, sizes."""

import io
import os
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed.postgres import Missing, PostgresServer
from tests.cases.kit import cancel, create, first_line, profile, script, step_of
from tests.e2e.service import JOBS, NEMO, Client, Json, Service, proc_file, until

INTO = "cd $NEMO_JOB_RESULTS_PATH; "


def results(client: Client, name: str, query: str = "") -> dict[str, Json]:
    answer = client.get(f"{JOBS}/{name}/results{query}")
    assert answer.status == 200, answer
    return {result["name"]: result for result in answer.json["data"]}


def content(client: Client, name: str, result: str) -> bytes:
    answer = client.get(f"{JOBS}/{name}/results/{result}/download")
    assert answer.status == 200, answer
    return answer.body


def folder(client: Client, name: str, result: str) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content(client, name, result)), mode="r:gz") as archive:
        files = [member for member in archive if member.isfile()]
        return {one.name: inside.read() for one in files if (inside := archive.extractfile(one)) is not None}


def note(client: Client, name: str) -> str:
    return str(step_of(client, name)["status_details"].get("results_note", ""))


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer.start()
    except Missing as error:
        pytest.skip(str(error))
    yield server
    server.destroy()


@pytest.fixture(params=["sqlite"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """A service that a test may kill."""
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres").new_database()
    config = {"graceful_shutdown_timeout_seconds": 1}
    service = Service(tmp_path, database_url=url, subprocess_config=config)
    try:
        yield service.start()
    finally:
        service.close()


def test_each_step_leaves_its_own(client: Client) -> None:
    script(client, "leaves", INTO + "echo 1 > report", INTO + "ls; echo 2 > report; echo x > 'My Model.bin'")
    assert client.wait("leaves")["status"] == "completed"
    assert client.messages("leaves") == []  # the directory was empty
    found = results(client, "leaves")
    assert {name: one["step"] for name, one in found.items()} == {
        "report": "step-1", "report-step-2": "step-2", "my-model.bin": "step-2",
    }  # fmt: skip
    assert content(client, "leaves", "report-step-2") == b"2\n"
    assert note(client, "leaves") == ""


def test_c096_what_failed_and_cancelled_steps_left_is_kept(client: Client) -> None:
    script(client, "fails", INTO + "echo half > model; exit 3")
    assert client.wait("fails")["status"] == "error"
    assert content(client, "fails", "model") == b"half\n"
    script(client, "stopped", INTO + "echo half > model; echo ready; sleep 300")
    first_line(client, "stopped")
    cancel(client, "stopped")
    assert client.wait("stopped")["status"] == "cancelled"
    assert content(client, "stopped", "model") == b"half\n"
    create(client, "limited", ["bash", "-c", INTO + "echo half > model; sleep 300"], profile="short")
    assert client.wait("limited")["status"] == "error"
    assert content(client, "limited", "model") == b"half\n"


def test_c096_a_posted_result_outlives_a_cancel(client: Client) -> None:
    script(client, "posts", "echo ready; sleep 300")
    first_line(client, "posts")
    posting = {"artifact_url": "job-fileset-posts#kept", "artifact_storage_type": "fileset"}
    assert client.post(f"{JOBS}/posts/results/kept", posting).status == 201
    cancel(client, "posts")
    client.wait("posts")
    assert "kept" in results(client, "posts")


def test_c052_links(client: Client, shared: Service) -> None:
    (shared.root / "treasure").write_text("treasure")
    script(
        client,
        "links",
        INTO + "mkdir -p ckpts/ckpt-900; echo w > ckpts/ckpt-900/w; cd ckpts; ln -s ckpt-900 latest; "
        "ln -s nothing dangling; ln -s /etc/passwd passwd; ln -s .. up; ln -s loop loop; ln -s . dot; "
        f"ln -s {shared.root}/treasure t; cd ..; ln -s /etc etc; mkfifo pipe",
    )
    assert client.wait("links")["status"] == "completed"
    assert list(results(client, "links")) == ["ckpts"]
    assert folder(client, "links", "ckpts") == {
        "ckpts/ckpt-900/w": b"w\n", "ckpts/latest/w": b"w\n",
    }  # fmt: skip
    said = note(client, "links")
    for what in (
        "ckpts/passwd",
        "ckpts/t ",
        "ckpts/dangling",
        "ckpts/loop",
        "ckpts/up",
        "ckpts/dot",
        "etc",
        "pipe",
    ):
        assert f"{what.strip()} was left out" in said


def test_c047_names_that_could_lead_elsewhere(client: Client) -> None:
    text = (
        "import os; os.chdir(os.environ['NEMO_JOB_RESULTS_PATH']); os.mkdir('d'); "
        "[open(b'd/' + n, 'wb').write(b'x') for n in "
        "(b'..\\\\x', b'%2e%2e%2fetc%2fpasswd', b'a\\nb', b'\\xff\\xfe', b'-rf', b'~', b'C:')]; "
        "open('..%2f..%2fx', 'w').close()"
    )
    create(client, "names", ["python3", "-c", text])
    assert client.wait("names")["status"] == "completed", client.messages("names")
    assert set(results(client, "names")) == {"result-d", "result-2f.._2fx"}
    found = folder(client, "names", "result-d")
    assert len(found) == 7
    for path in found:
        assert not path.startswith("/")
        assert ".." not in path.split("/")
        assert "\\" not in path
        assert "%2f" not in path


def test_c084_files_in_motion(client: Client) -> None:
    loop = "echo $i > log; echo $i >> grows; rm -f d/tmp; echo x > d/tmp; i=$((i+1)); sleep 0.02"
    rests = f'trap "" TERM; i=0; while [ $i -lt 300 ]; do {loop}; done'
    background = f"setsid bash -c '{rests}' > /dev/null 2>&1 &"
    script(
        client,
        "motion",
        INTO + "mkdir d; echo still > model; echo still > d/still; " + background + " sleep 0.3",
    )
    assert client.wait("motion", timeout=60)["status"] == "completed"
    assert content(client, "motion", "model") == b"still\n"
    assert folder(client, "motion", "result-d")["d/still"] == b"still\n"
    for name in ("log", "grows"):
        if name in results(client, "motion"):
            assert content(client, "motion", name).endswith(b"\n")
        else:
            assert f"{name} was left out" in note(client, "motion")


def test_nothing_left_in_the_work_directory_is_too_late(own: Service) -> None:
    """With the directories of ended steps removed at once, results are read before."""
    own.stop()
    own.add_settings(
        {"jobs": {"executors": [profile(own.root, "quick", cleanup_completed_jobs_immediately=True)]}}
    )
    own.start()
    client = own.client()
    for number in range(5):
        create(client, f"quick-{number}", ["bash", "-c", INTO + "echo hi > model"], profile="quick")
    for number in range(5):
        client.wait(f"quick-{number}")
        assert content(client, f"quick-{number}", "model") == b"hi\n"
    until(lambda: not list((own.root / "work").glob("default/*/*/*/task-*")), 20)


@pytest.mark.parametrize("own", ["sqlite", "postgresql"], indirect=True)
def test_c034_a_service_that_is_killed_while_it_stores_doubles_and_loses_nothing(own: Service) -> None:
    client = own.client()
    text = INTO + "mkdir many; for i in $(seq 200); do echo $i > many/$i; done; head -c 100M /dev/zero > big"
    script(client, "killed", text)
    objects = own.data_dir / "files"
    until(
        lambda: len(list(objects.glob("partial/*")) + list(objects.glob("objects/*/*"))) > 1, 60, every=0.001
    )
    assert results(client, "killed") == {}
    own.kill()
    own.start()
    client = own.client()
    assert client.wait("killed", timeout=90)["status"] == "completed"
    assert set(results(client, "killed")) == {"big", "many"}
    assert len(folder(client, "killed", "many")) == 200
    assert len(content(client, "killed", "big")) == 100 << 20
    assert note(client, "killed") == ""
    assert list(objects.glob("partial/*")) == []


def test_c034_a_download_that_is_killed_leaves_nothing_under_the_final_name(
    client: Client, shared: Service, tmp_path: Path
) -> None:
    script(client, "large", INTO + "head -c 80M /dev/urandom > weights")
    client.wait("large", timeout=60)
    command = [
        str(NEMO),
        "jobs",
        "results",
        "download",
        "weights",
        "--job",
        "large",
        "-o",
        str(tmp_path / "weights"),
    ]
    environ = {**shared.environ, "NHX_BASE_URL": shared.url, "HOME": str(tmp_path)}
    process = subprocess.Popen(command, env=environ)
    until(lambda: any(path.stat().st_size for path in tmp_path.glob(".weights.*")), 20, every=0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    assert not (tmp_path / "weights").exists()
    assert subprocess.run(command, env=environ, check=False).returncode == 0
    assert (tmp_path / "weights").stat().st_size == 80 << 20


@pytest.mark.alone
def test_c071_a_large_result_needs_little_memory_and_delays_nobody(client: Client, shared: Service) -> None:
    script(client, "huge", INTO + "truncate -s 400M sparse; head -c 50M /dev/urandom >> sparse")
    slowest, peak, stop = [0.0], [0], threading.Event()
    before = rss(shared.pid)

    def watch() -> None:
        other = shared.client()
        while not stop.wait(0.05):
            began = time.monotonic()
            assert other.get(f"{JOBS}?page_size=1").status == 200
            slowest[0] = max(slowest[0], time.monotonic() - began)
            peak[0] = max(peak[0], rss(shared.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert client.wait("huge", timeout=120)["status"] == "completed"
        reads = [threading.Thread(target=swallow, args=(shared.port, "huge", "sparse")) for _ in range(3)]
        for read in reads:
            read.start()
        for read in reads:
            read.join()
    finally:
        stop.set()
        watcher.join()
    assert peak[0] - before < 64 << 20, f"{(peak[0] - before) >> 20} MiB"
    assert slowest[0] < 1.0 or os.getloadavg()[0] > 2 * (os.cpu_count() or 1), slowest


def rss(pid: int) -> int:
    return int(proc_file(pid, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def swallow(port: int, name: str, result: str) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"{JOBS}/{name}/results/{result}/download")
    answer = connection.getresponse()
    size = 0
    while piece := answer.read(1 << 20):
        size += len(piece)
    assert size == int(answer.headers["content-length"])
    connection.close()


def test_a_rerun_shows_its_own_results_and_keeps_the_earlier_ones(client: Client) -> None:
    script(client, "again", INTO + "echo $NEMO_JOB_ATTEMPT_ID > model; exit 1")
    first = client.wait("again")["attempt_id"]
    second = client.post(f"{JOBS}/again/rerun").json["attempt_id"]
    client.wait("again")
    assert content(client, "again", "model") == f"{second}\n".encode()
    old = client.get(f"{JOBS}/again/results/model/download?attempt_id=0")
    assert old.body == f"{first}\n".encode()
    (shown,) = results(client, "again", f"?attempt_id={first}").values()
    assert shown["attempt_id"] == first

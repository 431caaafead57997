"""Starting, refusing to start, stopping and starting again, as a user sees it."""

import fcntl
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.service import Service, alive, free_port, listening, until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.close()


def refused(service: Service, *options: str) -> subprocess.CompletedProcess[str]:
    """Start in the foreground; what it said. Fails when it takes a second or more.

    On a busy machine its own CPU time decides: what others take isn't the program's fault.
    """
    began, cpu = time.monotonic(), cpu_of_children()
    command = [*service.command, *options]
    result = subprocess.run(command, capture_output=True, text=True, env=service.environ, timeout=30)
    seconds, cpu = time.monotonic() - began, cpu_of_children() - cpu
    assert seconds < 1.0 or (cpu < 1.0 and os.getloadavg()[0] > (os.cpu_count() or 1) / 2), (seconds, cpu)
    return result


def cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ready_line(service: Service) -> str:
    return until(lambda: service.stdout.read_text(), 5)


def test_one_line_says_the_address_and_the_folder(service: Service) -> None:
    service.start()
    expected = f"nemo-jobs is ready at {service.url} (data in {service.data_dir})\n"
    assert ready_line(service) == expected


def test_ready_answers_200_from_the_line_on(service: Service) -> None:
    service.spawn()
    until(lambda: service.stdout.exists() and "ready" in service.stdout.read_text(), 20, service.diagnosis)
    assert service.client().get("/health/ready").status == 200


def test_port_0_takes_a_free_port_and_names_it(service: Service) -> None:
    service.port = 0
    service.spawn()
    said = until(lambda: re.search(r"at http://127\.0\.0\.1:(\d+) ", service.stdout.read_text()), 20)
    service.port = int(said[1])
    assert service.client().get("/health/ready").status == 200


@pytest.mark.alone
def test_a_second_service_on_the_same_data_folder_is_refused(service: Service) -> None:
    service.start()
    second = Service(service.root, name="service")
    result = refused(second)
    assert result.returncode == 2
    assert str(service.data_dir) in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 3
    assert service.client().get("/health/ready").status == 200


def test_a_keeper_that_can_not_be_reached_is_told_in_one_line(service: Service) -> None:
    keeper = service.data_dir / "keeper"
    keeper.mkdir(mode=0o700, parents=True)
    service.data_dir.chmod(0o700)
    with (keeper / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = subprocess.run(
            service.command, capture_output=True, text=True, env=service.environ, timeout=20
        )
    assert (result.returncode, "Traceback" in result.stderr) == (2, False)
    assert "keeper" in result.stderr.strip().splitlines()[-1]


@pytest.mark.alone
def test_a_taken_port_is_refused(service: Service) -> None:
    with listening(service.port):
        result = refused(service)
    assert result.returncode == 2
    assert str(service.port) in result.stderr
    assert "Traceback" not in result.stderr
    assert not service.data_dir.exists()


@pytest.mark.alone
@pytest.mark.parametrize("role", ["api", "engine"])
def test_half_a_service_on_sqlite_is_refused(service: Service, role: str) -> None:
    result = refused(service, "--role", role)
    assert result.returncode == 2
    assert "--role" in result.stderr
    assert "PostgreSQL" in result.stderr
    assert not service.data_dir.exists()
    service.config.write_text(f"# postgresql? no\n{service.config.read_text()}")  # has to be read for it
    result = refused(service, "--role", role)
    assert (result.returncode, "PostgreSQL" in result.stderr) == (2, True)
    assert not service.data_dir.exists()


@pytest.mark.parametrize("kind", ["open to others", "a file"])
def test_a_working_directory_that_can_not_be_used_is_told_at_the_start(service: Service, kind: str) -> None:
    work = service.root / "work"
    if kind == "a file":
        work.touch()
    else:
        work.mkdir()
        work.chmod(0o755)
    service.start()
    [problem] = service.client().get("/status").json["problems"]
    assert problem.startswith(f"profile subprocess/default: the working directory {work} ")
    assert ("is not a directory" if kind == "a file" else "(chmod 700)") in problem
    assert problem in service.stderr.read_text()
    if kind != "a file":
        work.chmod(0o700)
        assert service.client().get("/status").json["problems"] == []


@pytest.mark.alone
def test_a_wrong_configuration_is_refused_with_every_problem(service: Service) -> None:
    service.config.write_text("jobs: {reconcile_interval_seconds: soon, schedule_intervall_seconds: 3}\n")
    result = refused(service)
    assert result.returncode == 2
    assert "reconcile_interval_seconds" in result.stderr
    assert "schedule_intervall_seconds" in result.stderr


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_clean_and_fast(service: Service, by: signal.Signals) -> None:
    service.start()
    began = time.monotonic()
    assert service.stop(by) == 0
    assert time.monotonic() - began < 5
    assert "Traceback" not in service.stderr.read_text()


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after", [0.15, 0.3, 0.45, 0.6])
def test_a_stop_while_it_starts_is_clean_and_fast(service: Service, by: signal.Signals, after: float) -> None:
    process = service.spawn()
    time.sleep(after)  # somewhere between the first import and the first answer
    began = time.monotonic()
    process.send_signal(by)
    code = process.wait(10)
    assert time.monotonic() - began < 5
    # Before Python itself has set up its handlers, the signal ends the process by default.
    assert code == 0 or (code in (-by, 1, 130) and after < 0.3 and not service.stdout.read_text())
    assert "Traceback" not in service.stderr.read_text()


def test_the_service_starts_again_after_kill_9(service: Service) -> None:
    service.start()
    client = service.client()
    assert client.create("before", ["true"]).status == 201
    client.wait("before")
    service.kill()
    service.start()
    assert service.client().job("before")["status"] == "completed"


def test_the_keeper_ends_when_nothing_is_left_to_keep(service: Service) -> None:
    service.start()
    service.client().create("short", ["true"])
    service.client().wait("short")
    assert service.stop() == 0
    until(lambda: not service.processes(), 20, lambda: f"still there: {service.processes()}")


def test_c026_a_running_job_survives_a_stop_and_is_adopted(service: Service) -> None:
    service.start()
    client = service.client()
    loop = "echo $$; i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; exit 7"
    assert client.create("lasting", ["sh", "-c", loop]).status == 201
    client.wait("lasting", "active")
    pid = int(until(lambda: client.messages("lasting"))[0])
    assert service.stop() == 0
    assert alive(pid)
    assert "1 host job keeps running; the next start adopts it\n" in service.stdout.read_text()
    service.start()
    client = service.client()
    assert client.job("lasting")["status"] == "active"
    assert client.wait("lasting")["status"] == "error"
    assert client.messages("lasting") == [str(pid), *(f"line {n}" for n in range(30))]
    (task,) = client.status("lasting")["steps"][0]["tasks"]
    assert task["status_details"]["exit_code"] == 7


@pytest.mark.parametrize("code", [0, 3])
def test_c026_a_job_that_ended_while_the_service_was_away(service: Service, code: int) -> None:
    service.start()
    client = service.client()
    client.create("away", ["sh", "-c", f"echo first; sleep 1; echo last; exit {code}"])
    client.wait("away", "active")
    until(lambda: client.messages("away"))
    service.kill()
    time.sleep(1.5)  # the job ends in the meantime
    service.start()
    client = service.client()
    assert client.wait("away")["status"] == ("error" if code else "completed")
    assert client.messages("away") == ["first", "last"]
    (task,) = client.status("away")["steps"][0]["tasks"]
    assert task["status_details"]["exit_code"] == code


def test_c026_an_adopted_job_can_be_cancelled(service: Service) -> None:
    service.start()
    client = service.client()
    client.create("endless", ["sh", "-c", "echo $$; sleep 300"])
    client.wait("endless", "active")
    pid = int(until(lambda: client.messages("endless"))[0])
    service.kill()
    service.start()
    client = service.client()
    assert client.post("/apis/jobs/v2/workspaces/default/jobs/endless/cancel").status == 200
    assert client.wait("endless")["status"] == "cancelled"
    assert not alive(pid)


def test_on_shutdown_stop_ends_the_jobs_with_the_service(tmp_path: Path) -> None:
    service = Service(tmp_path, subprocess_config={"on_shutdown": "stop"})
    try:
        service.start()
        client = service.client()
        client.create("endless", ["sh", "-c", "echo $$; sleep 300"])
        client.wait("endless", "active")
        pid = int(until(lambda: client.messages("endless"))[0])
        assert service.stop() == 0
        until(lambda: not alive(pid), 5)
    finally:
        service.close()


def test_everything_is_written_below_the_data_folder(service: Service) -> None:
    before = {path for path in service.root.rglob("*") if service.data_dir not in path.parents}
    service.start()
    service.client().create("writer", ["sh", "-c", "echo hello"])
    service.client().wait("writer")
    assert service.stop() == 0
    after = {path for path in service.root.rglob("*") if service.data_dir not in path.parents}
    work = service.root / "work"
    new = {path for path in after - before if path != work and work not in path.parents}
    assert new == {service.data_dir, service.stdout, service.stderr}


def test_tasks_get_the_address_that_is_listened_on(service: Service) -> None:
    service.start()
    client = service.client()
    client.create("address", ["sh", "-c", "echo $NHX_BASE_URL $NHX_JOBS_URL"])
    client.wait("address")
    assert set(client.messages("address")[0].split()) == {f"http://localhost:{service.port}"}


def test_a_free_port_of_another_service_is_left_alone(service: Service, tmp_path: Path) -> None:
    """Two services on two folders share nothing."""
    service.start()
    other = Service(tmp_path / "other")
    try:
        other.port = free_port()
        other.start()
        assert service.client().create("mine", ["true"]).status == 201
        assert other.client().get("/apis/jobs/v2/workspaces/default/jobs/mine").status == 404
    finally:
        other.close()

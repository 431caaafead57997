"""What containers print, from the program to the API, while service, engine and network fail."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bed.docker import DockerServer
from tests.bed.proxy import Proxy
from tests.e2e.docker_kit import DockerService, act, first_line, gone, run, task_of
from tests.e2e.service import Client, Json, in_threads, until

# Engines of busy machines take their time: what hangs is still ended.
pytestmark = pytest.mark.time_limit(180)

LOST = "[nemo-jobs] output may have been lost before this line, nobody knows how much"


@pytest.fixture
def client(containers: DockerService) -> Client:
    return containers.client()


@pytest.fixture
def proxy(docker: DockerServer, tmp_path: Path) -> Iterator[Proxy]:
    proxy = Proxy(str(docker.socket), tmp_path / "engine.sock")
    yield proxy
    proxy.close()


@pytest.fixture
def service(docker: DockerServer, proxy: Proxy, tmp_path: Path) -> Iterator[DockerService]:
    """A service of the test's own, which reaches the engine through the proxy."""
    service = DockerService(tmp_path / "service", docker, through=proxy)
    yield service.start()
    service.close()


def split(client: Client, name: str) -> tuple[list[str], list[str]]:
    """The lines of stdout, and those of stderr."""
    lines = client.messages(name)
    errors = [line.removeprefix("[stderr] ") for line in lines if line.startswith("[stderr] ")]
    return [line for line in lines if not line.startswith("[stderr] ")], errors


#: Writes until somebody says that it is enough, however slow the machine is.
SAME = (
    "i=0; while [ ! -e /marks/enough ]; do i=$((i+1)); "
    "echo $i; echo same; echo same; echo e$i >&2; sleep .04; done; echo last"
)


def enough(service: DockerService) -> None:
    (service.marks / "enough").touch()


def check_same(client: Client, name: str) -> None:
    assert client.wait(name, timeout=60)["status"] == "completed"
    out, err = split(client, name)
    count = len(err)
    assert count > 20
    assert out == [text for i in range(1, count + 1) for text in (str(i), "same", "same")] + ["last"]
    assert err == [f"e{i}" for i in range(1, count + 1)]


def grows(client: Client, name: str) -> None:
    before = len(client.messages(name))
    until(lambda: len(client.messages(name)) > before)


@pytest.mark.time_limit(90)
def test_c019_each_line_is_there_once_however_often_connections_are_cut(
    service: DockerService, proxy: Proxy
) -> None:
    client = service.client()
    run(client, "moth", SAME)
    first_line(client, "moth")
    chance = random.Random(5)
    for _ in range(15):
        proxy.faults.cut_after = chance.choice((0, 0, 700, 5000))
        proxy.cut()
        time.sleep(chance.uniform(0.1, 0.8))
    proxy.faults.cut_after = 0
    enough(service)
    check_same(client, "moth")


@pytest.mark.time_limit(90)
def test_c019_each_line_is_there_once_however_often_the_service_is_killed(service: DockerService) -> None:
    client = service.client()
    run(client, "moth", SAME)
    for _ in range(3):
        grows(client, "moth")
        service.kill()
        client = service.start(timeout=40).client()
    enough(service)
    check_same(client, "moth")


@pytest.mark.time_limit(150)
def test_c024_service_and_engine_are_killed_in_turn_and_every_line_is_counted(
    start_docker: Callable[..., DockerServer], tmp_path: Path
) -> None:
    """Containers go on (live-restore): what they write while nobody is there waits for the engine."""
    docker = start_docker(gpus=False)
    service = DockerService(tmp_path / "service", docker)
    try:
        client = service.start().client()
        for number in range(3):
            run(client, f"storm-{number}", SAME)
        for _ in range(2):
            for number in range(3):
                grows(client, f"storm-{number}")
            docker.kill()
            time.sleep(0.3)
            service.kill()
            docker.resume()
            client = service.start(timeout=40).client()
        enough(service)
        for number in range(3):
            check_same(client, f"storm-{number}")
        gone(service.containers)
    finally:
        service.close()


@pytest.mark.time_limit(90)
def test_output_that_an_engine_lost_while_it_was_away_is_told_to_be_missing(
    start_docker: Callable[..., DockerServer], tmp_path: Path
) -> None:
    """The container ends while nobody reads its pipe: what was in it is gone, with live-restore too."""
    docker = start_docker(gpus=False)
    service = DockerService(tmp_path / "service", docker)
    try:
        client = service.start().client()
        run(
            client,
            "away",
            "echo one; while [ ! -e /marks/go ]; do sleep .05; done; echo two; touch /marks/end",
        )
        first_line(client, "away")
        docker.kill()
        (service.marks / "go").touch()
        until(lambda: (service.marks / "end").exists())
        time.sleep(0.5)
        docker.resume()
        client.wait("away", timeout=40)
        lines = client.messages("away")
        assert lines in (["one", LOST], ["one", "two", LOST])
    finally:
        service.close()


@pytest.mark.time_limit(90)
def test_c019_a_line_of_many_megabytes_is_whole_over_a_kill(service: DockerService) -> None:
    """The log keeps it as lines of 1 MiB, of which nothing is missing."""
    client = service.client()
    text = (
        "echo first; head -c 9000000 /dev/zero | tr '\\0' x; sleep 1; head -c 3000000 /dev/zero | tr '\\0' y"
    )
    run(client, "long", f"{text}; echo; echo last")
    until(lambda: len(client.messages("long")) >= 5)
    service.kill()
    client = service.start().client()
    assert client.wait("long", timeout=40)["status"] == "completed"
    first, *parts, last = client.messages("long")
    assert (first, last) == ("first", "last")
    assert "".join(parts) == "x" * 9_000_000 + "y" * 3_000_000


@pytest.mark.time_limit(90)
def test_what_the_engine_dropped_while_nobody_read_is_told(docker: DockerServer, tmp_path: Path) -> None:
    small: Json = {"log_max_bytes": 65536, "log_max_files": 2}
    service = DockerService(tmp_path / "service", docker, profile=small)
    try:
        client = service.start().client()
        run(client, "lost", "echo begin; while [ ! -e /marks/go ]; do sleep .05; done; seq 1 20000; sleep 1")
        first_line(client, "lost")
        service.kill()
        (service.marks / "go").touch()
        container = service.container("lost")["Id"]
        docker.api.post(f"/containers/{container}/wait")
        client = service.start().client()
        assert client.wait("lost")["status"] == "completed"
        begin, lost, *rest = client.messages("lost")
        assert (begin, lost) == ("begin", LOST)
        assert rest == [str(i) for i in range(int(rest[0]), 20001)]
        assert len(rest) < 20000
    finally:
        service.close()


def test_c041_of_a_container_that_is_removed_the_log_so_far_is_kept(
    client: Client, containers: DockerService
) -> None:
    run(client, "c041", "echo one; echo two; sleep 60")
    until(lambda: client.messages("c041") == ["one", "two"])
    container = containers.container("c041")["Id"]
    containers.api.delete(f"/containers/{container}", force=True)
    job = client.wait("c041")
    assert job["status"] == "error"
    assert "removed" in job["error_details"]["message"]
    assert client.messages("c041") == ["one", "two"]


def test_c041_output_of_a_container_that_vanished_while_nobody_looked_is_told_to_be_lost(
    service: DockerService, docker: DockerServer
) -> None:
    client = service.client()
    run(client, "c041", "echo one; sleep 60")
    first_line(client, "c041")
    container = service.container("c041")["Id"]
    service.kill()
    docker.api.delete(f"/containers/{container}", force=True)
    client = service.start().client()
    assert client.wait("c041")["status"] == "error"
    assert client.messages("c041") == ["one", LOST]


def test_c049_a_nul_byte_spoils_neither_its_line_nor_its_neighbours(client: Client) -> None:
    run(client, "c049", r"echo before; printf 'a\000b\n'; echo next")
    client.wait("c049")
    assert client.messages("c049") == ["before", "a\ufffdb", "next"]


def test_c036_escape_sequences_are_kept_for_those_who_want_them(client: Client) -> None:
    run(client, "c036", r"printf '\033[31mred\033[0m \033]0;pwn\007 \033[2J done\n'; echo after")
    client.wait("c036")
    assert client.messages("c036") == ["\x1b[31mred\x1b[0m \x1b]0;pwn\x07 \x1b[2J done", "after"]


@pytest.mark.time_limit(120)
def test_c056_a_loud_container_is_cut_with_a_marker_and_others_stay_quick(
    docker: DockerServer, tmp_path: Path
) -> None:
    small: Json = {"log_max_bytes": 1 << 20, "log_max_files": 2}
    service = DockerService(tmp_path / "service", docker, profile=small)
    service.add_settings({"jobs": {"log_limit_bytes": 1_000_000}})
    try:
        client = service.start().client()
        run(client, "c056", "yes 0123456789012345678901234567890123456789 | head -c 20000010; echo end")
        run(client, "other", "echo quiet")
        assert client.wait("other", timeout=40)["status"] == "completed"
        assert client.wait("c056", timeout=90)["status"] == "completed"
        marker = "[nemo-jobs] log limit of 1000000 bytes reached; later output is discarded"
        lines = client.messages("c056")
        assert lines[-1] == marker
        assert lines.count(marker) == 1
        assert len(lines) < 100_000
        assert client.messages("other") == ["quiet"]
    finally:
        service.close()


@pytest.mark.time_limit(90)
def test_c067_a_silent_container_on_a_connection_that_died_is_read_to_its_end(
    service: DockerService, proxy: Proxy
) -> None:
    """Silence is no failure; the connections for output and events are dead and nobody says so."""
    client = service.client()
    run(client, "c067", "echo first; sleep 4; echo done")
    first_line(client, "c067")
    proxy.deafen()
    time.sleep(1.5)
    assert client.job("c067")["status"] == "active"
    assert client.wait("c067", timeout=60)["status"] == "completed"
    assert client.messages("c067") == ["first", "done"]


def test_c067_a_connection_that_is_closed_while_it_is_silent_ends_nothing(
    service: DockerService, proxy: Proxy
) -> None:
    client = service.client()
    run(client, "c067", "echo first; sleep 3; echo done")
    first_line(client, "c067")
    proxy.cut()
    assert client.wait("c067")["status"] == "completed"
    assert client.messages("c067") == ["first", "done"]


def test_a_run_that_was_paused_and_resumed_has_each_line_of_both_once(client: Client) -> None:
    """The same container is started again, and its log goes on."""
    run(
        client,
        "twice",
        "if [ ! -e /tmp/first ]; then touch /tmp/first; seq 1 300; sleep 60; fi; seq 301 400; printf end",
    )
    until(lambda: len(client.messages("twice")) == 300)
    act(client, "twice", "pause")
    client.wait("twice", "paused")
    act(client, "twice", "resume")
    assert client.wait("twice")["status"] == "completed"
    assert client.messages("twice") == [*map(str, range(1, 401)), "end"]


def test_what_a_container_used_is_known_at_its_end(containers: DockerService) -> None:
    def one(number: int) -> None:
        client, name = containers.client(), f"used-{number}"
        run(client, name, "head -c 20000000 /dev/zero | tail -c 20000000 > /dev/null; sleep 2.5")
        assert client.wait(name)["status"] == "completed"
        details = task_of(client, name)["status_details"]
        assert 0 < details["cpu_seconds"] < 60
        assert 20_000_000 < details["peak_memory_bytes"] < 500_000_000

    in_threads(one, 4)

"""Engines that come and go under a service: its profiles, its status, its metrics; and the example."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bed.docker import DockerServer
from tests.bed.proxy import Proxy
from tests.e2e.docker_kit import PREFIX, DockerService, act, first_line, run, says
from tests.e2e.service import Client, Json, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "words" / "job.yaml"


@pytest.fixture
def proxy(docker: DockerServer, tmp_path: Path) -> Iterator[Proxy]:
    made = Proxy(str(docker.socket), tmp_path / "engine.sock")
    yield made
    made.close()


def nemo(service: DockerService, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as somebody would call it on this machine."""
    command = [str(Path(sys.executable).with_name("nemo")), "--base-url", service.url, *arguments]
    environ = {"HOME": str(service.data_dir), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    environ["PATH"] = os.environ["PATH"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


def health(client: Client) -> dict[str, Json]:
    listed = client.get("/apis/jobs/v2/execution-profiles").json
    return {f"{one['provider']}/{one['profile']}": one["health"] for one in listed}


@pytest.mark.time_limit(180)
def test_c051_a_lost_engine_turns_its_profiles_unhealthy_and_ends_nothing(
    docker: DockerServer, proxy: Proxy, tmp_path: Path
) -> None:
    service = DockerService(tmp_path / "service", docker, through=proxy)
    back: Proxy | None = None
    try:
        client = service.start().client()
        assert all(one["ok"] for one in health(client).values())
        run(client, "long", "echo begins; sleep 300")
        first_line(client, "long")
        proxy.close()
        until(lambda: not health(client)["cpu/default"]["ok"], 30)
        found = health(client)
        assert "no Docker engine" in found["cpu/default"]["message"]
        assert not found["gpu/default"]["ok"] and found["subprocess/default"]["ok"]
        status = client.get("/status").json
        assert status["status"] == "degraded"
        assert any(problem.startswith("docker: ") for problem in status["problems"])
        metrics = client.get("/metrics").body.decode()
        assert 'nemo_jobs_profile_up{profile="default",provider="cpu"} 0.0' in metrics
        assert 'nemo_jobs_profile_up{profile="default",provider="subprocess"} 1.0' in metrics
        run(client, "waits", "echo hello")
        says(client, "waits", "can't be used now", 30)
        assert client.status("waits")["status"] == "created"
        says(client, "long", "can't be asked now: no Docker engine", 30)
        assert client.status("long")["status"] == "active"
        back = Proxy(str(docker.socket), tmp_path / "engine.sock")
        until(lambda: health(client)["cpu/default"]["ok"], 40)
        client.wait("waits", "completed", timeout=40)
        assert client.messages("waits") == ["hello"]
        says(client, "long", "running", 40)
        assert client.status("long")["status"] == "active"
        act(client, "long", "cancel")
        client.wait("long", "cancelled", timeout=40)
    finally:
        service.close()
        if back is not None:
            back.close()


@pytest.mark.time_limit(180)
def test_work_that_begins_when_the_engine_is_back_is_told_of_no_loss(
    start_docker: Callable[..., DockerServer], tmp_path: Path
) -> None:
    engine = start_docker(gpus=False)
    service = DockerService(tmp_path / "service", engine)
    try:
        client = service.start().client()
        run(client, "before", "echo begins; sleep 300")
        first_line(client, "before")
        engine.kill()
        run(client, "after", "echo hello")
        says(client, "before", "can't be asked now", 20)
        engine.resume()
        client.wait("after", "completed", timeout=60)
        assert client.messages("after") == ["hello"]
    finally:
        service.close()


@pytest.mark.time_limit(180)
def test_a_service_without_its_engine_keeps_what_ran_there(
    docker: DockerServer, proxy: Proxy, tmp_path: Path
) -> None:
    service = DockerService(tmp_path / "service", docker, through=proxy)
    back: Proxy | None = None
    try:
        client = service.start().client()
        run(client, "long", "echo begins; sleep 20; echo ends")
        first_line(client, "long")
        service.kill()
        proxy.close()
        client = service.start().client()
        assert set(health(client)) == {"subprocess/default"}
        left_out = client.get("/status").json["profiles_left_out"]
        assert {one["profile"] for one in left_out if "no Docker engine" in one["reason"]} == {"default"}
        says(client, "long", "can't be asked now: no Docker engine", 40)
        assert client.status("long")["status"] == "active"
        back = Proxy(str(docker.socket), tmp_path / "engine.sock")
        client.wait("long", "completed", timeout=60)
        assert client.messages("long") == ["begins", "ends"]
        assert health(client)["cpu/default"]["ok"]
    finally:
        service.close()
        if back is not None:
            back.close()


@pytest.mark.time_limit(180)
def test_the_example_in_containers_does_what_its_page_says(containers: DockerService, tmp_path: Path) -> None:
    client = containers.client()
    told = nemo(containers, "jobs", "create", "words", "--input-file", str(EXAMPLE), "--watch")
    assert told.returncode == 0, told
    assert client.messages("words") == ["wrote 33 words", "most often: 12 the"]
    got = nemo(containers, "jobs", "results", "download", "counts.txt", "--job", "words", "-o", str(tmp_path))
    assert got.returncode == 0, got
    assert (tmp_path / "counts.txt").read_text().splitlines()[0] == "12 the"


@pytest.mark.time_limit(180)
def test_a_sweep_shows_and_removes_what_nobody_owns_and_touches_nothing_else(
    containers: DockerService, docker: DockerServer
) -> None:
    client = containers.client()
    run(client, "swept", "echo begins; sleep 300")
    first_line(client, "swept")
    labels = dict(label.split("=", 1) for label in (containers.owner, "nemo-jobs.key=nj-nobody-0"))
    labels |= {PREFIX + "managed_by": "jobs-controller", PREFIX + "job_execution_backend": "docker"}
    foreign = labels | {PREFIX + "jobs_controller_instance_id": "somebody-else"}
    for name, marks in (("sweep-ours", labels), ("sweep-foreign", foreign)):
        docker.api.post("/volumes/create", {"Name": name, "Labels": marks})
    try:
        found = json.loads(nemo(containers, "services", "sweep", "--dry-run", "-f", "json").stdout)
        assert [(one["name"], one["state"]) for one in found["data"]] == [("sweep-ours", "kept")]
        names = {one["Name"] for one in docker.api.volumes()}
        assert {"sweep-ours", "sweep-foreign"} <= names
        assert client.status("swept")["status"] == "active"
    finally:
        for name in ("sweep-ours", "sweep-foreign"):
            docker.api.delete(f"/volumes/{name}", force=True)
        act(client, "swept", "cancel")

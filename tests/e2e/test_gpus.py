"""Host processes with GPUs of their own, through real services that are killed, and reservations.

The machine needs no GPU: `gpu_device_count` says how many there are. That no two processes have one at
the same time is checked by the processes themselves, outside of the service.
"""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bed.postgres import Missing, PostgresServer
from tests.e2e.service import JOBS, NEMO, Client, Json, Service, job, until

GPUS = "/apis/jobs/v2/gpus"
#: Makes a folder for each of its GPUs, which only one can, and takes them away at its end.
ALONE = """
for id in ${{CUDA_VISIBLE_DEVICES//,/ }}; do
    mkdir {root}/gpu-$id || {{ echo "GPU $id is in use"; exit 9; }}
done
sleep {seconds}
for id in ${{CUDA_VISIBLE_DEVICES//,/ }}; do rmdir {root}/gpu-$id; done
"""
SHOW = 'echo "$CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"'


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def started(gpus: int = 4, **given: object) -> Service:
        config = {"graceful_shutdown_timeout_seconds": 1, "max_concurrent": 8}
        environ = {"NHX_DOCKER_GPU_DEVICE_COUNT": str(gpus)}
        made.append(Service(tmp_path, subprocess_config=config, environ=environ, **given))  # type: ignore[arg-type]
        return made[-1].start()

    try:
        yield started
    finally:
        for service in made:
            service.close()


@pytest.fixture
def database() -> Iterator[str]:
    try:
        server = PostgresServer.start()
    except Missing as error:
        pytest.skip(str(error))
    try:
        yield server.new_database()
    finally:
        server.destroy()


def gpu_job(name: str, gpus: int, text: str, **fields: object) -> Json:
    made = job(name, ["bash", "-c", text], **fields)
    for step in made["platform_spec"]["steps"]:
        step["executor"]["resources"] = {"num_gpus": gpus}
    return made


def create(client: Client, name: str, gpus: int, text: str) -> Json:
    answer = client.post(JOBS, gpu_job(name, gpus, text))
    assert answer.status == 201, answer
    return answer.json


def alone(service: Service, seconds: float) -> str:
    return ALONE.format(root=service.root, seconds=seconds)


def holders(client: Client) -> dict[str, Json | None]:
    return {device["id"]: device["holder"] for device in client.get(GPUS).json["data"]}


def pool_is_known(client: Client) -> None:
    until(lambda: client.get(GPUS).json["data"], 10)


def nemo(service: Service, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environ = {**service.environ, "NHX_BASE_URL": service.url, "NEMO_CONFIG": str(service.root / "none")}
    done = subprocess.run([NEMO, *args], env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def test_processes_see_exactly_the_gpus_that_are_theirs(start: Callable[..., Service]) -> None:
    client = start().client()
    create(client, "two", 2, SHOW)
    client.wait("two", "completed")
    assert client.messages("two") == ["0,1 0,1 PCI_BUS_ID"]
    assert client.create("none", ["bash", "-c", SHOW]).status == 201
    client.wait("none", "completed")
    assert client.messages("none") == ["  "]
    assert client.status("two")["steps"][0]["status_details"]["gpus"] == {"devices": ["0", "1"]}
    create(client, "holds", 3, "sleep 60")
    client.wait("holds", "active")
    create(client, "waits", 2, SHOW)

    def told() -> str | None:
        step = client.status("waits")["steps"][0]["status_details"]
        return str(step["message"]) if step["reason"] == "waiting_for_gpus" else None

    assert "waits for 2 GPUs: 1 of 4 free; held by default/holds/step-1 (3 GPUs since" in until(told, 10)
    assert client.job("waits")["status"] == "created"
    who = {"kind": "step", "workspace": "default", "job": "holds", "step": "step-1"}
    assert holders(client) == {"0": who, "1": who, "2": who, "3": None}
    client.post(f"{JOBS}/holds/cancel")
    client.wait("waits", "completed")
    until(lambda: set(holders(client).values()) == {None}, 10)


def test_more_than_there_are_is_refused_at_once(start: Callable[..., Service]) -> None:
    client = start(2).client()
    pool_is_known(client)
    answer = client.post(JOBS, gpu_job("huge", 3, "true"))
    assert answer.status == 422 and "step 'step-1' asks for 3 GPUs, but the pool of" in answer.json["detail"]
    assert answer.json["detail"].endswith("has 2")
    for number in (-1, 1025):
        assert client.post(JOBS, gpu_job("odd", number, "true")).status == 422


def test_a_host_without_gpus_says_what_to_do(start: Callable[..., Service], tmp_path: Path) -> None:
    service = Service(tmp_path / "bare").start()
    try:
        client = service.client()
        until(lambda: client.get(GPUS).json["pools"], 10)
        (pool,) = client.get(GPUS).json["pools"]
        if pool["total"]:
            pytest.skip("this machine has GPUs")
        answer = client.post(JOBS, gpu_job("moth", 1, "true"))
        assert answer.status == 422
        assert "there are none in the pool of" in answer.json["detail"]
        assert "platform.docker.gpu_device_count" in answer.json["detail"]
        assert client.get("/status").json["status"] == "healthy"
    finally:
        service.close()


@pytest.mark.time_limit(120)
def test_kills_of_the_service_never_double_or_leak_a_gpu(start: Callable[..., Service]) -> None:
    service = start(3)
    client = service.client()
    names = [f"job-{number}" for number in range(12)]
    for number, name in enumerate(names):
        create(client, name, 1 + number % 3, alone(service, 0.4))
        if number % 3 == 2:
            service.kill()
            service.start()
            client = service.client()
    for name in names:
        found = client.wait(name, timeout=60)
        assert found["status"] == "completed", (name, found, client.messages(name))
    until(lambda: set(holders(client).values()) == {None}, 20)
    assert not list(service.root.glob("gpu-*"))


@pytest.mark.time_limit(120)
def test_two_services_on_one_host_share_one_pool(start: Callable[..., Service], database: str) -> None:
    services = [start(3, database_url=database, name=f"service-{number}") for number in range(2)]
    clients = [service.client() for service in services]
    names = [f"job-{number}" for number in range(10)]
    for number, name in enumerate(names):
        create(clients[number % 2], name, 1 + number % 3, alone(services[0], 0.3))
        if number == 5:
            services[0].kill()
            services[0].start()
            clients[0] = services[0].client()
    for name in names:
        found = clients[1].wait(name, timeout=60)
        assert found["status"] == "completed", (name, found, clients[1].messages(name))
    until(lambda: set(holders(clients[1]).values()) == {None}, 40)
    (pool,) = clients[1].get(GPUS).json["pools"]
    assert (pool["total"], pool["free"], pool["waiting"]) == (3, 3, 0)


def test_reservations_by_command_hold_what_jobs_wait_for(start: Callable[..., Service]) -> None:
    service = start(2)
    client = service.client()
    pool_is_known(client)
    made = nemo(service, "gpus", "reserve", "--count", "2", "--for", "llama", "--ids")
    assert made.stdout == "0,1\n"
    refused = nemo(service, "gpus", "reserve", "--count", "1", "--for", "other", code=3)
    assert "not reserved: it waits for 1 GPU: 0 of 2 free; held by reservation llama" in refused.stderr
    late = nemo(
        service, *("gpus", "reserve", "--count", "1", "--for", "late", "--wait", "--timeout", "0.5"), code=1
    )
    assert "reservation late did not get its GPUs within 0.5 s" in late.stderr
    create(client, "moth", 1, SHOW)
    shown = nemo(service, "gpus", "-f", "csv")
    assert [line.split(",")[0] for line in shown.stdout.splitlines()] == ["id", "0", "1"]
    assert shown.stdout.count("reservation llama") == 2 and "0 of 2 free, 1 waiting" in shown.stderr
    assert "default/moth/step-1 waits for 1 GPU" in shown.stderr
    answers: list[str] = []
    queued = threading.Thread(
        target=lambda: answers.append(
            nemo(service, "gpus", "reserve", "--count", "2", "--for", "next", "--wait").stdout
        )
    )
    queued.start()
    until(lambda: len(client.get(GPUS).json["waiting"]) == 2, 10)
    nemo(service, "gpus", "release", "llama")
    client.wait("moth", "completed")
    queued.join(20)
    assert json.loads(answers[0])["devices"] == ["0", "1"]
    assert nemo(service, "gpus", "release", "llama", code=3).stderr.count("no reservation 'llama'") == 1
    assert json.loads(nemo(service, "gpus", "-f", "json").stdout)["reservations"][0]["name"] == "next"

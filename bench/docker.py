"""Containers: what the service adds to what the engine itself needs, on an engine of the bed.

The floor is the same engine spoken to by its API alone, with containers of the same options.
"""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.load import request, send_all
from bench.machine import cpu_of
from bench.measures import LINES, Bench, Values, text_file
from tests.bed.docker import DockerServer, Missing
from tests.bed.docker_api import Api, Connection, Json
from tests.bed.docker_images import BUSYBOX
from tests.bed.proxy import Proxy
from tests.e2e.docker_kit import DockerService, act, container_step, submit
from tests.e2e.service import ENDED, JOBS, Client, until

AT_ONCE = 4


class Skipped(Exception):
    """Nothing was measured; the text says why."""


def docker(bench: Bench) -> Values:
    """One by one, four at a time, a long log, and many that only run."""
    try:
        engine = DockerServer.start(live_restore=False)
    except Missing as error:
        raise Skipped(str(error)) from error
    root = bench.root / f"docker-{next(bench.serial)}"
    try:
        values: Values = {}
        for measure in (one_by_one, together, long_log, idle):
            values |= with_service(engine, root / measure.__name__, bench, measure)
        return values
    finally:
        engine.destroy()


def with_service(
    engine: DockerServer, root: Path, bench: Bench, measure: Callable[[DockerService, Bench], Values]
) -> Values:
    """Each measure has a fresh service; `idle` counts what it asks of the engine."""
    proxy = Proxy(str(engine.socket)) if measure is idle else None
    four = {"provider": "cpu", "profile": "four", "config": {"max_concurrent": AT_ONCE}}
    many = {"provider": "cpu", "profile": "many", "config": {"max_concurrent": 200}}
    service = DockerService(root, engine, through=proxy, executors=[four, many])
    try:
        service.start()
        return idle(service, bench, proxy) if proxy else measure(service, bench)
    finally:
        service.close()
        if proxy:
            proxy.close()


def one_by_one(service: DockerService, bench: Bench) -> Values:
    """create -> completed of `true`; by turns with the bare engine, since its times wander."""
    count, client, api = bench.count(60), service.client(120), Api(str(service.docker.socket))
    ours, bare = [], []
    for number in range(count + 2):
        began = time.perf_counter()
        run_bare(api)
        between = time.perf_counter()
        create(client, f"one-{number}", "default")
        while client.job(f"one-{number}")["status"] != "completed":
            time.sleep(0.0005)
        ended = time.perf_counter()
        if number >= 2:
            bare.append(between - began)
            ours.append(ended - between)
        until(lambda: not service.containers(), 20)
    middle, floor = statistics.median(ours), statistics.median(bare)
    return {
        "container_p50_ms": middle * 1000,
        "container_p95_ms": statistics.quantiles(ours, n=20)[-1] * 1000,
        "floor_container_p50_ms": floor * 1000,
        "container_added_ms": (middle - floor) * 1000,
    }


def together(service: DockerService, bench: Bench) -> Values:
    """200 jobs of `true` with 4 at a time; the floor before and after."""
    count, client, api = bench.count(200), service.client(120), Api(str(service.docker.socket))
    before = floor_together(api, count)
    cpu, began = cpu_of(service.pid), time.perf_counter()
    bodies = (body(f"many-{number}", "four") for number in range(count))
    result = send_all(service.port, (request("POST", JOBS, one) for one in bodies), AT_ONCE)
    assert set(result.statuses) == {201}, result.statuses
    until(lambda: total(client, "completed") >= count, 300, every=0.01)
    rate = count / (time.perf_counter() - began)
    used = cpu_of(service.pid) - cpu
    until(lambda: not service.containers(), 60, every=0.2)
    floor = statistics.mean((before, floor_together(api, count)))
    return {
        "containers_per_second": rate,
        "floor_containers_per_second": floor,
        "containers_ratio_to_floor": rate / floor,
        "service_cpu_ms_per_container": used / count * 1000,
    }


def long_log(service: DockerService, bench: Bench) -> Values:
    """A container that prints 100 MB; the floor is following the engine's stream and counting."""
    lines, client, api = bench.count(LINES), service.client(120), Api(str(service.docker.socket))
    source = text_file(service.marks, lines)
    command = ["cat", f"/marks/{source.name}"]
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        read = follow(service, api, command)
        seconds.append(time.perf_counter() - began)
        assert read >= source.stat().st_size, read
    began = time.perf_counter()
    submit(client, "long", container_step(command))
    until(lambda: logged(client, "long") >= lines, 300, every=0.01)
    stored = time.perf_counter() - began
    client.wait("long", "completed")
    numbers = [int(text[:9]) for text in client.messages("long")]
    size = source.stat().st_size / 1e6
    return {
        "container_log_mb_per_second": size / stored,
        "floor_container_log_mb_per_second": size / min(seconds),
        "container_log_ratio_to_floor": min(seconds) / stored,
        "container_log_lines_wrong": lines - len(numbers) + sum(n != i for i, n in enumerate(numbers)),
    }


def idle(service: DockerService, bench: Bench, proxy: Proxy | None = None) -> Values:
    """100 containers that run and say nothing: calls to the engine a second."""
    assert proxy is not None
    count, client = bench.count(100), service.client(120)
    for number in range(count):
        create(client, f"idle-{number}", "many", ["sleep", "600"])
    until(lambda: total(client, "active") >= count, 300, every=0.1)
    time.sleep(3)
    cpu = cpu_of(service.pid)
    time.sleep(10)
    values = {
        "idle_calls_per_second": proxy.rate(10),
        "idle_cpu_percent": (cpu_of(service.pid) - cpu) / 10 * 100,
    }
    for number in range(count):
        act(client, f"idle-{number}", "cancel")
    until(lambda: sum(total(client, state) for state in ENDED) >= count, 300, every=0.2)
    return values


def body(name: str, profile: str, command: list[str] | None = None) -> Json:
    step = container_step(command or ["true"], profile=profile)
    return {"name": name, "source": "bench", "spec": {}, "platform_spec": {"steps": [step]}}


def create(client: Client, name: str, profile: str, command: list[str] | None = None) -> None:
    answer = client.post(JOBS, body(name, profile, command))
    assert answer.status == 201, answer


def total(client: Client, state: str) -> int:
    answer = client.get(f"{JOBS}?page_size=1&filter%5Bstatus%5D={state}").json
    found: int = answer["pagination"]["total_results"]
    return found


def logged(client: Client, name: str) -> int:
    found: int = client.get(f"{JOBS}/{name}/logs?tail=1").json["total"]
    return found


def run_bare(api: Api) -> None:
    """The engine's own create, start, wait and remove."""
    place = f"/containers/{create_bare(api, ['true'])}"
    api.post(f"{place}/start")
    assert api.post(f"{place}/wait")["StatusCode"] == 0
    api.delete(place)


def create_bare(
    api: Api, command: list[str], binds: list[str] | None = None, files: dict[str, str] | None = None
) -> str:
    log = {"Type": "json-file", "Config": files or {"max-size": "268435456", "max-file": "4"}}
    host = {"NetworkMode": "host", "Init": True, "LogConfig": log, "Binds": binds or []}
    made: str = api.post("/containers/create", {"Image": BUSYBOX, "Cmd": command, "HostConfig": host})["Id"]
    return made


def floor_together(api: Api, count: int) -> float:
    """Containers a second, four at a time."""
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda _: run_bare(api), range(count)))
    return count / (time.perf_counter() - began)


def follow(service: DockerService, api: Api, command: list[str]) -> int:
    """Run it on the bare engine and read its log as it comes; the bytes read."""
    place = f"/containers/{create_bare(api, command, [f'{service.marks}:/marks'])}"
    api.post(f"{place}/start")
    connection, read = Connection(str(service.docker.socket), 120), 0
    try:
        connection.request("GET", f"{place}/logs?follow=1&stdout=1&stderr=1&timestamps=1")
        response = connection.getresponse()
        for piece in iter(lambda: response.read1(1 << 16), b""):
            read += len(piece)
    finally:
        connection.close()
        api.delete(place, force=True)
    return read

"""The measures of the service. Each is one round: our value, and the floors taken right beside it."""

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import floors
from bench.load import Result, for_seconds, request, send_all
from bench.machine import cpu_of, reset_peak, rss
from tests.e2e.service import ENDED, JOBS, NEMO, Client, Service, free_port, job, until

Values = dict[str, float]
CLIENTS, CREATORS, READERS = 16, 64, 16
LINES, WIDTH = 1_000_000, 100


@dataclass
class Bench:
    """A service that has been started, and how much to do."""

    service: Service
    root: Path
    scale: float = 1.0  # 1 for the figures of the documentation, less for a quick look
    serial: Iterator[int] = field(default_factory=itertools.count)

    def count(self, full: int) -> int:
        return max(int(full * self.scale), 1)

    def client(self) -> Client:
        return self.service.client(120)

    def names(self, count: int) -> list[str]:
        return [f"bench-{next(self.serial)}" for _ in range(count)]

    def total(self, client: Client, state: str = "") -> int:
        query = f"&filter%5Bstatus%5D={state}" if state else ""
        answer = client.get(f"{JOBS}?page_size=1{query}").json
        total: int = answer["pagination"]["total_results"]
        return total

    def quiet(self) -> None:
        """Wait until nothing of the last measure is left to do."""
        client = self.client()
        until(lambda: sum(self.total(client, state) for state in ENDED) == self.total(client), 300, every=0.1)
        time.sleep(0.3)


def latency(bench: Bench) -> Values:
    """create -> completed of `true`, one at a time."""
    count, client = bench.count(200), bench.client()
    seconds = []
    for name in bench.names(count):
        began = time.perf_counter()
        assert client.create(name, ["true"]).status == 201
        while json.loads(client.get(f"{JOBS}/{name}").body)["status"] != "completed":
            time.sleep(0.0003)
        seconds.append(time.perf_counter() - began)
    values = {
        "create_to_completed_p50_ms": statistics.median(seconds) * 1000,
        "create_to_completed_p95_ms": statistics.quantiles(seconds, n=20)[-1] * 1000,
        "floor_spawn_wait_p50_ms": statistics.median(floors.spawn_and_wait(count)) * 1000,
    }
    with floors.task_spooler(bench.root / "tsp", 1) as spooler:
        if spooler:
            values["floor_task_spooler_p50_ms"] = statistics.median(spooler.one_by_one(count)) * 1000
    return values


def throughput(bench: Bench) -> Values:
    """1,000 `true` jobs through HTTP, from 16 clients, until the last has completed."""
    count, client = bench.count(1000), bench.client()
    before = bench.total(client, "completed")
    began, cpu = time.perf_counter(), cpu_of(bench.service.pid)
    result = create(bench, count, CLIENTS)
    until(lambda: bench.total(client, "completed") >= before + count, 120, every=0.01)
    values = {
        "jobs_per_second": count / (time.perf_counter() - began),
        "service_cpu_ms_per_job": (cpu_of(bench.service.pid) - cpu) / count * 1000,
        "client_cpu_ms_per_job": result.client_cpu / count * 1000,
    }
    with floors.task_spooler(bench.root / "tsp", 32) as spooler:
        if spooler:
            values["floor_task_spooler_per_second"] = spooler.many(count, CLIENTS)
    return values


def create(bench: Bench, count: int, connections: int) -> Result:
    messages = [request("POST", JOBS, job(name, ["true"])) for name in bench.names(count)]
    result = send_all(bench.service.port, iter(messages), connections)
    assert set(result.statuses) == {201}, result.statuses
    return result


def creates(bench: Bench) -> Values:
    """5,000 creates from 64 clients, while the engine runs them."""
    count, client = bench.count(5000), bench.client()
    before = bench.total(client)
    result = create(bench, count, CREATORS)
    lost = before + count - bench.total(client)
    rows = floors.group_commits(bench.root / "commits", count, CREATORS)
    bench.quiet()
    return {
        "creates_per_second": result.per_second,
        "create_p50_ms": statistics.median(result.seconds) * 1000,
        "create_max_ms": max(result.seconds) * 1000,
        "lost": lost,
        "client_cpu_share": result.client_cpu / result.wall,
        "floor_sqlite_rows_per_second": rows,
        "floor_sqlite_group_commits_per_second": rows / CREATORS,
    }


def gets(bench: Bench) -> Values:
    """GET one job on 16 connections."""
    seconds, client = max(4 * bench.scale, 1), bench.client()
    (name,) = bench.names(1)
    client.create(name, ["true"])
    client.wait(name)
    message = request("GET", f"{JOBS}/{name}")
    size = len(client.get(f"{JOBS}/{name}").body)
    result = send_all(bench.service.port, for_seconds(message, seconds), READERS)
    assert set(result.statuses) == {200}
    bare = floors.bare_answers(size, READERS, seconds)
    return {
        "gets_per_second": result.per_second,
        "get_p50_ms": statistics.median(result.seconds) * 1000,
        "client_cpu_share": result.client_cpu / result.wall,
        "floor_starlette_per_second": bare,
        "ratio_to_floor": result.per_second / bare,
    }


def flood(bench: Bench) -> Values:
    """One job that prints 100 MB as 1,000,000 lines; every line is read back and counted."""
    lines, client = bench.count(LINES), bench.client()
    source = text_file(bench.root, lines)
    floor = floors.copy_to_file(source, bench.root / "copy.txt")
    (name,) = bench.names(1)
    reset_peak(bench.service.pid)
    began = time.perf_counter()
    client.create(name, ["cat", str(source)])
    until(lambda: logged(client, name) >= lines, 300, every=0.005)
    stored = time.perf_counter() - began
    peak = rss(bench.service.pid, "VmHWM")
    client.wait(name)
    tail = sorted(seconds_of(lambda: client.get(f"{JOBS}/{name}/logs?tail=500")) for _ in range(21))
    began = time.perf_counter()
    numbers = [int(text[:9]) for text in client.messages(name)]
    reading = time.perf_counter() - began
    client.call("DELETE", f"{JOBS}/{name}")
    return {
        "log_mb_per_second": source.stat().st_size / 1e6 / stored,
        "log_lines_wrong": lines - len(numbers) + sum(n != i for i, n in enumerate(numbers)),
        "log_read_lines_per_second": lines / reading,
        "tail_500_p50_ms": tail[len(tail) // 2] * 1000,
        "memory_peak_mib": peak,
        "floor_cat_to_file_mb_per_second": source.stat().st_size / 1e6 / floor,
    }


def text_file(root: Path, lines: int) -> Path:
    """Numbered lines of 100 bytes that compress about as well as a training log does."""
    file = root / f"lines-{lines}.txt"
    if not file.exists():
        with file.open("w") as out:
            for number in range(lines):
                out.write(
                    f"{number:09d} step={number // 7} loss={1 / (number + 1):.12f} ".ljust(99, "x") + "\n"
                )
    return file


def logged(client: Client, name: str) -> int:
    total: int = client.get(f"{JOBS}/{name}/logs?tail=1").json["total"]
    return total


def seconds_of(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def readable(bench: Bench) -> Values:
    """From the moment a line is printed until a client has it, by asking for the last line."""
    count, client = bench.count(100), bench.client()
    (name,) = bench.names(1)
    loop = f"i=0; while [ $i -lt {count} ]; do echo $i $(date +%s%N); i=$((i+1)); sleep 0.04; done"
    client.create(name, ["sh", "-c", loop])
    seen: dict[int, float] = {}
    deadline = time.monotonic() + 60
    while len(seen) < count and time.monotonic() < deadline:
        lines = client.get(f"{JOBS}/{name}/logs?tail=5").json["data"]
        now = time.time_ns()
        for line in lines:
            number, printed = map(int, line["message"].split())
            seen.setdefault(number, (now - printed) / 1e6)
        time.sleep(0.001)
    client.wait(name)
    delays = list(seen.values())
    return {
        "line_readable_p50_ms": statistics.median(delays),
        "line_readable_p95_ms": statistics.quantiles(delays, n=20)[-1],
    }


def starts(bench: Bench) -> Values:
    """Start to ready and idle memory of a fresh service with its keeper, and one `nemo jobs list`."""
    other = Service(bench.root / f"start-{next(bench.serial)}")
    other.port = free_port()
    began = time.perf_counter()
    other.spawn()
    other.wait_ready(20)
    ready = time.perf_counter() - began
    try:
        client = other.client()
        client.create("one", ["true"])
        client.wait("one")
        time.sleep(1)
        command = [str(NEMO), "jobs", "list", "--base-url", other.url]
        listing = statistics.median(floors.timed(command, other.environ) for _ in range(bench.count(15)))
        service, keeper = memory(other)
    finally:
        other.close()
    bare_memory, bare_ready = floors.bare_memory()
    return {
        "start_to_ready_s": ready,
        "idle_memory_mib": service + keeper,
        "idle_memory_keeper_mib": keeper,
        "cli_list_p50_ms": listing * 1000,
        "floor_fastapi_ready_s": bare_ready,
        "floor_fastapi_memory_mib": bare_memory,
        "floor_python_pass_ms": floors.empty_python(bench.count(15)) * 1000,
    }


def memory(service: Service) -> tuple[float, float]:
    return rss(service.pid), sum(rss(pid) for pid in service.keepers())


def memory_after_jobs(bench: Bench) -> Values:
    """Memory of a service that has run 10,000 jobs and nothing else."""
    other = Service(bench.root / f"memory-{next(bench.serial)}")
    try:
        busy = Bench(other.start(), bench.root, bench.scale, bench.serial)
        create(busy, bench.count(10_000), CLIENTS)
        busy.quiet()
        time.sleep(1)
        service, keeper = memory(other)
    finally:
        other.close()
    return {"memory_mib": service + keeper, "memory_keeper_mib": keeper}

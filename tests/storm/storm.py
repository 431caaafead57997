"""Load from some clients while the service is killed again and again.

Afterwards everything settles and `check` compares the service's word with what the jobs
themselves wrote down. The seed decides what is done; when exactly it happens is up to the
machine, so a seed repeats a storm only roughly.
"""

import random
import signal
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.service import JOBS, Answer, Client, Json, Service, in_threads, job, send
from tests.storm.check import problems_of
from tests.storm.jobs import Job, make, pick

CLIENTS = 4
PATIENCE = 60.0  # how long a client goes on trying while the service is away
READY = 60.0  # how long a start may take, on a machine that is busy with other things too
MOST_SHOWN = 60


@dataclass
class Report:
    """What happened, for people; `problems` is empty when every promise was kept."""

    seed: int
    database: str
    kills: int = 0
    kills_while_starting: int = 0
    keeper_kills: list[int] = field(default_factory=list)  # when, microseconds since 1970
    engine_kills: list[int] = field(default_factory=list)  # of a container engine, the same
    engine_takes_along: bool = False  # whether containers end with their engine
    starts: list[float] = field(default_factory=list)
    refused_starts: int = 0  # the database did not answer in time
    jobs: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    lines: int = 0
    resent: int = 0
    seconds: float = 0
    settle_seconds: float = 0
    problems: list[str] = field(default_factory=list)

    @property
    def deadly_kills(self) -> list[int]:
        """When work may have been ended by a kill that wasn't meant for it."""
        return self.keeper_kills + (self.engine_kills if self.engine_takes_along else [])

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.jobs.items()))
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        start = f"p50 {statistics.median(self.starts):.2f} s, max {max(self.starts):.2f} s"
        text = [
            f"storm on {self.database}, seed {self.seed}: {len(self.problems)} problems",
            f"  killed: the service {self.kills} times ({self.kills_while_starting} while it started), "
            f"its keeper {len(self.keeper_kills)} times, its engine {len(self.engine_kills)} times; "
            f"start to ready {start}, {self.refused_starts} starts refused by a slow database",
            f"  jobs accepted: {self.jobs.total()} ({kinds})",
            f"  ended: {states}; {self.lost} told as lost after a kill of keeper or engine",
            f"  lines checked: {self.lines}; requests sent again: {self.resent};"
            f" {self.seconds:.0f} s of load, {self.settle_seconds:.1f} s to settle",
        ]
        shown = [f"  PROBLEM {problem}" for problem in self.problems[:MOST_SHOWN]]
        return "\n".join(text + shown)


class Storm:
    """One storm over one or more services that share a database."""

    pace: tuple[float, float] = (0, 0.25)  # seconds between two creates of a client
    bursts: tuple[int, ...] = (1, 1, 1, 1, 10)

    def __init__(self, root: Path, services: list[Service], database: str, seed: int) -> None:
        self.services, self.seed = services, seed
        self.marks = root / "marks"
        self.marks.mkdir(parents=True)
        self.report = Report(seed, database)
        self.accepted: dict[str, Job] = {}
        self.calm = threading.Event()
        self._lock = threading.Lock()

    def run(self, kills: int, *, rest: tuple[float, float] = (0.3, 2.5), settle: float = 120) -> Report:
        for service in self.services:
            service.start(READY)
        began = time.monotonic()
        in_threads(lambda n: self._kill(kills, rest) if n == 0 else self._load(n), 1 + CLIENTS)
        self.report.seconds = time.monotonic() - began
        began = time.monotonic()
        self._settle(settle)
        self.report.settle_seconds = time.monotonic() - began
        self.report.problems += self.check()
        return self.report

    def make(self, name: str, rng: random.Random) -> Job:
        """The next job of the load."""
        return make(pick(rng), name, self.marks, rng)

    def body(self, item: Job) -> Json:
        """What creates it."""
        return job(item.name, *item.steps)

    def check(self) -> list[str]:
        """What was promised and isn't true now; ends the services."""
        return problems_of(self.services, self.accepted, self.marks, self.report)

    def _kill(self, kills: int, rest: tuple[float, float]) -> None:
        rng = random.Random(self.seed)
        try:
            while self.report.kills < kills:
                time.sleep(rng.uniform(*rest))
                service = rng.choice(self.services)
                if rng.random() < 0.15:
                    self._kill_keeper(service)
                    time.sleep(rng.choice((0, 0, 0.2)))
                service.kill()
                self.report.kills += 1
                if rng.random() < 0.15:
                    self._kill_keeper(service)
                time.sleep(rng.choice((0, 0, 0, 0.3, 1)))
                began = time.monotonic()
                service.spawn()
                if rng.random() < 0.15 and self.report.kills < kills:
                    time.sleep(rng.uniform(0, 0.6))
                    service.kill()
                    self.report.kills += 1
                    self.report.kills_while_starting += 1
                    service.spawn()
                    began = time.monotonic()
                self._until_ready(service)
                self.report.starts.append(time.monotonic() - began)
        finally:
            self.calm.set()

    def _until_ready(self, service: Service) -> None:
        """A start that gives up, since the database did not answer in time, is made again."""
        while True:
            try:
                service.wait_ready(READY)
                return
            except AssertionError:
                assert service.process is not None
                if service.process.poll() != 2 or "can't be used now" not in service.diagnosis(1):
                    raise
            self.report.refused_starts += 1
            service.spawn()

    def _kill_keeper(self, service: Service) -> None:
        keepers = service.keepers()
        at = time.time_ns() // 1000
        killed = [pid for pid in keepers if send(pid, signal.SIGKILL)]
        if killed:
            self.report.keeper_kills.append(at)

    def _load(self, number: int) -> None:
        rng = random.Random(f"{self.seed}-{number}")
        clients = [service.client() for service in self.services]
        pending: list[tuple[float, Job]] = []
        count = 0
        while not self.calm.is_set():
            for _ in range(rng.choice(self.bursts)):
                item = self.make(f"storm-{number}-{count}", rng)
                count += 1
                self._create(rng, clients, item)
                if item.then:
                    pending.append((time.monotonic() + item.after, item))
            now = time.monotonic()
            for due in [entry for entry in pending if entry[0] <= now]:
                pending.remove(due)
                if not self._disturb(rng, clients, due[1]):
                    pending.append((now + 0.3, due[1]))
            self.calm.wait(rng.uniform(*self.pace))
        deadline = time.monotonic() + PATIENCE
        while pending and time.monotonic() < deadline:
            pending = [entry for entry in pending if not self._disturb(rng, clients, entry[1])]
            time.sleep(0.1)
        for _, item in pending:
            self._problem(f"{item.then} of {item.name} was never possible")

    def _create(self, rng: random.Random, clients: list[Client], item: Job) -> None:
        status, tries = self._send(rng, clients, JOBS, self.body(item))
        if status == 201 or (status == 409 and tries > 1):  # 409: an earlier try without an answer was kept
            with self._lock:
                self.accepted[item.name] = item
                self.report.jobs[item.kind] += 1
        else:
            self._problem(f"create of {item.name} answered {status} at try {tries}")

    def _disturb(self, rng: random.Random, clients: list[Client], item: Job) -> bool:
        """False when it is too early for that."""
        answer, _ = self._ask(rng, clients, f"{JOBS}/{item.name}/{item.then}", None, item.name)
        if answer is not None and answer.status == 409 and item.kind == "again":
            # A first step that was lost with its keeper can't be kept.
            return "before it" in answer.json["detail"]
        if answer is None or answer.status != 200:
            self._problem(f"{item.then} of {item.name} answered {answer}")
        return True

    def _send(self, rng: random.Random, clients: list[Client], path: str, body: object) -> tuple[int, int]:
        """Send until somebody answers; status and the number of tries."""
        answer, tries = self._ask(rng, clients, path, body, "")
        return 0 if answer is None else answer.status, tries

    def _ask(
        self, rng: random.Random, clients: list[Client], path: str, body: object, key: str
    ) -> tuple[Answer | None, int]:
        """Send until somebody answers, each time with the same idempotency key if there is one."""
        headers = {"idempotency-key": key} if key else {}
        deadline, tries = time.monotonic() + PATIENCE, 0
        while time.monotonic() < deadline:
            tries += 1
            try:
                return rng.choice(clients).call("POST", path, body, headers), tries
            except OSError:
                with self._lock:
                    self.report.resent += 1
                time.sleep(0.05)
        return None, tries

    def _settle(self, patience: float) -> None:
        """Resume what is paused and wait until every job has ended."""
        client = self.services[0].client()
        paused = [item.name for item in self.accepted.values() if item.then == "pause"]
        open_jobs = set(self.accepted)
        deadline = time.monotonic() + patience
        while open_jobs and time.monotonic() < deadline:
            for name in sorted(open_jobs):
                answer = client.get(f"{JOBS}/{name}")
                if answer.status != 200 or answer.json["status"] in ("completed", "error", "cancelled"):
                    open_jobs.discard(name)
                elif name in paused and answer.json["status"] == "paused":
                    client.post(f"{JOBS}/{name}/resume")
            time.sleep(0.1)
        for name in sorted(open_jobs):
            self._problem(f"{name} ({self.accepted[name].kind}) did not end: {client.status(name)}")

    def _problem(self, text: str) -> None:
        with self._lock:
            self.report.problems.append(text)

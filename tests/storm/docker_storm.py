"""A storm over containers: service and engine are killed, one of them or both.

With live-restore containers go on while their engine is dead; then nothing may be lost but what the
engine had read from a container and not yet written when it died. Without, the engine ends all
containers as it comes back, and jobs at work then may end with that as their reason.
"""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.bed.docker import DockerServer, Missing
from tests.e2e.docker_kit import STORAGE, DockerService, container_step, gpus
from tests.e2e.service import Client, Json
from tests.storm import jobs
from tests.storm.check import settled
from tests.storm.jobs import Job
from tests.storm.storm import Storm

GPUS = 4
#: Where containers see the marks.
MARKS = Path("/marks/storm/marks")
_BOOT = time.time() - float(Path("/proc/uptime").read_text().split()[0])
#: Nanoseconds since 1970 where busybox' date knows seconds alone; right to a hundredth of a second.
NOW = f"$(awk '{{printf \"%.0f\", ($1 + {_BOOT:.3f}) * 1e9}}' /proc/uptime)"
PROFILE: Json = {"stop_timeout_seconds": 1, "ttl_seconds_after_finished": 20, "max_concurrent": 12}


class DockerStorm(Storm):
    """One storm over one service and its engine."""

    pace = (0.5, 2.5)
    bursts = (1, 1, 1, 3)

    def __init__(self, service: DockerService, seed: int) -> None:
        super().__init__(service.marks / "storm", [service], "containers", seed)
        self.marks.chmod(0o1777)
        self.service, self.engine = service, service.docker
        self.report.engine_takes_along = not self.engine.live_restore

    def make(self, name: str, rng: random.Random) -> Job:
        if rng.random() < 0.2:
            return holding(name, rng)
        item = jobs.make(jobs.pick(rng), name, MARKS, rng)
        steps = tuple([word.replace("$(date +%s%N)", NOW) for word in step] for step in item.steps)
        return replace(item, steps=steps)

    def body(self, item: Job) -> Json:
        more: Json = {}
        if item.kind.startswith("holding"):
            more = {"provider": "gpu", "resources": {"num_gpus": int(item.kind[-1])}}
        steps = [
            container_step(command, name=f"step-{number}", env={STORAGE: "/var/run/scratch/job"}, **more)
            for number, command in enumerate(item.steps, 1)
        ]
        return {"name": item.name, "source": "storm", "spec": {}, "platform_spec": {"steps": steps}}

    def _kill(self, kills: int, rest: tuple[float, float]) -> None:
        rng = random.Random(self.seed)
        try:
            while self.report.kills + len(self.report.engine_kills) < kills:
                time.sleep(rng.uniform(*rest))
                victims = rng.choice((("service",), ("service",), ("engine",), ("service", "engine")))
                for victim in rng.sample(victims, len(victims)):
                    self._strike(victim)
                    time.sleep(rng.choice((0, 0, 0.3)))
                time.sleep(rng.choice((0, 0, 0.3, 1)))
                for victim in rng.sample(victims, len(victims)):
                    self._raise(victim)
                    time.sleep(rng.choice((0, 0, 0.5)))
                if "service" in victims:
                    self.service.wait_ready(40)
        finally:
            self.calm.set()

    def _strike(self, victim: str) -> None:
        if victim == "engine":
            self.report.engine_kills.append(time.time_ns() // 1000)
            self.engine.kill()
        else:
            self.report.kills += 1
            self.service.kill()

    def _raise(self, victim: str) -> None:
        if victim == "engine":
            self.engine.resume()
        else:
            began = time.monotonic()
            self.service.spawn()
            self.report.starts.append(time.monotonic() - began)

    def check(self) -> list[str]:
        client = self.service.client()
        found = list(pool_problems(client, self.service))
        if left := settled(self.service.leftovers, 60):
            found.append(f"containers or volumes are left behind: {left}")
        return found + super().check()


def holding(name: str, rng: random.Random) -> Job:
    """Holds one GPU or more for a moment, and writes down which and when."""
    count = rng.choice((1, 1, 2, 3, 4))
    begin, end = (
        f'echo "{word} {name} $NVIDIA_VISIBLE_DEVICES {NOW}" >> /marks/gpus' for word in ("begin", "end")
    )
    body = f"{begin}; sleep {rng.uniform(0.1, 1):.2f}; {end}"
    command = [word.replace("$(date +%s%N)", NOW) for word in jobs.script(MARKS, name, body)]
    return Job(name, f"holding{count}", (command,))


def pool_problems(client: Client, service: DockerService) -> Iterator[str]:
    """No device had two holders at any time, each work got as many as it wanted, all are free now."""

    def held() -> list[Json]:
        return [one for one in gpus(client)["data"] if one.get("holder")]

    if left := settled(held, 20):
        yield f"devices are not given back: {left}"
    held_by: dict[str, list[tuple[int, int, str]]] = {}
    began: dict[str, tuple[int, str]] = {}
    for line in service.marked("gpus"):
        kind, name, devices, at = line.split()
        if kind == "begin":
            began[name] = (int(at), devices)
        elif name in began:
            start, ids = began.pop(name)
            for device in ids.split(","):
                held_by.setdefault(device, []).append((start, int(at), name))
    for device, times in held_by.items():
        times.sort()
        for (_, end, one), (start, _, other) in pairwise(times):
            if start < end:
                yield f"GPU {device} had two holders: {one} until {end}, {other} since {start}"
    if set(held_by) - {str(number) for number in range(GPUS)}:
        yield f"devices that don't exist were given out: {sorted(held_by)}"


@contextmanager
def docker_storm(root: Path, seed: int, *, live_restore: bool = True) -> Iterator[DockerStorm]:
    """A storm with an engine and a service of its own, taken away again whatever happens."""
    with ExitStack() as stack:
        try:
            engine = DockerServer.start(live_restore=live_restore)
        except Missing as error:
            pytest.skip(str(error))
        stack.callback(engine.destroy)
        service = DockerService(root, engine, profile=PROFILE, gpus=GPUS)
        stack.enter_context(closing(service))
        yield DockerStorm(service, seed)

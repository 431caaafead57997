"""Output on its way to the store: what a batch says about its lines."""

import asyncio

import pytest

from nemo_jobs.backends.api import LogPiece, Plan, PlatformInfo, Unavailable
from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.domain.profiles import SubprocessConfig
from nemo_jobs.engine import collect
from nemo_jobs.engine.collect import Collector
from nemo_jobs.store.steps import LogBatch
from nemo_jobs.testing import FakeBackend, FakeWorld


def plan_of(**script: str) -> Plan:
    environment = [{"name": name, "value": value} for name, value in script.items()]
    spec = {"name": "step", "environment": environment}
    return Plan(
        key="nj-x-0",
        provider="subprocess",
        profile="default",
        config=SubprocessConfig(),
        workspace="default",
        job="moth",
        job_id="j",
        attempt_id="a",
        step="step",
        step_id="s",
        task="task-1",
        fileset="f",
        output_location=None,
        spec=spec,
        platform=PlatformInfo({}),
    )


class Slow(FakeBackend):
    """Its output comes line by line, each after `pause` seconds; then it `fails` so many times."""

    pause, lines, fails, hangs = 0.0, 0, 0, False

    async def logs(self, handle, cursor):
        at = (cursor or {"at": 0})["at"]
        while at < self.lines:
            await asyncio.sleep(self.pause)
            if at == self.lines // 2 and self.fails:
                self.fails -= 1
                raise Unavailable("the engine is gone")
            at += 1
            yield LogPiece(0, "task-1", "stdout", 0, b"line\n", {"at": at})
        if self.hangs:
            await asyncio.sleep(60)


async def drained(backend: Slow, seconds: float, store=None) -> tuple[Collector, int]:
    """How many lines come when a whole log is read behind the end."""
    stored = 0

    async def keep(batch: LogBatch) -> int | None:
        nonlocal stored
        stored += sum(chunk.n for chunk in batch.chunks)
        return stored

    handle = await backend.submit(plan_of())
    collector = Collector(backend, handle, None, store or keep, ManualClock(), 1 << 30)
    rest = await collector.drain(seconds)
    return collector, stored + (sum(chunk.n for chunk in rest.chunks) if rest else 0)


async def test_c008_a_log_that_takes_long_to_read_is_read_to_its_end() -> None:
    backend = Slow(ManualClock())
    backend.pause, backend.lines = 0.02, 60
    collector, lines = await drained(backend, 0.5)  # it takes more than twice as long in all
    assert (lines, collector.failure) == (60, None)


async def test_c008_an_engine_that_goes_away_in_the_middle_of_the_rest_is_waited_for() -> None:
    backend = Slow(ManualClock())
    backend.lines, backend.fails = 10, 2  # asked again after 0.5 s and 1 s
    collector, lines = await drained(backend, 0.3)
    assert (lines, collector.failure) == (10, None)


async def test_a_log_that_never_ends_is_given_up_when_nothing_comes_and_says_so() -> None:
    backend = Slow(ManualClock())
    backend.lines, backend.hangs = 10, True
    collector, lines = await drained(backend, 0.2)
    assert lines == 11
    assert collector.failure == "nothing more of its output came for 0.2 s after the end"


async def test_what_is_away_too_long_is_given_up_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "AWAY_SECONDS", 0.2)
    backend = Slow(ManualClock())
    backend.lines, backend.fails = 10, 1000
    collector, lines = await drained(backend, 30)
    assert lines == 6 and collector.failure is not None
    assert collector.failure.endswith("after the end: the engine is gone")


async def test_lines_that_wait_for_the_database_keep_the_time_of_their_own_arrival() -> None:
    clock, world = ManualClock(), FakeWorld()
    backend = FakeBackend(clock, world)
    handle = await backend.submit(plan_of(FAKE_RUN_SECONDS="10", FAKE_LINES="10"))
    back, batches = asyncio.Event(), []

    async def store(batch: LogBatch) -> int | None:
        await back.wait()
        batches.append(batch)
        return 0

    collector = Collector(backend, handle, None, store, clock, 1 << 30)
    collector.start()
    began = clock.now()
    for _ in range(10):
        clock.advance(1)
        await asyncio.sleep(0.02)  # the fake's reader looks every 5 ms
    back.set()
    rest = await collector.drain(5)
    chunks = [chunk for batch in (*batches, *([rest] if rest else [])) for chunk in batch.chunks]
    assert sum(chunk.n for chunk in chunks) == 10
    for chunk in chunks:
        first = int(chunk.data.split()[1])
        assert chunk.at >= began + (first + 1) * 1_000_000, "stamped before it was printed"
    assert len({chunk.at for chunk in chunks}) >= 5

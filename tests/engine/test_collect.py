"""Output on its way to the store: what a batch says about its lines."""

import asyncio

from nemo_jobs.backends.api import Plan, PlatformInfo
from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.domain.profiles import SubprocessConfig
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

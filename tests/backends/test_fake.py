"""The scripted backend keeps the promises of the protocol."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nemo_jobs.backends.api import Backend, Phase, Plan, PlatformInfo, Unavailable
from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.testing import FOREVER, BackendConformance, FakeBackend, FakeWorld, Harness, Work


def fake_plan(**script: str) -> Plan:
    number = uuid.uuid4().hex
    variables = [{"name": name, "value": value, "from_secret": None} for name, value in script.items()]
    return Plan(
        key=f"nj-{number}-0",
        provider="subprocess",
        profile="default",
        config=None,
        workspace="default",
        job="job",
        job_id="platform-job-1",
        attempt_id=f"platform-job-attempt-{number}",
        step="step",
        step_id=f"platform-job-step-{number}",
        task=f"task-{number}",
        fileset="fileset",
        output_location=None,
        spec={"environment": variables, "executor": {"provider": "subprocess", "command": ["true"]}},
        platform=PlatformInfo({}),
    )


class FakeHarness(Harness):
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.world = FakeWorld()

    async def backend(self) -> Backend:
        backend = FakeBackend(self.clock, self.world)
        await backend.start()
        return backend

    def plan(self, work: Work) -> Plan:
        script: dict[str, Any] = {
            "FAKE_RUN_SECONDS": "forever" if work.seconds == FOREVER else str(work.seconds),
            "FAKE_EXIT_CODE": str(work.code),
            "FAKE_OUTPUT": work.stdout.decode("utf-8", "surrogateescape"),
            "FAKE_ERROR_OUTPUT": work.stderr.decode("utf-8", "surrogateescape"),
            "FAKE_LINES": str(work.lines),
        }
        if work.ignores_stop:
            script["FAKE_IGNORE_STOP"] = "1"
        if work.left:
            script["FAKE_RESULTS"] = json.dumps(dict(work.left))
        if work.refused:
            script["FAKE_SUBMIT_ERROR"] = "rejected"
        return fake_plan(**script)

    async def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.world.tick(self.clock.now())
        await asyncio.sleep(0.001)  # readers of logs look again

    def starts(self, plan: Plan) -> int:
        return self.world.starts[plan.key]

    def has_storage(self, plan: Plan) -> bool:
        return plan.attempt_id in self.world.storage


class TestFakeBackend(BackendConformance):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        yield FakeHarness()


async def test_it_is_away_as_often_as_the_script_says() -> None:
    backend = FakeBackend(ManualClock())
    plan = fake_plan(FAKE_SUBMIT_ERROR="unavailable:2")
    for _ in range(2):
        with pytest.raises(Unavailable):
            await backend.submit(plan)
    assert (await backend.submit(plan)).key == plan.key
    assert backend.world.starts[plan.key] == 1


async def test_it_vanishes_when_the_script_says() -> None:
    clock = ManualClock()
    backend = FakeBackend(clock)
    handle = await backend.submit(fake_plan(FAKE_RUN_SECONDS="10", FAKE_LOST="3"))
    clock.advance(2.9)
    assert (await backend.observe([handle]))[handle.key].phase is Phase.RUNNING
    clock.advance(0.2)
    assert (await backend.observe([handle]))[handle.key].phase is Phase.LOST

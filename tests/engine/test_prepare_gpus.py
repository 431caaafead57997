"""GPUs of steps whose work has to be prepared: free meanwhile, taken again in order of age."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from nemo_jobs.backends.api import Preparing
from nemo_jobs.domain.gpus import Look, Reserved
from nemo_jobs.domain.states import Trigger
from nemo_jobs.engine.pools import Pool
from nemo_jobs.engine.prepare import Start
from nemo_jobs.store import gpu_rows
from nemo_jobs.testing_containers import ContainerWorld, FakeContainers
from tests.engine.bench import Bench, open_place

HOST = "here"


@pytest.fixture
async def bench(tmp_path) -> AsyncIterator[Bench]:
    place = await open_place(f"{tmp_path}/nemo-jobs.db", ttl_seconds_before_active=300)
    place.world, place.backend = ContainerWorld(), FakeContainers
    place.pool = Pool(HOST, "stable", Reserved(everything=True), 1, lambda: Look((), "no driver"))
    made = Bench(place)
    yield made
    await made.close()


async def create(bench: Bench, name: str, **script: str) -> None:
    bench.place.clock.advance(0.001)  # age is what counts
    executor = {"provider": "subprocess", "command": ["true"], "resources": {"num_gpus": 1}}
    await bench.create(name, script, executor=executor)


async def holders(bench: Bench) -> list[str]:
    found = await bench.db.read(gpu_rows.devices, HOST)
    return [row.holder for row in found if row.holder is not None]


async def test_c023_while_its_image_is_pulled_others_have_its_gpu_and_it_waits_for_it_afterwards(
    bench: Bench,
) -> None:
    await bench.start()
    await create(bench, "large", FAKE_PREPARE_SECONDS="60", FAKE_RUN_SECONDS="20")
    await bench.until_told("large", "image_pull")
    assert await holders(bench) == []
    await create(bench, "small", FAKE_RUN_SECONDS="2000")
    await bench.until("small", "active")
    await bench.move(61)
    job = await bench.until_told("large", "waiting_for_gpus", "1 GPU")
    assert job.state == "pending"
    for _ in range(4):  # waiting for devices has no limit
        await bench.move(400)
        assert (await bench.job("large")).state == "pending"
    await bench.move(500)
    await bench.until("small", "completed")
    await bench.move_until("large", "active", step=1)
    assert len(await holders(bench)) == 1
    await bench.move_until("large", "completed")
    assert await holders(bench) == []


@pytest.mark.parametrize("trigger", [Trigger.CANCEL, Trigger.PAUSE])
async def test_a_request_while_it_waits_for_devices_needs_none(bench: Bench, trigger: Trigger) -> None:
    await bench.start()
    await create(bench, "large", FAKE_PREPARE_SECONDS="10")
    await bench.until_told("large", "image_pull")
    await create(bench, "small", FAKE_RUN_SECONDS="2000")
    await bench.until("small", "active")
    await bench.move(11)
    await bench.until_told("large", "waiting_for_gpus")
    await bench.ask("large", trigger)
    await bench.until("large", "cancelled" if trigger is Trigger.CANCEL else "paused")
    assert len(await holders(bench)) == 1


async def test_an_engine_that_is_away_holds_no_gpu_of_work_that_has_not_started(bench: Bench) -> None:
    await bench.start()
    await create(bench, "large", FAKE_PREPARE_ERROR="unavailable:1000")
    await bench.until_told("large", "backend_unavailable")
    assert await holders(bench) == []


class Preparer:
    """A backend that never has what is needed."""

    async def prepare(self, plan: Any) -> Preparing | None:
        return Preparing("not yet")

    def stage(self, key: str) -> str:
        return ""


async def test_devices_are_given_back_once_and_again_when_a_claim_may_have_given_them_back() -> None:
    records = AsyncMock()
    nothing = cast(Any, None)
    shared = cast(Any, SimpleNamespace(records=records))
    start = Start(shared, nothing, cast(Any, Preparer()), nothing, nothing)
    for _ in range(3):
        assert await start.waits(nothing, nothing) is not None
    assert records.release_devices.await_count == 1
    start.devices_may_be_back()
    await start.waits(nothing, nothing)
    assert records.release_devices.await_count == 2


async def test_a_kill_while_it_waits_leaks_no_gpu(bench: Bench) -> None:
    await bench.start()
    await create(bench, "large", FAKE_PREPARE_SECONDS="10", FAKE_RUN_SECONDS="5")
    await bench.until_told("large", "image_pull")
    await create(bench, "small", FAKE_RUN_SECONDS="50")
    await bench.until("small", "active")
    await bench.crash()
    bench.place.clock.advance(20)
    await bench.start()
    await bench.until_told("large", "waiting_for_gpus")
    await bench.move_until("large", "completed", step=5)
    await bench.until("small", "completed")
    assert await holders(bench) == []
    assert set(bench.place.world.starts.values()) == {1}

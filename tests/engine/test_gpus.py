"""GPUs from the claim to the end of the work, with an engine that may die at any moment."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from nemo_jobs.backends import api
from nemo_jobs.backends.api import Handle, Plan
from nemo_jobs.domain.gpus import Device, Look, Reserved
from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.engine.pools import Pool
from nemo_jobs.store import gpu_reservations, gpu_rows, jobs
from nemo_jobs.store.gpu_reservations import Asked
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.testing import FakeBackend
from tests.engine.bench import WORKSPACE, Bench, open_place

HOST = "here"


class Host:
    """The GPUs of the machine, as its driver tells of them."""

    def __init__(self) -> None:
        self.devices: tuple[Device, ...] = ()
        self.problem = "no driver"

    def look(self) -> Look:
        return Look(self.devices, self.problem)


class OnDevices(FakeBackend):
    """Knows which devices its work was started with, and that no two may share one."""

    async def submit(self, plan: Plan) -> Handle:
        new = plan.key not in self.world.works
        handle = await super().submit(plan)
        given = vars(self.world).setdefault("given", {})
        if new and plan.key in self.world.works:
            now = self.clock.now()
            if vars(self.world).pop("renumbered", False):
                given.clear()
            for key, work in self.world.works.items():
                if key != plan.key and work.phase(now) not in api.ENDED:
                    both = set(given.get(key, ())) & set(plan.devices)
                    assert not both, f"{key} and {plan.key} were both given {both}"
            given[plan.key] = plan.devices
        return handle


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
async def bench(tmp_path, request, host: Host) -> AsyncIterator[Bench]:
    marker = request.node.get_closest_marker("config")
    place = await open_place(f"{tmp_path}/nemo-jobs.db", **(marker.kwargs if marker else {}))
    place.pool = Pool(HOST, "stable", Reserved(everything=True), 4, host.look)
    place.backend = OnDevices
    made = Bench(place)
    yield made
    await made.close()


async def create(bench: Bench, name: str, gpus: int, **script: str) -> None:
    bench.place.clock.advance(0.001)  # age is what counts
    executor = {"provider": "subprocess", "command": ["true"], "resources": {"num_gpus": gpus}}
    await bench.create(name, {"FAKE_RUN_SECONDS": "10", **script}, executor=executor)


def given(bench: Bench) -> list[tuple[str, ...]]:
    return list(vars(bench.place.world).get("given", {}).values())


async def held(bench: Bench) -> int:
    found = await bench.db.read(gpu_rows.devices, HOST)
    return sum(row.holder is not None for row in found)


async def until_held(bench: Bench, number: int, seconds: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while await held(bench) != number:
        assert asyncio.get_running_loop().time() < deadline, await bench.db.read(gpu_rows.devices, HOST)
        await asyncio.sleep(0.01)


async def until_reason(bench: Bench, name: str, reason: str) -> str:
    for _ in range(1000):
        job = await bench.job(name)
        if job.reason == reason:
            return job.message
        await asyncio.sleep(0.005)
    raise AssertionError(f"{name} is {job.state}: {job.reason}: {job.message}")


async def test_work_is_started_with_its_devices_and_gives_them_back(bench: Bench) -> None:
    await bench.start()
    await create(bench, "moth", 2)
    await bench.until("moth", "active")
    assert given(bench) == [("0", "1")] and await held(bench) == 2
    step = await bench.db.read(jobs.get_step, WORKSPACE, "moth", "step-0")
    assert step.status_details["gpus"] == {"devices": ["0", "1"]}
    await bench.move_until("moth", "completed")
    assert await held(bench) == 0


async def test_what_waits_says_so_and_a_large_one_is_served_before_younger_small_ones(bench: Bench) -> None:
    await bench.start()
    await create(bench, "first", 3)
    await bench.until("first", "active")
    await create(bench, "large", 4)
    await create(bench, "small", 1)
    await bench.create("plain", {"FAKE_RUN_SECONDS": "1000"})
    await bench.until("plain", "active")
    message = await until_reason(bench, "large", "waiting_for_gpus")
    assert message.startswith("waits for 4 GPUs: 1 of 4 free; held by default/first/step-0 (3 GPUs")
    assert "1 older request for 4 GPUs is ahead" in await until_reason(bench, "small", "waiting_for_gpus")
    await bench.move_until("first", "completed")
    await bench.until("large", "active")
    assert (await bench.job("small")).state == "created"
    await bench.move_until("large", "completed")
    await bench.until("small", "active")


@pytest.mark.config(max_concurrent=1)
async def test_one_that_has_its_devices_and_no_place_starts_when_there_is_one(bench: Bench) -> None:
    await bench.start()
    await bench.create("plain", {"FAKE_RUN_SECONDS": "10"})
    await bench.until("plain", "active")
    await create(bench, "moth", 1)
    await asyncio.sleep(0.05)
    assert (await bench.job("moth")).state == "created" and await held(bench) == 0
    bench.place.clock.advance(11)
    bench.place.world.tick(bench.place.clock.now())
    await bench.until("moth", "active")


async def test_more_than_there_are_ends_in_an_error_that_says_so(bench: Bench) -> None:
    await bench.start()
    await create(bench, "huge", 5)
    job = await bench.until("huge", "error")
    assert (job.reason, job.message) == (
        "unschedulable",
        "step-0 asks for 5 GPUs, but the pool of stable has 4",
    )


async def test_c023_every_ending_gives_back_at_once(bench: Bench) -> None:
    await bench.start()
    for name, script, end in (
        ("completed", {"FAKE_RUN_SECONDS": "1"}, "completed"),
        ("failed", {"FAKE_RUN_SECONDS": "1", "FAKE_EXIT_CODE": "3"}, "error"),
        ("rejected", {"FAKE_SUBMIT_ERROR": "rejected"}, "error"),
    ):
        await create(bench, name, 4, **script)
        await bench.move_until(name, end)
        assert await held(bench) == 0, name
    await create(bench, "cancelled", 4)
    await bench.until("cancelled", "active")
    await bench.ask("cancelled", Trigger.CANCEL)
    await bench.until("cancelled", "cancelled")
    await create(bench, "paused", 4)
    await bench.until("paused", "active")
    await bench.ask("paused", Trigger.PAUSE)
    await bench.until("paused", "paused")
    assert await held(bench) == 0
    await create(bench, "between", 4)
    await bench.until("between", "active")
    await bench.ask("paused", Trigger.RESUME)
    await until_reason(bench, "paused", "waiting_for_gpus")
    await bench.move_until("paused", "completed")


async def test_work_that_vanished_gives_back(bench: Bench) -> None:
    await bench.start()
    await create(bench, "moth", 4)
    await bench.until("moth", "active")
    bench.place.world.works.clear()
    await bench.move_until("moth", "error")
    assert await held(bench) == 0


async def test_an_end_that_somebody_wrote_keeps_the_devices_until_nothing_runs(bench: Bench) -> None:
    await bench.start()
    await create(bench, "moth", 4, FAKE_IGNORE_STOP="1", FAKE_RUN_SECONDS="forever")
    await bench.until("moth", "active")
    await bench.db.write(
        jobs.update_step_status,
        *(WORKSPACE, "moth", "step-0"),
        state=State.ERROR,
        expected_step_id=None,
        status_details={},
        error_details={"message": "gone"},
        now=bench.place.clock.now(),
        actor="somebody",
    )
    await asyncio.sleep(0.02)
    assert await held(bench) == 4
    await create(bench, "next", 1)
    await asyncio.sleep(0.05)
    assert (await bench.job("next")).state == "created"
    await bench.move(60)
    await bench.move_until("next", "active")
    assert given(bench)[-1] == ("0",)


async def test_a_crash_between_claim_and_start_leaks_nothing(bench: Bench, host: Host) -> None:
    engine = await bench.start()
    await create(bench, "moth", 2)
    await bench.until("moth", "active")
    bench.place.world.away = "the backend is away"
    await create(bench, "claimed", 2)
    await until_held(bench, 4)
    assert engine is not None
    await bench.crash()
    bench.place.world.away = ""
    await bench.start()
    await bench.until("claimed", "active")
    assert sorted(given(bench)) == [("0", "1"), ("2", "3")]
    await bench.move_until("claimed", "completed")
    await bench.move_until("moth", "completed")
    await until_held(bench, 0)


async def test_a_crash_after_an_unrecorded_start_keeps_its_devices(bench: Bench) -> None:
    await bench.start()
    await create(bench, "moth", 4)
    while not bench.place.world.works:
        await asyncio.sleep(0)
    await bench.crash()
    assert await held(bench) == 4
    await bench.start()
    await create(bench, "next", 1)
    await bench.until("moth", "active")
    assert (await bench.job("next")).state == "created"
    await bench.move_until("next", "active")
    assert len(given(bench)) == 2


async def test_a_stop_gives_back_what_was_not_started_and_keeps_the_rest(bench: Bench) -> None:
    engine = await bench.start()
    await create(bench, "moth", 2, FAKE_RUN_SECONDS="1000")
    await bench.until("moth", "active")
    await create(bench, "claimed", 2, FAKE_SUBMIT_ERROR="unavailable:9")
    await until_reason(bench, "claimed", "backend_unavailable")
    assert await held(bench) == 4
    await engine.stop()
    await until_held(bench, 2)
    bench.engine = None


async def test_fewer_devices_after_a_restart_and_other_numbers(bench: Bench, host: Host) -> None:
    host.problem = ""
    host.devices = tuple(Device(str(n), f"GPU-{n}", str(n)) for n in range(3))
    await bench.start()
    await create(bench, "a", 1, FAKE_RUN_SECONDS="1000")
    await create(bench, "b", 2, FAKE_RUN_SECONDS="1000")
    await bench.until("b", "active")
    await bench.crash()
    # The first card is gone, and the others have moved up.
    host.devices = (Device("0", "GPU-1", "0"), Device("1", "GPU-2", "1"))
    vars(bench.place.world)["renumbered"] = True
    await bench.start()
    await create(bench, "c", 1)
    await until_reason(bench, "c", "waiting_for_gpus")
    found = await bench.db.read(gpu_rows.devices, HOST)
    assert [(row.id, row.uuid, bool(row.trouble)) for row in found] == [
        ("0", "GPU-1", False),
        ("1", "GPU-2", False),
        ("GPU-0", "GPU-0", True),
    ]
    assert all(row.holder for row in found)
    await bench.ask("b", Trigger.CANCEL)
    await bench.until("c", "active")
    assert given(bench)[-1] == ("0",)


async def test_a_reservation_released_starts_who_waits(bench: Bench) -> None:
    await bench.start()
    await create(bench, "first", 1)
    await bench.until("first", "active")
    await bench.db.write(gpu_reservations.reserve, Asked("models", 3, "me"), bench.place.clock.now())
    await create(bench, "moth", 2)
    message = await until_reason(bench, "moth", "waiting_for_gpus")
    assert "reservation models (3 GPUs since" in message
    await bench.db.write(gpu_reservations.release, "models")
    await bench.until("moth", "active")


async def test_an_ill_device_is_not_given_out_and_told_of(bench: Bench, host: Host) -> None:
    host.problem = ""
    host.devices = (
        Device("0", "GPU-0", "0", trouble="uncorrectable memory errors"),
        Device("1", "GPU-1", "1"),
    )
    engine = await bench.start()
    await create(bench, "moth", 1)
    await bench.until("moth", "active")
    assert given(bench) == [("1",)]
    assert engine.problems() == ["GPU 0 is not given out: uncorrectable memory errors"]


async def test_work_without_gpus_asks_nothing_of_the_pool(bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr("nemo_jobs.engine.engine.POLL_SECONDS", 1000.0)
    monkeypatch.setattr("nemo_jobs.engine.devices.LOOK_SECONDS", 1000.0)
    await bench.start()
    await create(bench, "first", 1, FAKE_RUN_SECONDS="1000")
    await bench.until("first", "active")
    await asyncio.sleep(0.5)  # the first look, and telling who waits
    ran: list[str] = []
    execute = Tx._execute

    def watched(self: Tx, stmt, params) -> None:
        if isinstance(stmt, Statement):
            ran.append(stmt.prepared(self.dialect).sql)
        execute(self, stmt, params)

    monkeypatch.setattr(Tx, "_execute", watched)
    for number in range(5):
        await bench.create(f"plain-{number}")
        await bench.until(f"plain-{number}", "completed")
    assert len(ran) > 50
    assert [sql for sql in ran if "gpu_" in sql] == []


@pytest.mark.time_limit(120)
@pytest.mark.parametrize("seed", [1, 2])
async def test_c014_many_jobs_and_crashes_never_share_a_device(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    await bench.start()
    names = []
    for number in range(20):
        names.append(f"job-{number}")
        script = {"FAKE_RUN_SECONDS": str(chance.randint(1, 20))}
        await create(bench, names[-1], chance.randint(1, 4), **script)
        if chance.random() < 0.3:
            await bench.move(chance.randint(1, 10))
        if number % 5 == 4:
            for _ in range(chance.randint(0, 30)):
                await asyncio.sleep(0)
            await bench.crash()
            await bench.start()
    for name in names:
        await bench.move_until(name, "completed", step=2.0, most=400)
    assert all(count == 1 for count in bench.place.world.starts.values())
    await until_held(bench, 0)

"""What bears our name at a backend and belongs to nobody."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from nemo_jobs.backends.api import Leftover
from nemo_jobs.domain.states import Trigger
from nemo_jobs.engine.orphans import ORPHAN_GRACE, Orphans
from nemo_jobs.store import jobs, steps
from nemo_jobs.testing_containers import ContainerWorld, FakeContainers
from tests.engine.bench import WORKSPACE, Bench, open_place


@pytest.fixture
async def bench(tmp_path) -> AsyncIterator[Bench]:
    place = await open_place(f"{tmp_path}/nemo-jobs.db")
    place.world, place.backend = ContainerWorld(), FakeContainers
    made = Bench(place)
    yield made
    await made.close()


def world(bench: Bench) -> ContainerWorld:
    assert isinstance(bench.place.world, ContainerWorld)
    return bench.place.world


def volume(bench: Bench, name: str, key: str = "nj-nobody-0", age: float | None = None) -> None:
    at = 0 if age is None else bench.place.clock.now() - int(age * 1e6)
    world(bench).volumes[name] = Leftover("volume", name, key, at)


async def orphans(bench: Bench) -> Orphans:
    engine = await bench.start()
    return engine._sweeper.orphans


def states(found: dict) -> dict[str, str]:
    return {one["name"]: one["state"] for one in found["data"]}


async def test_c098_what_nobody_knows_is_removed_when_it_is_old_and_not_before(bench: Bench) -> None:
    sweeper = await orphans(bench)
    volume(bench, "old", age=ORPHAN_GRACE)
    volume(bench, "new", age=ORPHAN_GRACE - 1)
    volume(bench, "ageless")
    young = {"new": "kept", "ageless": "kept"}
    assert states(await sweeper.on_request(dry_run=True)) == {"old": "found", **young}
    assert set(world(bench).volumes) == {"old", "new", "ageless"}
    assert states(await sweeper.on_request(dry_run=False)) == {"old": "removed", **young}
    bench.place.clock.advance(ORPHAN_GRACE)
    found = await sweeper.on_request(dry_run=False)
    assert states(found) == {"new": "removed", "ageless": "removed"}
    assert (found["dry_run"], found["unavailable"]) == (False, [])
    assert not world(bench).volumes


async def test_by_itself_it_trusts_only_what_it_has_seen_before(bench: Bench) -> None:
    sweeper = await orphans(bench)
    volume(bench, "old", age=3600)
    assert [one.state for one in (await sweeper.sweep()).found] == ["kept"]
    bench.place.clock.advance(ORPHAN_GRACE)
    assert [one.state for one in (await sweeper.sweep()).found] == ["removed"]


async def test_what_belongs_to_work_is_never_touched(bench: Bench) -> None:
    sweeper = await orphans(bench)
    for name, seconds in (("runs", "forever"), ("ended", "0")):
        await bench.create(name, {"FAKE_RUN_SECONDS": seconds, "FAKE_EXIT_CODE": "1"})
    await bench.until("runs", "active")
    await bench.until("ended", "error")
    for key in list(world(bench).works):
        volume(bench, f"of {key}", key, age=1e6)
    assert (await sweeper.on_request(dry_run=False))["data"] == []
    assert len(world(bench).works) == len(world(bench).volumes) == 2


async def test_what_a_deleted_job_left_goes_in_its_time_and_then_as_an_orphan(bench: Bench) -> None:
    sweeper = await orphans(bench)
    await bench.create("moth", {"FAKE_RUN_SECONDS": "forever"})
    await bench.until("moth", "active")
    (key,) = world(bench).works
    volume(bench, "of moth", key, age=1e6)
    await bench.ask("moth", Trigger.CANCEL)
    await bench.move_until("moth", "cancelled")
    await bench.db.write(jobs.delete_job, WORKSPACE, "moth", bench.place.clock.now())
    while await bench.db.read(steps.known_keys, [key]):  # its removal, which the engine carries out
        await asyncio.sleep(0.01)
    assert not world(bench).works
    assert states(await sweeper.on_request(dry_run=False)) == {"of moth": "removed"}


async def test_what_can_not_be_removed_or_asked_is_told_and_the_rest_goes_on(bench: Bench) -> None:
    sweeper = await orphans(bench)
    volume(bench, "stuck", age=1e6)
    volume(bench, "free", age=1e6)
    world(bench).stuck = {"stuck"}
    found = await sweeper.on_request(dry_run=False)
    assert states(found) == {"stuck": "failed", "free": "removed"}
    assert [one["message"] for one in found["data"]] == ["it is in use", ""]
    world(bench).away = "it is gone"
    found = await sweeper.on_request(dry_run=False)
    assert (found["data"], found["unavailable"]) == ([], ["subprocess: it is gone"])

"""Devices are taken with the claim, in order of age, and given back when the work is proven over."""

import asyncio
from collections.abc import Callable

import pytest

from nemo_jobs.domain.model import Conflict, Invalid, NotFound
from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.store import gpu_reservations, gpu_stock, gpu_waiting, gpus, jobs, steps
from nemo_jobs.store.gpu_reservations import Asked
from tests.store.gpu_kit import (
    KEYS,
    POOL,
    claim,
    claim_all,
    counted,
    create,
    gpu_step,
    holding,
    restock,
    rows,
    take,
)
from tests.store.kit import LEASE, STARTED, SUBMITTED, SUCCEEDED, Store
from tests.store.test_reports import patch


@pytest.fixture
async def pool(store: Store) -> Store:
    await restock(store, counted(4))
    return store


def names(found: list) -> list[str]:
    return [step.job for step in found]


async def start(store: Store, step) -> None:
    await store.moved(step, SUBMITTED, STARTED, **store.started(step))


async def run_one(store: Store, name: str, number: int = 1):
    await create(store, name, number)
    (step,) = await claim(store)
    assert step.job == name
    await start(store, step)
    return step


async def test_a_step_comes_with_as_many_devices_as_it_asks_for_in_their_order(pool: Store) -> None:
    await create(pool, "a", 2)
    await create(pool, "b", 1)
    await create(pool, "c", None, "gpu")
    assert names(await claim(pool)) == ["a", "b", "c"]
    assert await holding(pool) == {"a": ["0", "1"], "b": ["2"], "c": ["3"]}


async def test_steps_without_devices_never_come_from_the_pool_nor_the_others_without(pool: Store) -> None:
    await create(pool, "with", 1)
    await pool.create("without")
    assert names(await pool.claim()) == ["without"]
    assert names(await claim(pool)) == ["with"]


async def test_what_is_not_free_is_waited_for_and_a_large_one_is_not_passed(pool: Store) -> None:
    await run_one(pool, "first", 2)
    for name, number in (("large", 3), ("small", 1)):
        await create(pool, name, number)
    assert await claim(pool) == []
    (step,) = [row for row in await pool.claim_due() if row.job == "first"] or [await pool.step("first")]
    await pool.apply(step, SUCCEEDED)
    assert names(await claim(pool)) == ["large", "small"]


async def test_what_the_pool_cannot_serve_at_all_is_passed(pool: Store) -> None:
    await create(pool, "huge", 5)
    await create(pool, "small", 1)
    assert names(await claim(pool)) == ["small"]


async def test_a_reservation_has_no_known_end_so_others_go_on(pool: Store) -> None:
    await pool.write(gpu_reservations.reserve, Asked("models", 2, "me"), pool.now())
    await create(pool, "large", 3)
    await create(pool, "small", 2)
    assert names(await claim(pool)) == ["small"]
    await pool.write(gpu_reservations.release, "models")
    await create(pool, "later", 1)
    assert await claim(pool) == []  # now the large one can come, and nobody passes it


async def test_one_without_a_place_keeps_its_devices_and_is_told_of(pool: Store) -> None:
    await create(pool, "full", 3)
    await create(pool, "small", 1, "gpu")
    await create(pool, "two", 2, "gpu")
    places = {("subprocess", "default"): 0, ("gpu", "default"): 5}
    found = await claim_all(pool, places=places)
    assert names(found.steps) == ["small"] and found.no_place == {("subprocess", "default")}
    assert names(await claim(pool, places=KEYS)) == ["full"]


async def test_an_older_step_without_devices_gets_the_last_place(pool: Store) -> None:
    await pool.create("plain")
    await create(pool, "with", 1)
    one = {("subprocess", "default"): 1}
    assert names((await claim_all(pool, places=one)).steps) == []
    assert names((await claim_all(pool, places={("subprocess", "default"): 2})).steps) == ["with"]


@pytest.mark.parametrize("end", [SUCCEEDED, Trigger.FAILED, Trigger.EXPIRED, Trigger.LOST])
async def test_every_proven_end_gives_back_in_the_same_moment(pool: Store, end: Trigger) -> None:
    step = await run_one(pool, "a", 4)
    applied = await pool.apply(step, end, removal_after=3600_000_000)
    assert applied is not None and applied.step.state in (State.COMPLETED, State.ERROR)
    assert await holding(pool) == {}


async def test_cancel_and_pause_give_back_when_the_work_has_ended_not_before(pool: Store) -> None:
    for trigger, state in ((Trigger.CANCEL, State.CANCELLED), (Trigger.PAUSE, State.PAUSED)):
        name = trigger.value
        step = await run_one(pool, name, 2)
        await pool.request(name, trigger)
        assert await holding(pool) == {name: ["0", "1"]}
        applied = await pool.apply(step, Trigger.STOPPED)
        assert applied is not None and applied.step.state is state
        assert await holding(pool) == {}
    await pool.request("pause", Trigger.RESUME)
    assert names(await claim(pool)) == ["pause"]


async def test_an_end_that_somebody_else_wrote_gives_back_only_with_the_removal(pool: Store) -> None:
    step = await run_one(pool, "a", 2)
    await patch(pool, State.ERROR, "a", "main")
    assert await holding(pool) == {"a": ["0", "1"]}
    (removal,) = await pool.read(steps.due_removals, "h1", pool.now(), 10)
    assert removal.key == step.key
    await pool.write(steps.forget_removal, removal.key)
    assert await holding(pool) == {}


async def test_the_removal_of_an_earlier_run_leaves_the_devices_of_this_one(pool: Store) -> None:
    step = await run_one(pool, "a", 2)
    await pool.request("a", Trigger.PAUSE)
    await pool.apply(step, Trigger.STOPPED)
    await pool.request("a", Trigger.RESUME)
    (again,) = await claim(pool)
    await pool.write(steps.forget_removal, step.key)
    assert await holding(pool) == {"a": ["0", "1"]}
    assert again.id == step.id


async def test_the_removal_of_a_deleted_job_gives_back(pool: Store) -> None:
    await run_one(pool, "a", 2)
    await patch(pool, State.CANCELLED, "a", "main")
    await pool.write(jobs.delete_job, "default", "a", pool.now())
    assert sum(row.holder is not None for row in await rows(pool)) == 2
    (removal,) = await pool.read(steps.due_removals, "h1", pool.now(), 10)
    await pool.write(steps.forget_removal, removal.key)
    assert await holding(pool) == {}


async def test_a_lost_lease_gives_nothing_back(pool: Store) -> None:
    await run_one(pool, "a", 2)
    pool.clock.advance(LEASE / 1e6 + 1)
    (step,) = await pool.claim_due(token="token-2")
    assert await holding(pool) == {"a": ["0", "1"]}
    pool.token = "token-2"
    assert await take(pool, step) is None  # it is at work, and not about to start
    await pool.apply(step, SUCCEEDED)
    assert await holding(pool) == {}


async def test_a_step_that_was_claimed_before_a_crash_is_claimed_with_what_it_has(pool: Store) -> None:
    await create(pool, "a", 2)
    await claim(pool)
    await create(pool, "b", 1)
    await pool.write(steps.void_leases, "o1")
    found = await claim(pool)
    assert names(found) == ["a", "b"]
    assert await take(pool, found[0]) == ("0", "1")
    assert await holding(pool) == {"a": ["0", "1"], "b": ["2"]}


async def test_a_start_that_is_prepared_gives_back_and_takes_again_in_its_turn(pool: Store) -> None:
    await create(pool, "pulls", 3)
    (step,) = await claim(pool)
    assert await take(pool, step) == ("0", "1", "2")
    assert await pool.write(gpus.release_devices, pool.token, step.id)
    await pool.moved(step, SUBMITTED)
    await run_one(pool, "quick", 2)
    assert await take(pool, step) is None
    await create(pool, "young", 1)
    assert await claim(pool) == []  # the older one is in the queue again
    quick = await pool.step("quick")
    await pool.apply(quick, SUCCEEDED)
    assert names(await claim(pool)) == ["young"]  # what is free has gone to the older one first
    assert await take(pool, step) == ("0", "1", "2")
    assert await holding(pool) == {"pulls": ["0", "1", "2"], "young": ["3"]}


async def test_who_waits_in_the_middle_of_a_start_and_ends_leaves_the_queue(pool: Store) -> None:
    await run_one(pool, "first", 4)
    await pool.apply(await pool.step("first"), SUCCEEDED)
    await create(pool, "pulls", 4)
    (step,) = await claim(pool)
    await pool.write(gpus.release_devices, pool.token, step.id)
    await pool.moved(step, SUBMITTED)
    await run_one(pool, "other", 1)
    assert await take(pool, step) is None
    await pool.request("pulls", Trigger.CANCEL)
    await pool.apply(step, Trigger.STOPPED)
    await create(pool, "young", 3)
    assert names(await claim(pool)) == ["young"]


async def test_nothing_is_taken_or_released_without_the_lease(pool: Store) -> None:
    await create(pool, "a", 1)
    (step,) = await claim(pool)
    assert await pool.write(gpus.take_devices, POOL, "another", step.id, pool.now()) is None
    assert not await pool.write(gpus.release_devices, "another", step.id)
    assert await holding(pool) == {"a": ["0"]}


async def test_the_next_step_is_not_held_without_its_devices(pool: Store) -> None:
    await pool.create("a", steps=[gpu_step("one", 4), gpu_step("two", 4)])
    (one,) = await claim(pool)
    await start(pool, one)
    applied = await pool.apply(one, SUCCEEDED)
    assert applied is not None and applied.next_step is not None
    assert applied.next_step.lease_token is None
    assert names(await claim(pool)) == ["a"]


async def test_a_waiting_step_says_what_it_waits_for_and_who_has_it(pool: Store) -> None:
    await run_one(pool, "first", 3)
    await create(pool, "large", 4)
    await create(pool, "small", 1)
    assert await claim(pool) == []
    assert await pool.write(gpu_waiting.tell_waiting, POOL, pool.now()) == 2
    large, small = await pool.job("large"), await pool.job("small")
    assert large.reason == small.reason == "waiting_for_gpus" and large.state == "created"
    assert large.message.startswith(
        "waits for 4 GPUs: 1 of 4 free; held by default/first/main (3 GPUs since "
    )
    assert small.message.endswith("; 1 older request for 4 GPUs is ahead of it")
    step = await pool.step("small")
    assert step.status_details["gpus"]["ahead"] == 1 and step.status_details["gpus"]["wanted"] == 1
    assert await pool.write(gpu_waiting.tell_waiting, POOL, pool.now()) == 0
    await pool.apply(await pool.step("first"), SUCCEEDED)
    assert names(await claim(pool)) == ["large"]
    running = await pool.moved(await pool.step("large"), SUBMITTED, STARTED)
    assert running.status_details["gpus"] == {"devices": ["0", "1", "2", "3"]}


async def test_holders_in_other_workspaces_are_not_named(pool: Store) -> None:
    from nemo_jobs.store import workspaces

    await pool.write(workspaces.create_workspace, "other", None, pool.now(), "me")
    await pool.create("secret", steps=[gpu_step("main", 4)], workspace="other")
    await claim(pool)
    await create(pool, "a", 1)
    await pool.write(gpu_waiting.tell_waiting, POOL, pool.now())
    job = await pool.job("a")
    assert "secret" not in job.message and "a step of another workspace (4 GPUs since" in job.message


async def test_more_than_there_are_anywhere_ends_with_an_error(pool: Store) -> None:
    await create(pool, "huge", 5)
    await pool.write(gpu_waiting.tell_waiting, POOL, pool.now())
    job = await pool.job("huge")
    assert (job.state, job.reason) == ("error", "unschedulable")
    assert job.message == "main asks for 5 GPUs, but the pool of stable has 4"
    found = await pool.read(gpu_waiting.largest, "gpu", "default", pool.now())
    assert (found.total, found.host_name) == (4, "stable")
    assert await pool.read(gpu_waiting.largest, "gpu", "other", pool.now()) is None


async def test_more_than_here_waits_for_a_larger_pool_that_serves_it(pool: Store) -> None:
    await restock(pool, counted(8), pool="h2", owner="o2", host="h2", token="token-2")
    await create(pool, "huge", 5)
    await create(pool, "small", 1)
    assert names(await claim(pool)) == ["small"]
    await pool.write(gpu_waiting.tell_waiting, POOL, pool.now())
    assert (await pool.job("huge")).state == "created"
    assert names(await claim(pool, "h2", host="h2", token="token-2")) == ["huge"]


async def test_reservations_stand_in_the_queue_and_hold_the_same_rows(pool: Store) -> None:
    await run_one(pool, "first", 2)
    models = await pool.write(gpu_reservations.reserve, Asked("models", 2, "me"), pool.now())
    assert models.devices == ("2", "3") and models.since is not None
    with pytest.raises(Conflict, match="already"):
        await pool.write(gpu_reservations.reserve, Asked("models", 1, "me"), pool.now())
    with pytest.raises(Conflict, match=r"waits for 1 GPU: 0 of 4 free; held by .*reservation models"):
        await pool.write(gpu_reservations.reserve, Asked("more", 1, "me"), pool.now())
    with pytest.raises(Invalid, match="the pool of stable has 4"):
        await pool.write(gpu_reservations.reserve, Asked("more", 5, "me"), pool.now())
    with pytest.raises(NotFound, match="no GPU pool 'moon'; there are: h1"):
        await pool.write(gpu_reservations.reserve, Asked("more", 1, "me", pool="moon"), pool.now())
    waits = await pool.write(gpu_reservations.reserve, Asked("more", 1, "me", wait=True), pool.now())
    assert waits.devices == ()
    await create(pool, "young", 1)
    await pool.apply(await pool.step("first"), SUCCEEDED)
    assert names(await claim(pool)) == ["young"]
    more = await pool.read(gpu_reservations.reservation, "more")
    assert more.devices == ("0",)
    await pool.write(gpu_reservations.release, "models")
    with pytest.raises(NotFound):
        await pool.write(gpu_reservations.release, "models")
    assert await holding(pool) == {"reservation/more": ["0"], "young": ["1"]}


async def test_a_reservation_does_not_pass_an_older_step(pool: Store) -> None:
    await run_one(pool, "first", 2)
    await create(pool, "large", 4)
    with pytest.raises(Conflict, match="1 older request for 4 GPUs is ahead"):
        await pool.write(gpu_reservations.reserve, Asked("models", 1, "me"), pool.now())


async def test_what_nobody_looks_after_is_given_back_once_nothing_of_it_runs(pool: Store) -> None:
    await create(pool, "never", 1)
    await claim(pool)
    await run_one(pool, "unrecorded", 1)
    await patch(pool, State.ERROR, "unrecorded", "main")
    assert [one.step_id for one in await pool.read(gpu_stock.doubts, POOL, pool.token, pool.now())] == [
        (await pool.step("unrecorded")).id
    ]
    await pool.write(steps.void_leases, "o1")
    found = await pool.read(gpu_stock.doubts, POOL, pool.token, pool.now())
    assert len(found) == 2 and not any(one.elsewhere for one in found)
    never = await pool.step("never")
    assert await pool.write(gpu_stock.settle, POOL, [never.id], pool.now()) == [never.id]
    assert await holding(pool) == {"unrecorded": ["1"]}
    # Who is looked after again meanwhile keeps what it has.
    assert names(await claim(pool)) == ["never"]
    assert await pool.write(gpu_stock.settle, POOL, [never.id], pool.now()) == []


async def test_another_living_service_settles_its_own(pool: Store) -> None:
    await restock(pool, counted(4), owner="o2", token="token-2")
    await create(pool, "a", 1)
    await claim(pool, owner="o2", token="token-2")
    await patch(pool, State.ERROR, "a", "main")
    (doubt,) = await pool.read(gpu_stock.doubts, POOL, "token-1", pool.now())
    assert doubt.elsewhere
    await pool.write(gpu_stock.leave, "o2", "token-2")
    (doubt,) = await pool.read(gpu_stock.doubts, POOL, "token-1", pool.now())
    assert not doubt.elsewhere


async def test_services_that_claim_at_once_never_share_a_device(
    postgres_url: str, open_store: Callable
) -> None:
    stores = [await open_store(postgres_url, token=f"token-{n}") for n in range(3)]
    for number, store in enumerate(stores):
        await restock(store, counted(5), owner=f"o{number}", token=store.token)
    for number in range(24):
        await create(stores[0], f"job-{number}", 1 + number % 3)
    done: list[str] = []

    async def serve(store: Store) -> None:
        for _ in range(400):
            mine = await claim(store, owner=store.token)
            for step in mine:
                has = await take(store, step)
                assert has is not None and len(has) == 1 + int(step.job.split("-")[1]) % 3
                await asyncio.sleep(0)
                await store.apply(step, SUBMITTED, STARTED)
                assert sum(len(ids) for ids in (await holding(store)).values()) <= 5
                await store.apply(step, SUCCEEDED)
                done.append(step.job)
            if len(done) == 24:
                return

    await asyncio.gather(*(serve(store) for store in stores))
    assert sorted(done) == sorted(f"job-{n}" for n in range(24))
    assert await holding(stores[0]) == {}


async def test_pools_of_hosts_that_are_gone_are_forgotten_and_nothing_that_is_held(pool: Store) -> None:
    day = 86_400 * 1_000_000
    for key in ("gone", "holds"):
        await restock(pool, counted(1), pool=key, owner=key, token=key, until=pool.now())
    held = Asked("llama", 1, "me", pool="holds")
    await pool.write(gpu_reservations.reserve, held, pool.now())
    assert await pool.write(gpu_stock.purge, pool.now()) == 0
    assert await pool.write(gpu_stock.purge, pool.now() + 2 * day) == 1
    views = await pool.read(gpu_reservations.overview, pool.now())
    assert sorted(view.pool for view in views) == ["h1", "holds"]

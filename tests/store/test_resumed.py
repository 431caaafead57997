"""Work that stays with its backend while its step is paused."""

from typing import Any

import pytest

from nemo_jobs.domain.model import StepRecord
from nemo_jobs.domain.retention import DEFAULT
from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.store import steps, storage
from tests.store.kit import Store, step_spec

DAY = 86_400


async def paused(store: Store, **outcome: Any) -> StepRecord:
    step = await store.running("j")
    await store.request("j", Trigger.PAUSE)
    return await store.moved(step, Trigger.STOPPED, kept=True, **outcome)


async def due(store: Store) -> list[str]:
    store.clock.advance(40 * DAY)
    return [item.key for item in await store.read(steps.due_removals, store.host, store.now(), 10)]


async def test_work_that_is_kept_is_not_to_be_removed_and_its_handle_is_known_to_the_next_run(
    store: Store,
) -> None:
    step = await paused(store)
    assert step.handle is None
    assert await due(store) == []
    handle = await store.read(steps.run_before, step.id)
    assert handle is not None and handle["key"].endswith("-0") and step.generation == 1
    await store.request("j", Trigger.RESUME)
    (step,) = await store.claim()
    # Its number is recorded before it has a handle of its own, while it is prepared.
    step = await store.moved(step, Trigger.SUBMITTED, generation=2, reason="image_pull", message="1 %")
    assert (step.state, step.generation, step.handle) == (State.PENDING, 2, None)
    assert await store.read(steps.run_before, step.id) == handle
    assert await store.read(steps.run_before, "nobody") is None


async def test_of_a_kept_container_all_its_names_are_known_until_it_is_removed(store: Store) -> None:
    step = await paused(store)
    first, last = step.key.removesuffix("1") + "0", step.key.removesuffix("1") + "2"
    assert await store.read(steps.known_keys, [first]) == {first}
    await store.request("j", Trigger.RESUME)
    (step,) = await store.claim()
    handle = {"backend": "docker", "key": last, "version": 1, "data": {}}
    step = await store.moved(step, Trigger.SUBMITTED, Trigger.STARTED, generation=2, handle=handle)
    assert await store.read(steps.known_keys, [first, last]) == {first, last}
    await store.moved(step, Trigger.FAILED, removal_after=3600 * 1_000_000)
    assert await store.read(steps.known_keys, [first, last]) == {first, last}
    assert await due(store) == [last]
    await store.write(steps.forget_removal, last)
    assert await store.read(steps.known_keys, [first, last]) == set()


@pytest.mark.parametrize("by", ["request", "time"])
async def test_kept_work_is_removed_when_the_paused_job_is_cancelled(store: Store, by: str) -> None:
    step = await paused(store)
    if by == "request":
        await store.request("j", Trigger.CANCEL)
        (step,) = await store.claim_due()
        await store.moved(step, Trigger.STOPPED)
    else:
        store.clock.advance(40 * DAY)
        await store.write(storage.reclaim_due, store.now(), DEFAULT, 10)
    assert (await store.job("j")).state == "cancelled"
    assert await due(store) == [step.key.removesuffix("1") + "0"]


async def test_paused_from_outside_its_work_is_removed(store: Store) -> None:
    step = await store.running("j")
    await store.request("j", Trigger.PAUSE)
    await store.moved(step, Trigger.STOPPED)
    assert await due(store) == [step.key]


async def test_steps_with_and_without_gpus_stay_on_the_host_of_their_storage(store: Store) -> None:
    specs = [step_spec("one", provider="cpu"), step_spec("two", provider="gpu"), step_spec("three")]
    await store.create("j", steps=specs)
    found = await store.write(
        steps.claim_waiting,
        *("cpu", "default"),
        **{"owner": "me", "token": store.token, "host": "h1", "now": store.now()},
        until=store.now() + 60_000_000,
        limit=1,
        bind=True,
    )
    handle = {"backend": "docker", "key": found[0].key, "version": 1, "data": {}}
    step = await store.moved(found[0], Trigger.SUBMITTED, Trigger.STARTED, handle=handle, host="h1")
    applied = await store.apply(step, Trigger.SUCCEEDED)
    assert applied is not None and applied.next_step is not None
    assert (applied.next_step.provider, applied.next_step.host) == ("gpu", "h1")

"""From a step whose turn has come to work at its backend: prepared, given its devices, submitted.

What takes long comes first and needs nothing exclusive: while an image is pulled, say, others may
have the GPUs of the step. Then it takes them again, in its place of the queue, and is started.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeGuard

from nemo_jobs.backends import api
from nemo_jobs.backends.api import Backend, Handle, Plan, Prepares, Preparing
from nemo_jobs.domain.gpus import wanted
from nemo_jobs.domain.model import Reason, StepRecord
from nemo_jobs.domain.profiles import Profile
from nemo_jobs.domain.states import State
from nemo_jobs.engine import plans
from nemo_jobs.engine.around import Alarm, Surroundings
from nemo_jobs.engine.hidden import Hidden

#: Seconds between two looks at what a start that lasts is doing.
TELL_SECONDS = 0.5
#: A start that is not wanted any more may come to its end by itself for so long, in seconds.
LAST_CHANCE = 5.0
#: Seconds between two looks at a step that waits for devices: the net under a lost wake-up.
DEVICES_SECONDS = 15.0


class GaveUp(Exception):
    """A start was broken off. Whether anything runs has to be looked for."""


class Start:
    """One run of one step on its way to `backend`."""

    def __init__(
        self, shared: Surroundings, profile: Profile, backend: Backend, hidden: Hidden, alarm: Alarm
    ) -> None:
        self._shared, self._profile, self._backend = shared, profile, backend
        self._hidden, self._alarm = hidden, alarm
        self._plan: Plan | None = None
        self._devices_given_back = False

    async def plan(self, step: StepRecord, generation: int) -> Plan:
        """What is known from the record alone, and which run it goes on with."""
        plan = plans.make_plan(step, generation, self._profile, self._shared.platform)
        if self._plan is not None and self._plan.key == plan.key:
            return self._plan
        # A step in its first run has none before it.
        if generation and self._backend.capabilities.resumes:
            before = await self._shared.records.run_before(step.id)
            if before is not None and before["backend"] == self._backend.name:
                plan = replace(plan, resumes=Handle.from_json(before))
        self._plan = plan
        return plan

    async def waits(self, step: StepRecord, plan: Plan) -> Preparing | None:
        """What `plan` still needs, if anything; then the step has no devices."""
        if not prepares(self._backend):
            return None
        try:
            preparing = await self._backend.prepare(plan)
        except api.Unavailable:
            await self._give_devices_back(step)
            raise
        if preparing is not None:
            await self._give_devices_back(step)
        return preparing

    async def complete(self, step: StepRecord, plan: Plan) -> Plan | Preparing:
        """The plan with all that a start needs; or the devices it waits for."""
        records = self._shared.records
        if step.attempt_seq:
            plan = plans.with_storage(plan, await records.inheritance(step))
        if token := await records.task_token(step):
            plan = replace(plan, token=token)
        plan = await self._hidden.given(plan)
        devices = await records.take_devices(step)
        if devices is None:
            number = wanted(step.spec["executor"])
            text = f"all else is ready; waits for {number} GPU{'s' if number > 1 else ''}"
            return Preparing(text, Reason.WAITING_FOR_GPUS, DEVICES_SECONDS)
        self._devices_given_back = False
        return replace(plan, devices=devices)

    def devices_may_be_back(self) -> None:
        """Whoever claims a step gives it its devices, this engine too after a lease that ran out."""
        self._devices_given_back = False

    async def submit(self, plan: Plan, go_on: Callable[[str], Awaitable[bool]]) -> Handle:
        """Hand it over. While that lasts, `go_on` is told what the backend does and says whether the
        start is still wanted; if not, it raises GaveUp unless it ends soon."""
        backend = self._backend
        if not prepares(backend):
            return await backend.submit(plan)
        task = asyncio.ensure_future(backend.submit(plan))
        task.add_done_callback(lambda _: self._alarm.ring())
        try:
            while not task.done():
                until = self._shared.clock.now() + int(TELL_SECONDS * 1e6)
                await self._alarm.rest(until, look=False)
                if not task.done() and not await go_on(backend.stage(plan.key)):
                    await asyncio.wait({task}, timeout=LAST_CHANCE)
                    break
        finally:
            await _break_off(task)
        if not task.done() or task.cancelled():
            raise GaveUp
        return task.result()

    async def _give_devices_back(self, step: StepRecord) -> None:
        if not self._devices_given_back:
            await self._shared.records.release_devices(step)
            self._devices_given_back = True


async def _break_off(task: asyncio.Future[Handle]) -> None:
    """Whatever becomes of it is nobody's business any more, unless it is done."""
    task.add_done_callback(lambda late: late.cancelled() or late.exception())
    if not task.done():
        task.cancel()
        # One that doesn't react is left alone: each of its calls has a limit of its own.
        await asyncio.wait({task}, timeout=LAST_CHANCE)


def still_wanted(step: StepRecord) -> bool:
    """Whether a start under way is to be finished."""
    return step.state in (State.CREATED, State.RESUMING, State.PENDING)


def prepares(backend: Backend) -> TypeGuard["PreparingBackend"]:
    """Whether starts on this backend may take long."""
    return _kind_prepares(type(backend))


class PreparingBackend(Backend, Prepares, Protocol):
    """For the type checker."""


@functools.cache
def _kind_prepares(kind: type) -> bool:
    return issubclass(kind, Prepares)

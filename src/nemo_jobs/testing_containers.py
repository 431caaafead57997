"""A scripted backend whose work has to be prepared, takes its time to start, and can be resumed.

It knows these variables besides those of `nemo_jobs.testing`:

| variable | meaning |
|---|---|
| `FAKE_PREPARE_SECONDS` | how long its preparation takes (0); `forever` is allowed |
| `FAKE_PREPARE_ERROR` | `rejected`, or `unavailable:<n>` for the first n looks |
| `FAKE_SUBMIT_SECONDS` | how long its start takes (0); `forever` is allowed |
| `FAKE_SUBMIT_LATE` | `1`: a start that is broken off happens all the same |
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from nemo_jobs.backends.api import (
    ENDED,
    BackendError,
    Capabilities,
    Handle,
    Leftover,
    Observation,
    Phase,
    Plan,
    Preparing,
    Rejected,
    Unavailable,
)
from nemo_jobs.domain.clock import Clock
from nemo_jobs.testing import NEVER, FakeBackend, FakeWorld, script_of

_LOOK_AGAIN = 0.002  # seconds between looks of a start that waits for the clock to move


class ContainerWorld(FakeWorld):
    """What outlives the backend: what was prepared, and what the engine does with its containers."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared_from: dict[str, int] = {}  # by key, when its preparation began
        self.suspended: dict[str, str] = {}  # by key, what the engine says about it
        self.resumed: Counter[str] = Counter()  # runs that went on with a container, by its label
        self.volumes: dict[str, Leftover] = {}  # by name
        self.stuck: set[str] = set()  # names of what can't be removed
        self.labels: dict[str, str] = {}  # by key, the name that a resumed container was made under


class FakeContainers(FakeBackend):
    """Containers that are none. `handles` tells the name under which a container was made, which is
    that of its first run, whatever run it is in."""

    world: ContainerWorld

    def __init__(
        self, clock: Clock, world: ContainerWorld | None = None, *, name: str = "subprocess"
    ) -> None:
        super().__init__(clock, world or ContainerWorld(), name=name)
        self._stages: dict[str, str] = {}

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, resumes=True, images=True)

    async def prepare(self, plan: Plan) -> Preparing | None:
        self._ask("prepare")
        script, now = script_of(plan), self.clock.now()
        began = self.world.prepared_from.setdefault(plan.key, now)
        failure, _, times = script.get("FAKE_PREPARE_ERROR", "").partition(":")
        if failure == "rejected":
            raise Rejected("there is no such image", "image_pull")
        if failure == "unavailable" and self.world.refused[f"prepare {plan.key}"] < int(times or 1):
            self.world.refused[f"prepare {plan.key}"] += 1
            raise Unavailable("the script says that it can't be asked", retry_after=1.0)
        text = script.get("FAKE_PREPARE_SECONDS", "0")
        lasts = NEVER if text == "forever" else float(text)
        passed = (now - began) / 1e6
        if passed >= lasts:
            return None
        return Preparing(f"pulling: {passed:g} of {lasts:g} s", "image_pull")

    def stage(self, key: str) -> str:
        return self._stages.get(key, "")

    async def submit(self, plan: Plan) -> Handle:
        self._ask("submit")
        script = script_of(plan)
        text = script.get("FAKE_SUBMIT_SECONDS", "0")
        until = self.clock.now() + (NEVER if text == "forever" else float(text)) * 1e6
        self._stages[plan.key] = "creating the container"
        try:
            while plan.key not in self.world.works and self.clock.now() < until:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_AGAIN)
            self._ask("submit")
        except asyncio.CancelledError:
            if script.get("FAKE_SUBMIT_LATE") == "1":
                await self._begin(plan)
            raise
        finally:
            self._stages.pop(plan.key, None)
        return await self._begin(plan)

    async def _begin(self, plan: Plan) -> Handle:
        before = self.world.works.get(plan.resumes.key) if plan.resumes else None
        if plan.key not in self.world.works and before is not None and plan.resumes is not None:
            if before.phase(self.clock.now()) not in ENDED:
                raise RuntimeError(f"{plan.resumes.key} is resumed while it runs")
            del self.world.works[plan.resumes.key]
            label = self.world.labels.pop(plan.resumes.key, plan.resumes.key)
            self.world.labels[plan.key] = label
            self.world.resumed[label] += 1
        return await super().submit(plan)

    async def find(self, plan: Plan) -> Handle | None:
        self._ask("find")
        work = self.world.works.get(plan.key)
        return work.handle if work else None

    async def observe(self, handles: Sequence[Handle]) -> dict[str, Observation]:
        seen = await super().observe(handles)
        for key, message in self.world.suspended.items():
            if key in seen and seen[key].phase is Phase.RUNNING:
                seen[key] = replace(seen[key], reason="suspended", message=message)
        return seen

    async def remove(self, handle: Handle, *, wipe_storage: bool = False) -> None:
        await super().remove(replace(handle, key=self._key(handle)), wipe_storage=wipe_storage)

    async def handles(self) -> AsyncIterator[Handle]:
        self._ask("handles")
        for key, work in list(self.world.works.items()):
            yield replace(work.handle, key=self.world.labels.get(key, key))

    async def belongings(self) -> AsyncIterator[Leftover]:
        async for handle in self.handles():
            yield Leftover("container", handle.key, handle.key, data=handle.to_json())
        for volume in list(self.world.volumes.values()):
            yield volume

    async def discard(self, item: Leftover) -> None:
        self._ask("discard")
        if item.name in self.world.stuck:
            raise BackendError("it is in use")
        if item.kind == "volume":
            self.world.volumes.pop(item.name, None)
        else:
            await self.remove(Handle.from_json(item.data))

    def _key(self, handle: Handle) -> str:
        """The present name of a container that is asked for by its label."""
        by_label = {label: key for key, label in self.world.labels.items()}
        return handle.key if handle.key in self.world.works else by_label.get(handle.key, handle.key)

"""What the conformance suite needs of a backend's test module, and how the suite waits."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_jobs.backends.api import Backend, Handle, Json, LogPiece, Observation, Phase, Plan

FOREVER = math.inf
_STEP = 0.01


@dataclass(frozen=True, slots=True)
class Work:
    """What a workload does. `code` above 128 means that it ends by that signal."""

    seconds: float = 0.0
    code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    lines: int = 0  # lines on stdout, spread over its time
    ignores_stop: bool = False
    refused: bool = False  # the backend must reject it
    left: Mapping[str, str] = field(default_factory=dict)  # files that it leaves as results, by path


class Harness(ABC):
    """One world in which backends come and go."""

    #: Whether the processes of this backend stop by a signal whose code can be told.
    tells_stop_code = True

    @abstractmethod
    async def backend(self) -> Backend:
        """A started backend over the same world, as a new process would make it."""

    @abstractmethod
    def plan(self, work: Work) -> Plan:
        """A plan with a key and an attempt of its own."""

    @abstractmethod
    async def wait(self, seconds: float) -> None:
        """Let time pass for the work."""

    @abstractmethod
    def starts(self, plan: Plan) -> int:
        """How often the work of this plan was really begun."""

    @abstractmethod
    def has_storage(self, plan: Plan) -> bool:
        """Whether the storage that the attempt's steps share exists."""


class Waiting:
    """How the tests of the suite look, wait and read."""

    deadline = 15.0

    async def look(self, backend: Backend, handle: Handle) -> Observation:
        return (await backend.observe([handle]))[handle.key]

    async def settle(
        self, harness: Harness, backend: Backend, handle: Handle, phases: frozenset[Phase] | set[Phase]
    ) -> Observation:
        """Wait until the workload is in one of the phases."""
        for _ in range(int(self.deadline / _STEP)):
            seen = await self.look(backend, handle)
            if seen.phase in phases:
                return seen
            await harness.wait(_STEP)
        raise AssertionError(f"{handle.key} is {seen.phase} after {self.deadline} s: {seen}")

    async def started(self, harness: Harness, plan: Plan) -> int:
        """How often work was begun that is known to run: its first mark may come a little later."""
        for _ in range(int(self.deadline / _STEP)):
            if harness.starts(plan):
                break
            await harness.wait(_STEP)
        return harness.starts(plan)

    async def passing(self, harness: Harness, future: asyncio.Future[Any]) -> Any:
        """Let time pass until the future is done."""
        for _ in range(int(self.deadline / _STEP)):
            if future.done():
                return future.result()
            await harness.wait(_STEP)
        future.cancel()
        raise AssertionError(f"nothing came within {self.deadline} s")

    async def pieces(
        self, harness: Harness, backend: Backend, handle: Handle, cursor: Json | None
    ) -> AsyncIterator[LogPiece]:
        reader = aiter(backend.logs(handle, cursor))
        while True:
            try:
                yield await self.passing(harness, asyncio.ensure_future(anext(reader)))
            except StopAsyncIteration:
                return

    async def read(
        self, harness: Harness, backend: Backend, handle: Handle, cursor: Json | None
    ) -> dict[str, bytes]:
        """All that is there from the cursor to the end."""
        text = {"stdout": b"", "stderr": b""}
        async for piece in self.pieces(harness, backend, handle, cursor):
            text[piece.stream] += piece.data
        return text

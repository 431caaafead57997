"""Images that aren't there yet: one pull for all who want one, a few at a time, told step by step."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway


@dataclass(frozen=True, slots=True)
class PullLimits:
    """Times are seconds."""

    at_once: int = 3  # pulls of one engine
    least_free: int = 1 << 30  # bytes of the engine's disk below which no pull begins
    unreachable_tries: int = 4  # while nothing answers under the registry's name
    unreachable: float = 45.0  # the same, in seconds
    failing: float = 600.0  # while the registry answers with errors and no byte more comes
    limited: float = 3600.0  # while it says that it was asked too often
    stalled: float = 300.0  # without any progress until a pull is broken off and begun again
    unwanted: float = 60.0  # until a pull that nobody asks for is given up


@dataclass(frozen=True, slots=True)
class Pulling:
    """A pull that is under way: `message` is for people. `done` and `total` are bytes to be moved as
    far as they are known yet."""

    message: str
    done: int = 0
    total: int = 0

    @property
    def percent(self) -> int | None:
        return min(99, self.done * 100 // self.total) if self.total else None


class PullFailed(Exception):
    """The image can't be had: the sentence names the image, what was tried and the engine's reason."""


class Pulls:
    """The pulls of one engine. `hint` is called with the keys of those who asked when their image
    is there or can't be had."""

    def __init__(
        self,
        engine: DockerEngine,
        *,
        limits: PullLimits | None = None,
        hint: Callable[[str], None] = lambda key: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._hint, self._monotonic = engine, hint, monotonic
        self._limits = limits or PullLimits()

    async def want(self, image: str, key: str = "") -> Pulling | None:
        """None when the image is there (no registry is asked then). Else begins or joins its pull and
        says how far it is. Ask again at least once a minute, else it is given up. Raises `PullFailed`
        when it can't be had, `EngineAway` when the engine can't be asked."""
        raise EngineAway("not written yet")

    async def aclose(self) -> None:
        """Give all pulls up."""

"""Images that aren't there yet: one pull for all who want one, a few at a time, told step by step."""

import asyncio
import time
from collections.abc import Callable

from nemo_jobs.backends.docker import registry
from nemo_jobs.backends.docker.auth import Logins
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.effort import Effort, PullFailed, Pulling, PullLimits, Shared
from nemo_jobs.backends.docker.errors import EngineError, one_line

__all__ = ["PullFailed", "PullLimits", "Pulling", "Pulls"]


class Pulls:
    """The pulls of one engine. `hint` is called with the keys of those who asked when their image
    is there or can't be had. Logins are looked up for each try."""

    def __init__(
        self,
        engine: DockerEngine,
        *,
        logins: Logins | None = None,
        limits: PullLimits | None = None,
        hint: Callable[[str], None] = lambda key: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._hint, self._monotonic = engine, hint, monotonic
        limits = limits or PullLimits()
        self._shared = Shared(
            engine, logins or Logins(), limits, asyncio.Semaphore(limits.at_once), monotonic
        )
        self._unwanted = limits.unwanted
        self._efforts: dict[str, Effort] = {}
        # How a pull ended, for each who asked and hasn't heard of it yet, and when that was.
        self._failures: dict[tuple[str, str], tuple[Exception, float]] = {}

    @property
    def running(self) -> int:
        """How many pulls are under way or wait for a place."""
        return len(self._efforts)

    async def want(self, image: str, key: str = "") -> Pulling | None:
        """None when the image is there (no registry is asked then). Else begins or joins its pull and
        says how far it is. Ask again at least once a minute, else it is given up. Raises `PullFailed`
        when it can't be had, `EngineAway` when the engine can't be asked: once for each key that
        waited; who asks after that begins anew, perhaps with a new login."""
        self._forget()
        if (failed := self._failures.pop((image, key), None)) is not None:
            raise failed[0].with_traceback(None)
        if (effort := self._efforts.get(image)) is None:
            name = _name(image)
            if await self._there(image):
                return None
            if name.id:
                raise PullFailed(
                    f"the engine has no image {image}, and no registry knows one by its id alone"
                )
            # Another one may have begun meanwhile.
            if (effort := self._efforts.get(image)) is None:
                effort = self._efforts[image] = Effort(image, name, self._shared, self._ended)
        return effort.ask(key)

    async def aclose(self) -> None:
        """Give all pulls up."""
        efforts, self._efforts = self._efforts, {}
        await asyncio.gather(*(effort.aclose() for effort in efforts.values()))

    async def _there(self, image: str) -> bool:
        try:
            return await self._engine.image(image) is not None
        except EngineError as error:
            if error.status == 400:
                raise PullFailed(f"the engine doesn't accept the image name {image}: {error}") from error
            raise

    def _ended(self, effort: Effort) -> None:
        if self._efforts.get(effort.image) is effort:
            del self._efforts[effort.image]
        for key in effort.keys:
            if effort.failure is not None:
                self._failures[effort.image, key] = effort.failure, self._monotonic()
            self._hint(key)

    def _forget(self) -> None:
        """What those who don't ask any more haven't heard."""
        oldest = self._monotonic() - self._unwanted
        for place, (_, at) in list(self._failures.items()):
            if at >= oldest:
                break  # they are in order
            del self._failures[place]


def _name(image: str) -> registry.ImageName:
    try:
        return registry.parse(image)
    except ValueError as error:
        raise PullFailed(one_line(str(error))) from error

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

#: Seconds for which the end of a pull is told to those who wanted it and haven't asked since.
_TOLD = 5.0


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
        self._efforts: dict[str, Effort] = {}
        self._closed = False

    @property
    def running(self) -> int:
        """How many pulls are under way or wait for a place."""
        return sum(not effort.over for effort in self._efforts.values())

    async def want(self, image: str, key: str = "") -> Pulling | None:
        """None when the image is there (no registry is asked then). Else begins or joins its pull and
        says how far it is. Ask again at least once a minute, else it is given up. Raises `PullFailed`
        when it can't be had, `EngineAway` when the engine can't be asked."""
        self._forget()
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
        for key in effort.keys:
            self._hint(key)

    def _forget(self) -> None:
        """Ends that are old: who asks then may have a new login, or another registry."""
        now = self._monotonic()
        for image, effort in list(self._efforts.items()):
            ended = effort.ended_at
            if ended is not None and (effort.succeeded or now - ended > _TOLD):
                del self._efforts[image]


def _name(image: str) -> registry.ImageName:
    try:
        return registry.parse(image)
    except ValueError as error:
        raise PullFailed(one_line(str(error))) from error

"""The Docker engine of a service: whether one is there, and taking it in when it comes later."""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_jobs.backends.api import Backend
    from nemo_jobs.clock import SystemClock
    from nemo_jobs.config import Settings
    from nemo_jobs.domain.profiles import ProfileSet

log = logging.getLogger(__name__)

#: How long an engine may take to answer at start, in seconds.
ANSWER_SECONDS = 5.0
#: Seconds between two looks for an engine that is not there.
LOOK_SECONDS = 15.0
USUAL_SOCKET = "/var/run/docker.sock"
#: Backends of this version, by the name that profiles use.
BACKENDS = ("subprocess", "docker")


class Containers:
    """Where containers run for this service, if anywhere. What speaks to an engine is loaded when
    there may be one. `owner` is given the name that this data directory makes for what the service
    makes on an engine, and answers with the one to use."""

    def __init__(
        self,
        settings: "Settings",
        data_dir: Path,
        host: str,
        clock: "SystemClock",
        owner: Callable[[str], Awaitable[str]],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings, self._data_dir, self._host = settings, data_dir, host
        self._owner = owner
        self._clock, self._environ = clock, environ
        self._opened: Backend | None = None
        self.backend: Backend | None = None  # once its engine has answered
        self.problem = f"no Docker engine is named, and {USUAL_SOCKET} is not there"

    @property
    def wanted(self) -> bool:
        """Whether any profile needs an engine."""
        own = any(entry.backend == "docker" for entry in self._settings.jobs.executors)
        return own or self._settings.platform.runtime == "docker"

    def profiles(self, *, docker: bool | None = None) -> "ProfileSet":
        """The profiles in force now, or with or without an engine."""
        from nemo_jobs.domain.profiles import resolve_profiles

        there = self.backend is not None if docker is None else docker
        return resolve_profiles(self._settings, docker=there, available=BACKENDS, no_docker=self.problem)

    def warnings(self, profiles: "ProfileSet", listens_on: str) -> list[str]:
        """What an operator should know of profiles on the engine that is there. What their volumes
        give to tasks was told when the configuration was read."""
        if self.backend is None:
            return []
        from nemo_jobs.backends.docker.opening import warnings_of
        from nemo_jobs.domain.profiles import DockerConfig

        found: list[str] = []
        for profile in profiles:
            if isinstance(profile.config, DockerConfig):
                storage = profile.config.storage.model_copy(update={"additional_volume_mounts": []})
                config = profile.config.model_copy(update={"storage": storage})
                found += warnings_of("/".join(profile.key), config, listens_on)
        return found

    async def look(self) -> bool:
        """Ask for the engine; whether it is there now. `problem` then says why not."""
        if self.backend is None and self.wanted and await asyncio.to_thread(self._may_be_there):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    self.backend = await self._started()
            except TimeoutError:
                self.problem = f"the Docker engine did not answer within {ANSWER_SECONDS:g} s"
        return self.backend is not None

    async def watch(self, came: Callable[["Backend"], Awaitable[None]]) -> None:
        """Look again and again until the engine is there and `came` has taken it in."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if await self.look() and self.backend is not None:
                    await came(self.backend)
                    log.info("a Docker engine has come: its profiles can be used from now on")
                    return
            except Exception as error:
                log.warning("the Docker engine is looked for again: %s", error)

    async def aclose(self) -> None:
        """Let go of an engine that never answered; one that did belongs to the caller."""
        if self._opened is not None and self.backend is None:
            await self._opened.aclose()

    async def _started(self) -> "Backend | None":
        from nemo_jobs.backends.api import BackendError
        from nemo_jobs.backends.docker.opening import open_backend
        from nemo_jobs.domain.model import NemoJobsError

        try:
            if self._opened is None:
                settings = await self._with_owner()
                self._opened = await open_backend(
                    settings, self._data_dir, host_id=self._host, clock=self._clock
                )
            await self._opened.start()
        except (BackendError, NemoJobsError, ValueError, OSError) as error:
            self.problem = str(error)
            return None
        return self._opened

    async def _with_owner(self) -> "Settings":
        """Services that share a database share what they make on an engine, too."""
        from nemo_jobs.backends.docker.labels import instance_id

        host = self._settings.host
        if host.docker_owner_id:
            return self._settings
        owner = await self._owner(instance_id(str(self._data_dir), None))
        return self._settings.model_copy(update={"host": host.model_copy(update={"docker_owner_id": owner})})

    def _may_be_there(self) -> bool:
        """Whether somebody names an engine, or the usual one has its socket here."""
        environ = self._environ
        if self._settings.platform.docker.host or environ.get("DOCKER_HOST") or environ.get("DOCKER_CONTEXT"):
            return True
        folder = Path(environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
        return _names_a_context(folder / "config.json") or Path(USUAL_SOCKET).exists()


def _names_a_context(file: Path) -> bool:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and bool(found.get("currentContext"))

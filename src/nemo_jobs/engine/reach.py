"""Which backends there are, whether they can be asked now, and so which profiles can take work."""

import logging
from collections.abc import Callable, Iterator, Mapping

from nemo_jobs.backends.api import Backend, Counts, Health
from nemo_jobs.domain.model import StepRecord
from nemo_jobs.domain.profiles import Profile, ProfileSet

log = logging.getLogger(__name__)

_WELL = Health(True)


class Reach:
    """The backends of one engine, by name. Others may come while it runs. `changed` is called when
    one comes, is lost, or can be asked again."""

    def __init__(
        self,
        profiles: ProfileSet,
        backends: Mapping[str, Backend],
        changed: Callable[[], None],
        unusable: Callable[[], Mapping[tuple[str, str], str]] = dict,
    ) -> None:
        self._unusable = unusable
        self.profiles = profiles
        self._backends, self._changed = dict(backends), changed
        self._health: dict[str, Health] = {}

    def __iter__(self) -> Iterator[Backend]:
        return iter(list(self._backends.values()))

    def get(self, name: str) -> Backend | None:
        return self._backends.get(name)

    def add(self, backend: Backend) -> None:
        """Work can be looked after on it from now on, and started where profiles name it."""
        self._backends[backend.name] = backend
        self._changed()

    def usable(self) -> list[Profile]:
        """The profiles that can take work now."""
        return [
            profile
            for profile in self.profiles
            if not profile.unavailable
            and profile.backend in self._backends
            and self._health.get(profile.backend, _WELL).ok
        ]

    def trouble(self, profile: Profile) -> str:
        """Why work on this profile can't be started now; empty while it can."""
        return self.silent(profile) or self._unusable().get(profile.key, "")

    def silent(self, profile: Profile) -> str:
        """Why its backend can't be asked now; empty while it can."""
        health = self._health.get(profile.backend, _WELL)
        return "" if health.ok else health.message or "it can't be asked"

    def of_step(self, step: StepRecord) -> tuple[Profile, Backend] | None:
        """With what to look after a step, also on a profile that is not configured any more; None
        when its backend is not here."""
        profile = self.profiles.get(step.provider, step.profile)
        if profile is None or profile.backend not in self._backends:
            name = step.handle["backend"] if step.handle else usual_backend(step)
            profile = self.profiles.default_for(name, step.provider, step.profile)
        backend = self._backends.get(profile.backend)
        return None if backend is None else (profile, backend)

    def on_host(self, profile: Profile) -> bool:
        """Whether its work can be looked after from this host alone."""
        backend = self._backends.get(profile.backend)
        return backend is not None and backend.capabilities.on_host

    def running_on_host(self) -> int:
        """How many workloads run on this host and go on without the service."""
        return sum(backend.running() for backend in self if isinstance(backend, Counts))

    def away(self) -> list[str]:
        """What can't be asked now, and why."""
        return [f"{name}: {health.message}" for name, health in self._health.items() if not health.ok]

    async def probe_all(self) -> None:
        """Ask all of them whether they can take work."""
        for backend in self:
            health = await backend.probe()
            before = self._health.get(backend.name)
            if before is None or before.ok != health.ok:
                level = logging.INFO if health.ok else logging.WARNING
                state = "works" if health.ok else "can't be used:"
                log.log(level, "backend %s %s %s", backend.name, state, health.message)
                self._changed()
            self._health[backend.name] = health


def usual_backend(step: StepRecord) -> str:
    """The backend of a step that has no handle yet and whose profile is not there."""
    return "subprocess" if step.provider == "subprocess" else "docker"

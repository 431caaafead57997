"""What the HTTP side is made of; the service puts it together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Json
from nemo_jobs.domain.retention import DEFAULT, Retention

if TYPE_CHECKING:
    from nemo_jobs.config import Settings
    from nemo_jobs.domain.model import StepRecord
    from nemo_jobs.domain.profiles import Profile, ProfileSet
    from nemo_jobs.files.objects import ObjectStore
    from nemo_jobs.http.access import Gate
    from nemo_jobs.http.routes import Operation
    from nemo_jobs.http.stream import Streams
    from nemo_jobs.http.walks import Walks
    from nemo_jobs.store.db import Database
    from nemo_jobs.store.jobs import Lease
    from nemo_jobs.telemetry import Metrics
    from nemo_jobs.vault.secrets import Secrets


class EngineView(Protocol):
    """What the API tells about the engine that runs beside it, and tells it."""

    def health(self) -> Mapping[str, bool]:
        """Loop by loop: does it make progress?"""
        ...

    def problems(self) -> Sequence[str]:
        """Sentences for people about what does not work now; empty when all is well."""
        ...

    def snapshot(self) -> Mapping[str, int]:
        """Counts of what the engine holds now, by name."""
        ...

    def trouble(self, profile: "Profile") -> str:
        """Why work on this profile can't be started now; empty while it can."""
        ...

    async def sweep(self, dry_run: bool) -> Json:
        """Remove what this service made at a backend and nobody owns; what was found, as data."""
        ...

    def render(self, step: "StepRecord") -> Json:
        """What would be sent to start the step, without secret values. Raises Invalid when its
        backend would refuse it."""
        ...

    def arrive(self, provider: str, profile: str) -> "tuple[Any, Lease | None] | None":
        """A job is about to be created; with a lease its first step is to be held for the engine."""
        ...

    def arrived(self, arrival: Any, step: "StepRecord | None") -> None:
        """What became of that: the step that is stored and held, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a route may use. `engine` is None where this process only serves the API."""

    db: "Database"
    settings: "Settings"
    profiles: "ProfileSet"
    clock: Clock
    engine: EngineView | None
    version: str
    revision: str = ""
    retention: Retention = DEFAULT
    objects: "ObjectStore | None" = None  # where the bytes of files are
    secrets: "Secrets | None" = None

    def profiles_up(self) -> dict[tuple[str, str], bool]:
        """Of each profile whether work can be started on it now; none where this process can't know."""
        engine = self.engine
        if engine is None:
            return {}
        return {one.key: not (one.unavailable or engine.trouble(one)) for one in self.profiles}


@dataclass(frozen=True, slots=True)
class Api:
    """What a handler gets: the parts, and what the application itself keeps."""

    parts: Parts
    streams: "Streams"
    walks: "Walks"
    metrics: "Metrics"
    operations: "Sequence[Operation]"
    gate: "Gate | None" = None  # who asks for tokens; None while nobody does

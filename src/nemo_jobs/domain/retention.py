"""How long the storage that a job's steps share is kept once nothing of the job runs.

Times are microseconds since 1970 UTC, spans are seconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from nemo_jobs.domain.model import Invalid
from nemo_jobs.domain.profiles import Profile
from nemo_jobs.domain.states import State

SECOND = 1_000_000
HOUR = 3600

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Kept:
    """What one profile says of storage: after a job that completed, and after any other end."""

    completed: int = HOUR
    ended: int = HOUR


@dataclass(frozen=True, slots=True)
class Retention:
    """The rules in force; `profiles` by (provider, profile).

    - completed: as the profile of its last step says;
    - cancelled: `ttl_seconds_after_finished` of the profile;
    - error: that or `failed`, whichever is longer, so that neither setting shortens the other;
    - paused: the job's own time, else `paused`, and never more than `most_paused`.
    """

    paused: int = 7 * 24 * HOUR
    most_paused: int = 30 * 24 * HOUR
    failed: int = 4 * HOUR
    profiles: Mapping[Key, Kept] = field(default_factory=dict)

    def due(self, state: State, profile: Key, since: int, pause_ttl: int | None = None) -> int | None:
        """When the storage of a job that is in `state` since then may go; None: not while it is
        there. `profile` is that of its last step, `pause_ttl` what the job itself asks for."""
        kept = self.profiles.get(profile, _UNKNOWN)
        match state:
            case State.COMPLETED:
                return since + kept.completed * SECOND
            case State.CANCELLED:
                return since + kept.ended * SECOND
            case State.ERROR:
                return since + max(kept.ended, self.failed) * SECOND
            case State.PAUSED:
                return since + self.paused_for(pause_ttl) * SECOND
            case _:
                return None

    def paused_for(self, pause_ttl: int | None) -> int:
        """How many seconds the storage of a paused job is kept."""
        return min(self.paused if pause_ttl is None else pause_ttl, self.most_paused)

    def check_pause_ttl(self, pause_ttl: int | None) -> None:
        """Raises Invalid for a time of a job's own that is longer than allowed."""
        if pause_ttl is not None and pause_ttl > self.most_paused:
            raise Invalid(
                f"control.pause_ttl_seconds is {pause_ttl}; at most {self.most_paused} s are allowed "
                "(jobs.storage.maximum_pause_ttl_seconds)"
            )


_UNKNOWN = Kept()
#: The rules where nobody configured others.
DEFAULT = Retention()


class StorageChoice(Protocol):
    """What of section `jobs.storage` decides."""

    @property
    def paused_storage_ttl_seconds(self) -> int: ...
    @property
    def maximum_pause_ttl_seconds(self) -> int: ...
    @property
    def failed_storage_ttl_seconds(self) -> int: ...


def retention_of(choice: StorageChoice, profiles: Iterable[Profile]) -> Retention:
    """The rules of a configuration."""
    kept = {}
    for profile in profiles:
        ttl = profile.config.ttl_seconds_after_finished
        at_once = profile.config.cleanup_completed_jobs_immediately
        kept[profile.key] = Kept(completed=0 if at_once else ttl, ended=ttl)
    return Retention(
        paused=choice.paused_storage_ttl_seconds,
        most_paused=choice.maximum_pause_ttl_seconds,
        failed=choice.failed_storage_ttl_seconds,
        profiles=kept,
    )

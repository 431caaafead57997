"""Places: how many steps a profile may have at once, who waits for one, and who gets the next.

A job that finds a free place when it is created is held from its first moment, in the transaction
that stores it. Where others wait already it waits behind them, and the claim loop hands out the
places in order of age. While many jobs arrive at once only a few are started beside them: storing
a job is short and somebody waits for the answer.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from nemo_jobs.domain.profiles import Profile

#: Jobs being created at the same time that make a crowd.
CROWD = 24
#: Steps at work for each core while there is a crowd.
IN_A_CROWD = 4
#: Places of a profile that states no limit.
UNLIMITED = 256

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that is being created. With `reserved` its first step has a place."""

    key: Key
    reserved: bool


class Places:
    """Counts only; `open_up` is called when places become free that somebody may wait for."""

    def __init__(self, cores: int, open_up: Callable[[], None]) -> None:
        self._cores = cores
        self._open_up = open_up
        self._taken: Counter[Key] = Counter()
        self._full: set[Key] = set()  # profiles for which steps may wait
        self._known = False  # False: for any profile some may wait
        self._arriving = 0

    @property
    def some_full(self) -> bool:
        """Whether steps may wait although every place was given out."""
        return bool(self._full)

    def free(self, profile: Profile) -> int:
        """How many more steps may be taken now."""
        places = getattr(profile.config, "places", None)
        most = int(places(self._cores)) if places else UNLIMITED
        if self._arriving >= CROWD:
            most = min(most, IN_A_CROWD * self._cores)
        return most - self._taken[profile.key]

    def may_wait(self, profile: Profile) -> bool:
        """Whether it is worth looking for steps that wait for this profile."""
        return not self._known or profile.key in self._full

    def look_everywhere(self) -> None:
        """Steps may wait anywhere."""
        self._known = False

    def looking(self) -> None:
        """A look at all profiles begins; what is told from now on counts for the next one."""
        self._known = True

    def looked(self, profile: Profile, *, more: bool) -> None:
        """All that fits was taken; with `more` others may be left."""
        (self._full.add if more else self._full.discard)(profile.key)

    def arrive(self, profile: Profile) -> Arrival:
        """A job is about to be created; must be followed by `arrived`."""
        self._arriving += 1
        reserved = not self.may_wait(profile) and self.free(profile) > 0
        if reserved:
            self._taken[profile.key] += 1
        else:
            self._full.add(profile.key)
        return Arrival(profile.key, reserved)

    def arrived(self, arrival: Arrival) -> None:
        """It is stored, or was refused. A place that was reserved is free again until it is taken."""
        self._arriving -= 1
        if arrival.reserved:
            self._taken[arrival.key] -= 1
        if self._full and self._arriving == CROWD - 1:
            self._open_up()

    def take(self, profile: Profile) -> None:
        self._taken[profile.key] += 1

    def give_back(self, profile: Profile) -> None:
        self._taken[profile.key] -= 1
        if self.may_wait(profile):
            self._open_up()

"""Time as the service sees it, passed in so that tests can drive it."""

from typing import Protocol


class Clock(Protocol):
    """`now` is wall time for records, in microseconds since 1970 UTC; it never runs backwards
    within a process. `monotonic` is for durations, in seconds."""

    def now(self) -> int: ...

    def monotonic(self) -> float: ...


class ManualClock:
    """A clock for tests: stands still until it is moved."""

    def __init__(self, start: int = 1_800_000_000_000_000) -> None:
        self._now = start

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._now / 1e6

    def advance(self, seconds: float) -> None:
        self._now += int(seconds * 1e6)

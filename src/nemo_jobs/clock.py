"""The real clock."""

import time
from collections.abc import Callable

#: A wall clock that runs apart from ours by less than this was slewed and is followed, in
#: seconds; more was a step, which must neither end jobs nor keep them, so it is not.
FOLLOW = 1.0


class SystemClock:
    """Wall time that never steps: it starts at the wall clock and goes on with the monotonic one.

    `wall` and `monotonic` read the machine's clocks, in seconds.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self.monotonic = wall, monotonic
        self._offset = wall() - monotonic()
        self._last = 0

    def now(self) -> int:
        ours = self.monotonic() + self._offset
        drift = self._wall() - ours
        if abs(drift) < FOLLOW:
            self._offset += drift
            ours += drift
        self._last = max(self._last + 1, int(ours * 1e6))
        return self._last

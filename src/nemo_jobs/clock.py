"""The real clock."""

import time

#: A wall clock that runs apart from ours by less than this was slewed and is followed, in
#: seconds; more was a step, which must neither end jobs nor keep them, so it is not.
FOLLOW = 1.0


class SystemClock:
    """Wall time that never steps: it starts at the wall clock and goes on with the monotonic one."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._last = 0

    def now(self) -> int:
        ours = time.monotonic() + self._offset
        drift = time.time() - ours
        if abs(drift) < FOLLOW:
            self._offset += drift
            ours += drift
        self._last = max(self._last + 1, int(ours * 1e6))
        return self._last

    def monotonic(self) -> float:
        return time.monotonic()

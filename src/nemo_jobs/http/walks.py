"""Walks over the pages of a list whose items leave it while somebody walks.

A controller lists the steps that wait, acts on them, and asks for the next page: counted by
number, that page would skip as many steps as left the list meanwhile. So the last item of each
page is remembered for who asked, and the next page begins behind it. The memory is small and
short; without it a page is counted as usual.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from nemo_jobs.domain.clock import Clock

Anchor = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Walker:
    """Who asks for which list: the connection, its host alone as the second choice, the query."""

    client: tuple[str, int] | None
    query: Hashable

    def keys(self, page: int) -> list[Hashable]:
        if self.client is None:
            return []
        return [(self.client, self.query, page), (self.client[0], self.query, page)]


class Walks:
    """The last item of each page that was given out lately."""

    def __init__(self, clock: Clock, *, most: int = 4096, seconds: float = 60.0) -> None:
        self._clock, self._most, self._seconds = clock, most, seconds
        self._ends: OrderedDict[Hashable, tuple[Anchor, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ends)

    def start_of(self, walker: Walker, page: int) -> Anchor | None:
        """The item behind which this page begins; None: count it by number."""
        oldest = self._clock.monotonic() - self._seconds
        for key in walker.keys(page - 1):
            found = self._ends.get(key)
            if found is not None and found[1] >= oldest:
                return found[0]
        return None

    def gave(self, walker: Walker, page: int, last: Anchor) -> None:
        """Remember where a page ended."""
        for key in walker.keys(page):
            self._ends[key] = (last, self._clock.monotonic())
            self._ends.move_to_end(key)
        while len(self._ends) > self._most:
            self._ends.popitem(last=False)

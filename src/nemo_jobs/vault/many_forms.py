"""Thousands of forms to hide, as those of a value of many lines, found by how they begin. Pure.

What one place of the output costs grows with the logarithm of their number: values of which all
lines begin alike, and output that does so everywhere, must not take minutes.
"""

from bisect import bisect_right
from collections.abc import Iterable

from nemo_jobs.domain.secrets import MASKED_LENGTH


class ManyForms:
    """Forms of at least `MASKED_LENGTH` bytes, each of them once."""

    __slots__ = ("_by_head", "_openings")

    def __init__(self, forms: Iterable[bytes]) -> None:
        by_head: dict[bytes, list[bytes]] = {}
        self._openings: set[bytes] = set()
        for form in sorted(forms):
            by_head.setdefault(form[:MASKED_LENGTH], []).append(form)
            self._openings.update(form[:size] for size in range(1, MASKED_LENGTH))
        self._by_head = {head: _Alike(found) for head, found in by_head.items()}

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Where forms stand in `data`, in order; of those at one place the longest."""
        spans, covered = [], 0
        for at in range(len(data) - MASKED_LENGTH + 1):
            alike = self._by_head.get(data[at : at + MASKED_LENGTH])
            # What ends inside of one that was found adds nothing.
            if alike is not None and (end := at + alike.longest_at(data, at)) > max(covered, at):
                covered = end
                spans.append((at, end))
        return spans

    def begun(self, data: bytes, low: int) -> int:
        """The first place from `low` on whose rest of `data` is the begin of a form; the end of
        `data` without one."""
        size = len(data)
        for at in range(low, size):
            head = data[at : at + MASKED_LENGTH]
            if len(head) < MASKED_LENGTH:
                if head in self._openings:
                    return at
            elif (alike := self._by_head.get(head)) is not None and alike.goes_on(data, at):
                return at
        return size


class _Alike:
    """Forms with the same head, in order: what begins with a text stands right behind it."""

    __slots__ = ("_forms", "_inner", "_longest")

    def __init__(self, forms: list[bytes]) -> None:
        self._forms = forms
        self._longest = max(map(len, forms))
        #: For each form the longest other one that it begins with; -1 for none.
        self._inner: list[int] = []
        open_ones: list[int] = []
        for number, form in enumerate(forms):
            while open_ones and not form.startswith(forms[open_ones[-1]]):
                open_ones.pop()
            self._inner.append(open_ones[-1] if open_ones else -1)
            open_ones.append(number)

    def longest_at(self, data: bytes, at: int) -> int:
        """The length of the longest form that stands there; 0 for none."""
        text = data[at : at + self._longest]
        # The form before it in order begins with every form that the text begins with.
        number = bisect_right(self._forms, text) - 1
        while number >= 0 and not text.startswith(self._forms[number]):
            number = self._inner[number]
        return len(self._forms[number]) if number >= 0 else 0

    def goes_on(self, data: bytes, at: int) -> bool:
        """Whether a form begins with the rest of `data` and is longer."""
        if len(data) - at >= self._longest:
            return False
        rest = data[at:]
        number = bisect_right(self._forms, rest)
        return number < len(self._forms) and self._forms[number].startswith(rest)

"""What to hide in log records that tasks send by themselves."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from nemo_jobs.domain.secrets import Given
from nemo_jobs.vault.masking import Masks
from nemo_jobs.vault.rows import Rows

#: Steps whose masks are kept: making them costs more than most batches.
KEPT = 64
WITHHELD = b"(withheld: a secret of its step can't be read, so it can't be hidden)"

Hide = Callable[[bytes], bytes]


class Covers:
    """Finds what the tasks of a step may know, and hides it."""

    def __init__(self, rows: Rows, values: Callable[[Given], Awaitable[list[str] | None]]) -> None:
        self._rows, self._values = rows, values
        self._used = False
        self._kept: OrderedDict[tuple[tuple[str, str], ...], Masks] = OrderedDict()

    async def in_use(self) -> bool:
        """Whether there is anything to hide: a service without secrets pays one look for a batch."""
        self._used = self._used or await self._rows.state() is not None
        return self._used

    async def of(self, workspace: str, attempt_id: str, step: str) -> Hide | None:
        """What hides the values that tasks of a step were given; None for one without secrets.
        Where they are not known any more, nothing is shown. Raises WrongKey or Unavailable."""
        given = await self._rows.given_to(workspace, attempt_id, step)
        if not given.wanted and not given.runs:
            return None
        key = tuple((run, sealed.value) for run, sealed in given.runs)
        masks = self._kept.get(key) if key else None
        if masks is None:
            values = await self._values(given)
            if values is None:
                return lambda _: WITHHELD
            masks = await asyncio.to_thread(Masks, values)
            self._keep(key, masks)
        return masks.hide if masks else None

    def _keep(self, key: tuple[tuple[str, str], ...], masks: Masks) -> None:
        if key:
            self._kept[key] = masks
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

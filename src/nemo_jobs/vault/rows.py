"""What the vault asks of the database."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from nemo_jobs.domain.secrets import Given, KeyState, Reference, Sealed, SealedRow


class KeyRows(Protocol):
    """Which key encrypts, and all that is encrypted. Everything raises Unavailable while the
    database is away."""

    async def state(self) -> KeyState | None:
        """Which key encrypts; None before the first secret."""
        ...

    async def claim(self, key_id: str) -> KeyState:
        """Say that this key encrypts, unless another one was named before: then that one."""
        ...

    async def change(self, before: KeyState, after: KeyState) -> bool:
        """Replace the state; False when it is not as it was before."""
        ...

    async def finish(self, before: KeyState, after: KeyState) -> bool:
        """The same, once nothing is left under another key."""
        ...

    async def left(self, key_id: str) -> int:
        """How many ciphertexts are under another key."""
        ...

    async def stale(self, key_id: str, after: tuple[str, ...], limit: int) -> list[SealedRow]:
        """Some of them, in order, behind the place `after`."""
        ...

    async def reseal(self, rows: Sequence[tuple[SealedRow, Sealed]]) -> int:
        """Store new ciphertexts of what has not changed since it was read; how many."""
        ...


class Rows(KeyRows, Protocol):
    """Single ciphertexts, too."""

    async def secret(self, at: Reference) -> Sealed:
        """One secret. Raises NotFound."""
        ...

    async def secrets(self, wanted: Iterable[Reference]) -> dict[Reference, Sealed]:
        """Those that exist."""
        ...

    async def run(self, run: str) -> Sealed | None:
        """What a run was given."""
        ...

    async def keep_run(self, run: str, step_id: str, sealed: Sealed) -> Sealed:
        """Keep what a run is given; what was kept first stays. Raises KeyChanged."""
        ...

    async def given_to(self, workspace: str, attempt_id: str, step: str) -> Given:
        """What the work of a step may know."""
        ...

    async def forget_runs(self, step_id: str) -> None:
        """The runs of a step have ended."""
        ...

    async def forget_ended(self) -> None:
        """Drop what a crash left of runs that have ended."""
        ...

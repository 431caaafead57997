"""The vault: opens and closes what the database holds encrypted."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import NemoJobsError, Unavailable
from nemo_jobs.domain.secrets import Given, KeyChanged, Reference, Sealed
from nemo_jobs.vault import cipher
from nemo_jobs.vault.cipher import Unreadable
from nemo_jobs.vault.covers import Covers
from nemo_jobs.vault.keyring import KeyRing
from nemo_jobs.vault.keys import Keys
from nemo_jobs.vault.rotation import Rotation, Rotator
from nemo_jobs.vault.rows import Rows

log = logging.getLogger(__name__)
T = TypeVar("T")

_TRIES = 5
#: A rotation answers after this long, also when it has not come to its end, in seconds.
ROTATE_SECONDS = 15.0


class SecretMissing(NemoJobsError):
    """A secret that is needed does not exist, or can't be decrypted; the text names it."""


class Sealer:
    """Closes and opens what lives no longer than a run that was given secrets here."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    def close(self, text: str, where: tuple[str, ...]) -> Sealed:
        """`text` encrypted with the key that was used last."""
        if self._ring.last is None:
            raise Unavailable("no key was used yet")
        return cipher.encrypt(self._ring.last, text, where)

    def open(self, sealed: Sealed, where: tuple[str, ...]) -> str:
        """What `close` made, also in another life of the service. Raises Unreadable."""
        return cipher.decrypt(self._ring.known, sealed, where)


class Secrets:
    """The secrets of one service."""

    def __init__(self, rows: Rows, keys: Keys, clock: Clock) -> None:
        self._rows, self._ring = rows, KeyRing(rows, keys)
        self.sealer = Sealer(self._ring)
        self.covers = Covers(rows, self.values_in)
        self._rotator = Rotator(self._ring, clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def problem(self) -> str | None:
        """Why secrets can't be used now; None while they can."""
        return self._ring.problem

    async def start(self) -> None:
        """Prove that the keys here fit the database, and go on with what a crash interrupted.
        Raises WrongKey, KeyProblem or Unavailable."""
        await self._ring.load()
        state = await self._rows.state()
        if state is None:
            return
        await self._ring.key_of(state)
        await self._rows.forget_ended()
        self._beside(self._rotator.go_on())
        self._beside(self._rotator.tidy())

    async def aclose(self) -> None:
        """End what goes on beside, before the database is closed. Twice is fine."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def woken(self, topic: str, key: str) -> None:
        """A wake-up of the database: there may be a new key to take over, also when some wake-ups
        were missed."""
        if (topic == "secrets" or not key) and self._ring.known and not self._closed:
            self._beside(self._look())

    async def storing(self, where: tuple[str, ...], value: str, store: Callable[[Sealed], Awaitable[T]]) -> T:
        """Encrypt for `where` with the present key and have it stored; again when the key changed
        between the two. Raises WrongKey."""
        for _ in range(_TRIES):
            key = await self._ring.present()
            sealed = await asyncio.to_thread(cipher.encrypt, key, value, where)
            try:
                return await store(sealed)
            except KeyChanged:
                continue
        raise Unavailable("the key of secrets changes just now; try again")

    async def reveal(self, at: Reference) -> str:
        """The value of a secret. Raises NotFound, WrongKey or SecretMissing."""
        return await self._opened(await self._rows.secret(at), ("secret", *at), f"secret {str(at)!r}")

    async def resolve(self, run: str, step_id: str, wanted: Mapping[str, Reference]) -> dict[str, str]:
        """Variable to value for a run that is about to start, kept until it has ended: asked again
        for the same run, the same values. Raises SecretMissing, WrongKey or Unavailable."""
        if (known := await self.values_of(run)) is not None:
            return known
        values = await self._present(wanted)

        async def keep(sealed: Sealed) -> Sealed:
            return await self._rows.keep_run(run, step_id, sealed)

        kept = await self.storing(("run", run), json.dumps(values), keep)
        return await self._values(kept, run)

    async def values_of(self, run: str) -> dict[str, str] | None:
        """What a run was given; None when that was nothing. Raises SecretMissing, WrongKey."""
        kept = await self._rows.run(run)
        return None if kept is None else await self._values(kept, run)

    async def values_in(self, given: Given) -> list[str] | None:
        """What the runs of a step know; before the first and behind the last one what its secrets
        are now. None when that can't be known any more. Raises WrongKey or Unavailable."""
        try:
            if not given.runs:
                return list((await self._present(given.wanted)).values())
            known = [await self._values(sealed, run) for run, sealed in given.runs]
        except SecretMissing:
            return None
        return [value for values in known for value in values.values()]

    async def forget(self, step_id: str) -> None:
        """The runs of a step have ended."""
        await self._rows.forget_runs(step_id)

    async def rotate(self, *, hand_over: bool = True, seconds: float = ROTATE_SECONDS) -> Rotation:
        """Change the key, or go on changing it; see `Rotator.rotate`."""
        done = await self._rotator.rotate(hand_over=hand_over, seconds=seconds)
        if done.finished:
            self._beside(self._rotator.tidy())
        return done

    async def _present(self, wanted: Mapping[str, Reference]) -> dict[str, str]:
        found = await self._rows.secrets(wanted.values())
        values = {}
        for variable, at in wanted.items():
            what = f"secret {str(at)!r} of variable {variable}"
            if at not in found:
                raise SecretMissing(f"{what} does not exist; it was deleted, or never there")
            values[variable] = await self._opened(found[at], ("secret", *at), what)
        return values

    async def _values(self, kept: Sealed, run: str) -> dict[str, str]:
        found: dict[str, str] = json.loads(await self._opened(kept, ("run", run), "what the run was given"))
        return found

    async def _opened(self, sealed: Sealed, where: tuple[str, ...], what: str) -> str:
        if not await self._ring.learn(sealed.key_id):
            raise self._ring.lacking(sealed.key_id)
        if self._ring.last is None:
            await self._ring.present()
        try:
            return await asyncio.to_thread(cipher.decrypt, self._ring.known, sealed, where)
        except Unreadable as error:
            log.error("%s can't be decrypted: %s", what, error)
            raise SecretMissing(f"{what} can't be decrypted: {error}; set its value again") from error

    async def _look(self) -> None:
        state = await self._rows.state()
        if state is not None:
            await self._ring.key_of(state)

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(_told(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _told(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:
        # Nobody waits for it; what is asked next meets the same problem and tells it.
        log.warning("secrets: %s", error)

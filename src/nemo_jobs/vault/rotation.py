"""Changing the key while everything goes on.

1. The new key is written to the key file, behind which nothing can lose it.
2. One transaction names it in the database and lays it there encrypted with the old one, so that
   other services take it over. From now on nothing is stored under the old key any more.
3. What is there is decrypted and encrypted again, some rows a transaction, each only if nobody
   changed it meanwhile.
4. When nothing is left, one transaction says so.

After a crash at any point the next start goes on. Old keys stay in the file: they open what comes
back with a backup.
"""

import asyncio
import logging
from dataclasses import dataclass

from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Conflict
from nemo_jobs.domain.secrets import KeyState, Sealed, SealedRow
from nemo_jobs.vault import cipher
from nemo_jobs.vault.cipher import Unreadable
from nemo_jobs.vault.keyring import KeyRing
from nemo_jobs.vault.keys import VARIABLE, Key

log = logging.getLogger(__name__)

#: Ciphertexts that are made anew in one transaction.
BATCH = 200
#: How long the new key lies in the database for services that were away, in seconds.
HANDED_OVER = 24 * 3600
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Rotation:
    """How far a rotation has come. `unreadable` names some of what could not be decrypted."""

    key_id: str
    changed: int
    left: int
    unreadable: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        return self.left == 0


class Rotator:
    """Changes the key of a ring; one rotation at a time."""

    def __init__(self, ring: KeyRing, clock: Clock) -> None:
        self._ring, self._rows, self._clock = ring, ring.rows, clock
        self._lock = asyncio.Lock()

    async def rotate(self, *, hand_over: bool, seconds: float) -> Rotation:
        """Begin a rotation, or go on with one that is under way, for at most about `seconds`.

        With `hand_over` False the new key does not pass through the database: right when the old
        one is known to others; every other service must then be given its key file or variable.
        """
        async with self._lock:
            state = await self._rows.state()
            if state is None:
                raise Conflict("there is no key yet: it is made with the first secret")
            await self._ring.key_of(state)
            if state.old is None:
                state = await self._begin(state, hand_over)
            return await self._walk(state, self._clock.monotonic() + seconds)

    async def go_on(self) -> None:
        """Bring a rotation to its end that a crash interrupted."""
        state = await self._rows.state()
        if state is not None and state.old is not None:
            done = await self.rotate(hand_over=True, seconds=3600.0)
            log.info("the change of the key of secrets went on: %d changed, %d left", done.changed, done.left)

    async def tidy(self) -> None:
        """Take the handed-over key out of the database when its time has come."""
        while (state := await self._rows.state()) is not None and state.wrapped and state.until:
            wait = (state.until - self._clock.now()) / 1e6
            if wait <= 0:
                await self._rows.change(state, KeyState(state.key))
                return
            await asyncio.sleep(min(wait, 3600.0))

    async def _begin(self, state: KeyState, hand_over: bool) -> KeyState:
        here = await self._ring.load()
        present = self._ring.known[state.key]
        if present not in here and not self._ring.keys.fixed:  # somebody removed the file
            await asyncio.to_thread(self._ring.keys.put_first, present)
            here = (present, *here)
        new = here[0]
        if new.id == state.key:
            if self._ring.keys.fixed:
                raise Conflict(
                    f"the key comes from {VARIABLE}: put the new one in front of it, separated by a comma, "
                    "for every service, restart them, and ask again"
                )
            new = Key.new()
            await asyncio.to_thread(self._ring.keys.put_first, new)
            self._ring.known[new.id] = new
        wrapped = None
        if hand_over:
            wrapped = await asyncio.to_thread(cipher.wrap, present, new)
        after = KeyState(new.id, state.key, wrapped, state.key if wrapped else None)
        if not await self._rows.change(state, after):
            raise Conflict("another service changes the key just now; try again in a moment")
        self._ring.last = new
        log.info("the key of secrets is changed from %s to %s", state.key, new.id)
        return after

    async def _walk(self, state: KeyState, deadline: float) -> Rotation:
        changed, unreadable = 0, list[str]()
        after: tuple[str, ...] = ()
        key = self._ring.known[state.key]
        while rows := await self._rows.stale(state.key, after, BATCH):
            after = rows[-1].where
            for row in rows:
                await self._ring.learn(row.sealed.key_id)
            made, failed = await asyncio.to_thread(self._again, key, rows)
            changed += await self._rows.reseal(made)
            unreadable += failed[: _NAMED - len(unreadable)]
            if self._clock.monotonic() > deadline:
                break
        until = self._clock.now() + HANDED_OVER * 1_000_000 if state.wrapped else None
        end = KeyState(state.key, None, state.wrapped, state.by, until)
        finished = await self._rows.finish(state, end)
        left = 0 if finished else max(1, await self._rows.left(state.key))
        return Rotation(state.key, changed, left, tuple(unreadable))

    def _again(self, key: Key, rows: list[SealedRow]) -> tuple[list[tuple[SealedRow, Sealed]], list[str]]:
        made, failed = [], []
        for row in rows:
            try:
                text = cipher.decrypt(self._ring.known, row.sealed, row.where)
            except Unreadable as error:
                log.error("%s can't be decrypted: %s", " ".join(row.where), error)
                failed.append("/".join(row.where[1:]))
                continue
            made.append((row, cipher.encrypt(key, text, row.where)))
        return made, failed

"""The keys that this service has, and the one that the database says encrypts now."""

import asyncio
import logging

from nemo_jobs.domain.model import Unavailable
from nemo_jobs.domain.secrets import KeyState
from nemo_jobs.vault import cipher
from nemo_jobs.vault.cipher import Unreadable
from nemo_jobs.vault.keys import VARIABLE, Key, KeyProblem, Keys
from nemo_jobs.vault.rows import KeyRows

log = logging.getLogger(__name__)


class WrongKey(Unavailable):
    """This service does not have the key that the secrets of its database are encrypted with."""


class KeyRing:
    """All services agree on the key through the database, which names it and can't open anything.

    A key that is not here yet is looked for in the key file, which a service that shares the data
    directory may have changed, and then in the database, where a rotation lays it, encrypted with
    the key before.
    """

    def __init__(self, rows: KeyRows, keys: Keys) -> None:
        self.rows, self.keys = rows, keys
        self.known: dict[str, Key] = {}
        #: The key that encrypted when last asked.
        self.last: Key | None = None
        #: Why secrets can't be used now; None while they can.
        self.problem: str | None = None

    async def load(self) -> tuple[Key, ...]:
        """Read the file and the variable again; the key to encrypt with next comes first."""
        keys = await asyncio.to_thread(self.keys.load)
        self.known.update({key.id: key for key in keys})
        return keys

    async def state(self) -> KeyState:
        """What the database says; before the first secret a key is made and named."""
        found = await self.rows.state()
        if found is not None:
            return found
        key, made = await asyncio.to_thread(self.keys.first)
        state = await self.rows.claim(key.id)
        if made and state.key != key.id:  # another service was quicker, with a key of its own
            await asyncio.to_thread(self.keys.take_back, key)
        else:
            self.known[key.id] = key
        return state

    async def present(self) -> Key:
        """The key that encrypts now. Raises WrongKey."""
        try:
            return await self.key_of(await self.state())
        except KeyProblem as error:
            self.problem = str(error)
            raise WrongKey(str(error), retry_after=30.0) from error

    async def key_of(self, state: KeyState) -> Key:
        """The key that `state` names, taken over if it is new here. Raises WrongKey, KeyProblem."""
        if state.key not in self.known:
            await self.load()
        if state.key not in self.known:
            await self._take_over(state)
        key = self.known.get(state.key)
        if key is None:
            self.problem = self._lacks(state.key)
            raise WrongKey(self.problem, retry_after=30.0)
        self.problem, self.last = None, key
        return key

    async def learn(self, key_id: str) -> bool:
        """Look for a key that something is encrypted with; whether it is here now."""
        if key_id not in self.known:
            try:
                await self.present()
                if key_id not in self.known:
                    await self.load()
            except (WrongKey, KeyProblem) as error:
                log.warning("secrets can't be used: %s", error)
        return key_id in self.known

    def lacking(self, key_id: str) -> WrongKey:
        return WrongKey(self.problem or self._lacks(key_id), retry_after=30.0)

    async def _take_over(self, state: KeyState) -> None:
        before = self.known.get(state.by or "")
        if before is None or state.wrapped is None:
            return
        try:
            key = await asyncio.to_thread(cipher.unwrap, before, state.wrapped, state.key)
        except Unreadable as error:
            log.error("the new key that the database holds can't be used: %s", error)
            return
        self.known[key.id] = key
        if self.keys.fixed:
            log.warning(
                "the key of secrets was changed; put the new one into %s of this service before its "
                "next start (it is in the key file of the service that changed it)",
                VARIABLE,
            )
            return
        try:
            await asyncio.to_thread(self.keys.put_first, key)
            log.info("the key of secrets was changed; the new one is in %s", self.keys.path)
        except KeyProblem as error:
            log.error("the new key of secrets is used, but lost with the next start: %s", error)

    def _lacks(self, key_id: str) -> str:
        return (
            f"the secrets of this database are encrypted with the key {key_id}, which this service does "
            f"not have; copy {self.keys.path.name} from a service that has it, or from a backup, to "
            f"{self.keys.path} (mode 0600), or set {VARIABLE}; if it is lost for good, so are the values: "
            "nemo db forget-secrets deletes them"
        )

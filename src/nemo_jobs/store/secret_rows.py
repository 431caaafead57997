"""The database as the vault sees it: ciphertext in and out."""

from collections.abc import Iterable, Sequence

from nemo_jobs.domain.secrets import Given, KeyState, Reference, Sealed, SealedRow
from nemo_jobs.store import secret_keys, secrets
from nemo_jobs.store.db import Database


class KeyRows:
    """Store calls about keys; each is a transaction of its own. Raises Unavailable when the
    database is away."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def state(self) -> KeyState | None:
        return await self._db.read(secret_keys.key_state, point=True)

    async def claim(self, key_id: str) -> KeyState:
        return await self._db.write(secret_keys.claim_key, key_id)

    async def change(self, before: KeyState, after: KeyState) -> bool:
        return await self._db.write(secret_keys.change_key, before, after)

    async def finish(self, before: KeyState, after: KeyState) -> bool:
        return await self._db.write(secret_keys.finish_rotation, before, after)

    async def left(self, key_id: str) -> int:
        return await self._db.read(secret_keys.count_stale, key_id)

    async def stale(self, key_id: str, after: tuple[str, ...], limit: int) -> list[SealedRow]:
        return await self._db.read(secret_keys.stale_rows, key_id, after, limit)

    async def reseal(self, rows: Sequence[tuple[SealedRow, Sealed]]) -> int:
        return await self._db.write(secret_keys.reseal, rows)


class SecretRows(KeyRows):
    """Those about single ciphertexts, too."""

    async def secret(self, at: Reference) -> Sealed:
        return await self._db.read(secrets.sealed_secret, at.workspace, at.name, point=True)

    async def secrets(self, wanted: Iterable[Reference]) -> dict[Reference, Sealed]:
        return await self._db.read(secrets.sealed_secrets, wanted)

    async def run(self, run: str) -> Sealed | None:
        return await self._db.read(secrets.run_values, run, point=True)

    async def keep_run(self, run: str, step_id: str, sealed: Sealed) -> Sealed:
        return await self._db.write(secrets.keep_run, run, step_id, sealed)

    async def given_to(self, workspace: str, attempt_id: str, step: str) -> Given:
        return await self._db.read(secrets.given_to, workspace, attempt_id, step, point=True)

    async def forget_runs(self, step_id: str) -> None:
        await self._db.write(secrets.forget_runs, step_id, durable=False)

    async def forget_ended(self) -> None:
        await self._db.write(secret_keys.forget_ended_runs)

"""Opening the vault of a service: its keys, its database, and the proof that they fit."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_jobs.domain.clock import Clock

if TYPE_CHECKING:
    from nemo_jobs.store.db import Database
    from nemo_jobs.vault.secrets import Secrets


async def open_secrets(data_dir: Path, db: "Database", clock: Clock, environ: Mapping[str, str]) -> "Secrets":
    """The vault, which also learns of new keys from now on. Raises Unavailable with a sentence when
    a key can't be used, or is another one than the database was written with."""
    from nemo_jobs.store.secret_rows import SecretRows
    from nemo_jobs.vault.keys import FILE_NAME, VARIABLE, Keys
    from nemo_jobs.vault.secrets import Secrets

    found = Secrets(SecretRows(db), Keys(data_dir / FILE_NAME, environ.get(VARIABLE)), clock)
    await found.start()
    db.on_wake(found.woken)
    return found


def forget_secrets(url: str) -> int:
    """Delete all secrets of a database whose key is lost, so that services start again; how many.
    Raises Locked while a service uses a SQLite database, SchemaTooNew, Unavailable or Invalid."""
    from nemo_jobs.store.db import Database
    from nemo_jobs.store.secret_keys import forget_everything

    async def forget() -> int:
        db = Database.open(url)
        try:
            return await db.write(forget_everything)
        finally:
            await db.aclose()

    return asyncio.run(forget())

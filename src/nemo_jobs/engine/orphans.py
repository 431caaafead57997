"""What carries our name at a backend and belongs to nobody: found, told, and removed after a while."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from nemo_jobs.backends import api
from nemo_jobs.backends.api import Backend, Handle, Leftover, Sweeps
from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Json
from nemo_jobs.engine.reach import Reach
from nemo_jobs.store import steps
from nemo_jobs.store.db import Database

log = logging.getLogger(__name__)

#: How long something that nobody knows is left alone, in seconds: its record may be on the way.
ORPHAN_GRACE = 120.0

_Id = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Ownerless:
    """Something that no record stands for, and what was done about it: found (a dry run), removed,
    kept (it is too young), or failed, which `message` explains."""

    backend: str
    item: Leftover
    state: str
    message: str = ""


@dataclass(slots=True)
class Swept:
    """What a sweep found. `away` are backends that could not be asked, and why."""

    found: list[Ownerless] = field(default_factory=list)
    away: list[str] = field(default_factory=list)


class Orphans:
    """Sweeps one after the other. What was seen before, or says itself that it is old, may go."""

    def __init__(self, db: Database, reach: Reach, clock: Clock) -> None:
        self._db, self._reach, self._clock = db, reach, clock
        self._first_seen: dict[_Id, float] = {}
        self._one = asyncio.Lock()

    async def sweep(self, *, dry_run: bool = False, by_age: bool = False) -> Swept:
        """Remove what nobody has known for `ORPHAN_GRACE`. With `by_age` the age that a thing tells
        itself counts too, else only what was seen before. A dry run removes nothing."""
        async with self._one:
            swept = Swept()
            seen: set[_Id] = set()
            for backend in self._reach:
                try:
                    items = [item async for item in _everything(backend)]
                except api.Unavailable as error:
                    swept.away.append(f"{backend.name}: {error}")
                    seen |= {one for one in self._first_seen if one[0] == backend.name}
                    continue
                known = await self._db.read(steps.known_keys, {item.key for item in items})
                for item in items:
                    if item.key not in known:
                        seen.add((backend.name, item.kind, item.name))
                        swept.found.append(await self._treat(backend, item, dry_run, by_age))
            self._first_seen = {one: at for one, at in self._first_seen.items() if one in seen}
            return swept

    async def on_request(self, dry_run: bool) -> Json:
        """A sweep that somebody asked for, as data."""
        swept = await self.sweep(dry_run=dry_run, by_age=True)
        return {
            "dry_run": dry_run,
            "data": [
                {
                    "backend": one.backend,
                    "kind": one.item.kind,
                    "name": one.item.name,
                    "run": one.item.key or None,
                    "made_at": one.item.made_at or None,
                    "state": one.state,
                    "message": one.message,
                }
                for one in swept.found
            ],
            "unavailable": swept.away,
        }

    async def _treat(self, backend: Backend, item: Leftover, dry_run: bool, by_age: bool) -> Ownerless:
        now = self._clock.monotonic()
        since = self._first_seen.setdefault((backend.name, item.kind, item.name), now)
        old = now - since >= ORPHAN_GRACE
        if by_age and item.made_at:
            old = old or self._clock.now() - item.made_at >= ORPHAN_GRACE * 1e6
        if not old:
            return Ownerless(backend.name, item, "kept", f"not known for {ORPHAN_GRACE:g} s yet")
        if dry_run:
            return Ownerless(backend.name, item, "found")
        log.warning("removing %s %s on %s: no record knows it", item.kind, item.name, backend.name)
        try:
            await _discard(backend, item)
        except (api.BackendError, OSError) as error:
            log.warning("%s %s on %s stays: %s", item.kind, item.name, backend.name, error)
            return Ownerless(backend.name, item, "failed", str(error))
        return Ownerless(backend.name, item, "removed")


async def _everything(backend: Backend) -> AsyncIterator[Leftover]:
    if isinstance(backend, Sweeps):
        async for item in backend.belongings():
            yield item
    else:
        async for handle in backend.handles():
            yield Leftover("workload", handle.key, handle.key, data=handle.to_json())


async def _discard(backend: Any, item: Leftover) -> None:
    if isinstance(backend, Sweeps):
        await backend.discard(item)
    else:
        await backend.remove(Handle.from_json(item.data))

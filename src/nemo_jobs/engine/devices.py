"""The GPU pools of this engine: look at the host, claim steps with their devices, tell who waits.

What is held and by whom is in the database alone; see `nemo_jobs.store.gpus`. Devices of steps that
nobody looks after are given back only when the backend says that nothing of them runs.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from nemo_jobs.backends import api
from nemo_jobs.backends.api import Handle
from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.gpus import Look, Stock, stock_of
from nemo_jobs.domain.model import StepRecord, Unavailable
from nemo_jobs.domain.profiles import Profile
from nemo_jobs.engine.options import Options
from nemo_jobs.engine.pools import Pool
from nemo_jobs.engine.reach import Reach
from nemo_jobs.store import gpu_stock, gpu_waiting, gpus
from nemo_jobs.store.db import Database
from nemo_jobs.store.gpu_stock import Doubt, Server

log = logging.getLogger(__name__)

#: Seconds between two looks at a host with GPUs, and at one without.
LOOK_SECONDS, IDLE_SECONDS = 5.0, 60.0
#: How long the driver may take for an answer, in seconds.
LOOK_PATIENCE = 10.0
#: For how long a service that said so counts as one that works on a pool, in seconds.
ATTENDS_SECONDS = 180
#: Seconds from a change in a pool until those who wait are told where they stand, and the shortest
#: time between two times.
TELL_AFTER, TELL_EVERY = 0.25, 2.0
#: How long giving back may take when the service stops, in seconds.
STOP_SECONDS = 1.5


class Devices:
    """`due` says that a look for steps that want devices is worth it; `wake` brings it about."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        reach: Reach,
        options: Options,
        wake: Callable[[], None],
    ) -> None:
        self._db, self._clock, self._reach, self._wake = db, clock, reach, wake
        self._options, self._here = options, options.pool
        self._pools = {} if options.pool is None else {options.pool.key: options.pool}
        self._looks: dict[str, asyncio.Future[Look]] = {}
        self._stocks: dict[str, Stock] = {}
        self._others: dict[str, list[str]] = {}
        self._no_place: set[gpus.Key] = set()
        self._changed = asyncio.Event()
        self.due = bool(self._pools)

    def pool_of(self, profile: Profile | None) -> Pool | None:
        """The pool of the machine where work of this profile runs; None when it needs none."""
        backend = self._reach.get(profile.backend) if profile is not None else None
        if backend is None or self._here is None:
            return None
        if backend.capabilities.on_host:
            return self._here
        if not isinstance(backend, api.Elsewhere):
            return None
        key, name = backend.machine
        if key and key not in self._pools:
            self._pools[key] = replace(self._here, key=key, host_name=name, look=_cant_ask(name))
        return self._pools.get(key)

    def pool_key(self, step: StepRecord) -> str | None:
        """The pool of a step, None without one; empty while it isn't known yet what that has."""
        found = self._reach.of_step(step)
        pool = None if found is None else self.pool_of(found[0])
        return None if pool is None else pool.key if pool.key in self._stocks else ""

    def problems(self) -> list[str]:
        """What is wrong with the pools now, for people."""
        found: list[str] = []
        for pool in tuple(self._pools.values()):
            stock = self._stocks.get(pool.key)
            if stock is None:
                continue
            found += stock.notes if pool.reserved.ids else ()
            found += [
                f"GPU {device.id} is not given out: {device.trouble}"
                for device in stock.devices
                if device.trouble
            ]
            if others := self._others.get(pool.key):
                found.append(
                    f"services of {pool.host_name} share out different GPUs: this one {_chosen(pool)!r}, "
                    f"others {', '.join(map(repr, others))}; give all the same configuration"
                )
        return found

    def look_again(self) -> None:
        """Devices, requests or places may have changed."""
        if self._pools:
            self.due = True
            self._changed.set()
            self._wake()

    def place_free(self, profile: Profile) -> None:
        """A step of the profile ended: one that has its devices may have waited for the place."""
        if profile.key in self._no_place:
            self.look_again()

    # -- claiming

    async def claim(self, places: Mapping[gpus.Key, int], until: int) -> list[StepRecord]:
        """Claim waiting steps together with their devices, for up to so many places by profile."""
        self.due = False
        self._no_place.clear()
        claimed: list[StepRecord] = []
        for pool in tuple(self._pools.values()):
            stock = self._stocks.get(pool.key)
            if stock is None or not stock.devices:
                continue
            mine = {key: free for key, free in places.items() if self._serves(pool, key)}
            bind = frozenset(key for key in mine if self._on_host(key))
            who = self._options
            by = gpus.Claim(who.owner, who.token, who.host, until, mine, bind)
            found = await self._db.write(gpus.claim, pool.key, by, self._clock.now())
            claimed += found.steps
            self._no_place |= found.no_place
        return claimed

    def _serves(self, pool: Pool, key: gpus.Key) -> bool:
        return self.pool_of(self._reach.profiles.get(*key)) is pool

    def _on_host(self, key: gpus.Key) -> bool:
        profile = self._reach.profiles.get(*key)
        return profile is not None and self._reach.on_host(profile)

    # -- the loop

    async def run(self, held: Container[str]) -> None:
        """For ever: keep the pools up to date, and tell those who wait. `held` has the ids of the steps
        that this engine looks after just now."""
        while True:
            for profile in self._reach.usable():
                self.pool_of(profile)  # that of another machine is known from then on
            for pool in tuple(self._pools.values()):
                stock = await self._attend(pool)
                await self._settle(pool, held)
                first = pool.key not in self._stocks
                self._stocks[pool.key] = stock
                if first:
                    self.look_again()
                    await self._db.write(gpu_stock.purge, self._clock.now(), durable=False)
            await self._tell_until(LOOK_SECONDS if self._any_devices() else IDLE_SECONDS)

    async def stop(self) -> None:
        """Give back what steps have that were not started; others may go on where this one ends."""
        if not self._pools:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                for pool in tuple(self._pools.values()):
                    await self._settle(pool, ())
                await self._db.write(gpu_stock.leave, self._options.owner, self._options.token, durable=False)
        except (Unavailable, TimeoutError) as error:
            log.warning("GPUs of steps that were not started are given back later: %s", error)

    def _any_devices(self) -> bool:
        return any(stock.devices for stock in self._stocks.values())

    async def _attend(self, pool: Pool) -> Stock:
        """Look at the host and write down what is there."""
        now = self._clock.now()
        stock = stock_of(await self._look(pool), pool.reserved, pool.count)
        who, usable = self._options, self._reach.usable()
        profiles = sorted(f"{one.provider}/{one.profile}" for one in usable if self.pool_of(one) is pool)
        server = Server(
            *(who.owner, who.token, who.host, pool.host_name, tuple(profiles)),
            chosen=_chosen(pool),
            until=self._clock.now() + ATTENDS_SECONDS * 1_000_000,
        )
        _, others = await self._db.write(
            gpu_stock.attend, pool.key, server, stock, pool.reserved, now, durable=False
        )
        if others and others != self._others.get(pool.key):
            log.warning("other services of %s share out other GPUs: %s", pool.host_name, ", ".join(others))
        self._others[pool.key] = others
        before = self._stocks.get(pool.key)
        if pool.reserved.ids and stock.notes and (before is None or before.notes != stock.notes):
            log.warning("GPUs: %s", "; ".join(stock.notes))
        return stock

    async def _look(self, pool: Pool) -> Look:
        """Ask the driver in a thread; one that doesn't answer is not asked twice at once."""
        running = self._looks.get(pool.key)
        if running is None:
            running = asyncio.ensure_future(asyncio.to_thread(pool.look))
            self._looks[pool.key] = running
        done, _ = await asyncio.wait((running,), timeout=LOOK_PATIENCE)
        if not done:
            return Look(problem=f"the driver of {pool.host_name} doesn't answer", at=self._clock.now())
        del self._looks[pool.key]
        try:
            return running.result()
        except Exception as error:  # a binding that is older or newer than what is asked of it
            return Look(
                problem=f"the driver of {pool.host_name} can't be asked: {error}", at=self._clock.now()
            )

    async def _tell_until(self, seconds: float) -> None:
        """Wait for so long, and tell those who wait where they stand whenever something changed."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        await self._tell()
        told = float("-inf")
        while (left := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                return
            await asyncio.sleep(max(TELL_AFTER, told + TELL_EVERY - loop.time()))
            self._changed.clear()
            await self._tell()
            told = loop.time()

    async def _tell(self) -> None:
        for pool in tuple(self._pools.values()):
            if await self._db.read(gpu_waiting.anybody, pool.key, self._clock.now()):
                await self._db.write(
                    gpu_waiting.tell_waiting,
                    *(pool.key, self._clock.now(), self._options.retention),
                    durable=False,
                )

    # -- devices of steps that nobody looks after

    async def _settle(self, pool: Pool, held: Container[str]) -> None:
        found = await self._db.read(gpu_stock.doubts, pool.key, self._options.token, self._clock.now())
        by_backend: dict[str, list[Doubt]] = {}
        for doubt in found:
            if not doubt.elsewhere and doubt.step_id not in held:
                by_backend.setdefault(self._backend_of(doubt), []).append(doubt)
        for name, doubts in by_backend.items():
            over = await self._over(name, {doubt.step_id for doubt in doubts})
            if over:
                now = self._clock.now()
                freed = await self._db.write(gpu_stock.settle, pool.key, sorted(over), now, durable=False)
                log.info("GPUs of %d steps that don't run are free again", len(freed))

    def _backend_of(self, doubt: Doubt) -> str:
        profile = self._reach.profiles.get(doubt.provider, doubt.profile)
        if profile is not None:
            return profile.backend
        return "subprocess" if doubt.provider == "subprocess" else "docker"

    async def _over(self, name: str, step_ids: set[str]) -> set[str]:
        """Those of which surely nothing runs at the backend."""
        backend = self._reach.get(name)
        if backend is None:
            return set()
        prefixes = {f"nj-{id.removeprefix('platform-job-step-')}-": id for id in step_ids}
        try:
            found: list[tuple[str, Handle]] = []
            async for handle in backend.handles():
                step_id = prefixes.get(handle.key.rpartition("-")[0] + "-")
                if step_id is not None:
                    found.append((step_id, handle))
            seen = await backend.observe([handle for _, handle in found]) if found else {}
        except (api.BackendError, OSError) as error:
            log.info("whether steps still use their GPUs is asked later: %s", error)
            return set()
        return step_ids - {step_id for step_id, handle in found if seen[handle.key].phase not in api.ENDED}


def _cant_ask(name: str) -> Callable[[], Look]:
    return lambda: Look(problem=f"the driver of {name} can't be asked from here")


def _chosen(pool: Pool) -> str:
    chosen = "all" if pool.reserved.everything else ",".join(pool.reserved.ids) or "none"
    return chosen if pool.count is None else json.dumps({"ids": chosen, "count": pool.count})

"""The loop: claim steps that are due, give each a follower, keep the leases, let go at the end.

Wake-ups (a new job, a request, an ended process) only shorten the wait: claiming by due time at
`POLL_SECONDS` gives the same result without them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from nemo_jobs.backends.api import Backend, Rejected, Watches
from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Invalid, Json, StepRecord, Unavailable
from nemo_jobs.domain.profiles import Profile, ProfileSet
from nemo_jobs.engine import plans
from nemo_jobs.engine.adopt import adopt_started, explain_waiting, fail_steps_without_profile, tell_absent
from nemo_jobs.engine.around import Surroundings
from nemo_jobs.engine.devices import Devices
from nemo_jobs.engine.follow import Follower
from nemo_jobs.engine.options import Options
from nemo_jobs.engine.places import Arrival, Places
from nemo_jobs.engine.reach import Reach
from nemo_jobs.engine.records import LeasedRecords
from nemo_jobs.engine.sweep import Sweeper
from nemo_jobs.engine.sweep_objects import ObjectSweeper
from nemo_jobs.store import steps, storage
from nemo_jobs.store.db import Database
from nemo_jobs.store.jobs import Lease

log = logging.getLogger(__name__)

LEASE_SECONDS = 30
HEARTBEAT_SECONDS = 10.0
POLL_SECONDS = 5.0
PROBE_SECONDS = 15.0
#: Steps claimed for one profile in one transaction, at most.
CLAIM_BATCH = 64
#: While steps wait for places, those that become free are gathered for so long, in seconds: taking
#: several steps costs hardly more than taking one.
GATHER_SECONDS = 0.008
#: The shortest time between two looks for steps whose holder is gone, in seconds.
RESCUE_EVERY = 0.25
#: When a step is looked at again whose backend is not here, in seconds.
ABSENT_SECONDS = 15.0


class Engine:
    """Runs the steps of all profiles whose backend is in `backends` (by backend name)."""

    def __init__(
        self,
        db: Database,
        profiles: ProfileSet,
        backends: Mapping[str, Backend],
        clock: Clock,
        options: Options,
    ) -> None:
        self._db = db
        self._clock, self._options = clock, options
        self._wake = asyncio.Event()
        self._places = Places(options.cores, self._wake.set)
        self._reach = Reach(profiles, backends, self._look_everywhere, options.unusable)
        self._devices = Devices(db, clock, self._reach, options, self._wake.set)
        pool_of = self._devices.pool_key
        self._records = LeasedRecords(db, clock, options.token, options.task_tokens, pool_of)
        self._shared = Surroundings(
            self._records,
            *(clock, options.platform, options.host, options.log_limit, options.retention, options.objects),
            options.secrets,
        )
        self._held: dict[str, Follower] = {}
        self._by_run: dict[str, Follower] = {}
        self._stopping = False
        self._main: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._last_rescue = float("-inf")
        self._unrescued = True  # a wake-up came for a step that nobody here holds
        self._last_round = clock.monotonic()
        self._unhook = db.on_wake(self._on_wake)
        self._sweeper = Sweeper(
            db, self._reach, clock, options.host, options.retention_days, options.retention
        )
        self.sweep = self._sweeper.orphans.on_request
        self.running_on_host = self._reach.running_on_host
        self.trouble = self._reach.trouble
        self._objects = ObjectSweeper(db, options.objects, clock) if options.objects else None

    # -- what others see

    def health(self) -> dict[str, bool]:
        """Each loop by name: False when it has made no progress for three intervals."""
        fresh = self._clock.monotonic() - self._last_round < 3 * POLL_SECONDS + 5
        return {"jobs": fresh and not self._stopping}

    def problems(self) -> list[str]:
        """What keeps profiles or output from working now."""
        unread = [
            f"the output of {follower.step.job}/{follower.step.name} can't be read: {problem}"
            for follower in self._held.values()
            if (problem := follower.log_problem)
        ]
        files = self._objects.problems() if self._objects else []
        keys = [problem] if self._options.secrets and (problem := self._options.secrets.problem) else []
        return [
            *self._reach.away(),
            *self._devices.problems(),
            *self._options.unusable().values(),
            *unread[:5],
            *self._sweeper.problems(),
            *files,
            *keys,
        ]

    def snapshot(self) -> dict[str, int]:
        """How many steps are held, by `provider/profile`."""
        return dict(Counter(f"{f.step.provider}/{f.step.profile}" for f in self._held.values()))

    def nudge(self) -> None:
        """Look at everything again now, as after a lost wake-up."""
        self._unrescued, self._last_rescue = True, float("-inf")
        self._look_everywhere()
        for follower in self._held.values():
            follower.poke(request=True)

    # -- life

    async def start(self) -> None:
        """Take up what an earlier run of this service left, then begin to claim."""
        await self._db.write(steps.void_leases, self._options.owner)
        await self._db.write(storage.shorten_pauses, self._options.retention)
        await self._reach.probe_all()
        await adopt_started(self._db, self._reach, self._clock, self._options)
        self._main = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Let go of all steps; work goes on unless its profile says otherwise. Twice is fine."""
        if not self._stopping:
            self._stopping = True
            marked = [
                f for f in self._held.values() if getattr(f.profile.config, "on_shutdown", "keep") == "stop"
            ]
            await asyncio.gather(
                *(follower.end_for_shutdown() for follower in marked), return_exceptions=True
            )
        self._unhook()
        if self._main is not None:
            self._main.cancel()
            await asyncio.gather(self._main, return_exceptions=True)
        try:
            await self._db.write(steps.release, self._options.token, None, self._clock.now())
        except Unavailable as error:
            log.warning("leases are left to run out: %s", error)
        await self._devices.stop()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._guard("claim", self._claim_loop))
            group.create_task(self._guard("heartbeat", self._heartbeat_loop))
            group.create_task(self._guard("probe", self._probe_loop))
            group.create_task(self._guard("sweep", self._sweeper.run))
            group.create_task(self._guard("gpus", lambda: self._devices.run(self._held)))
            if self._objects is not None:
                group.create_task(self._guard("files", self._objects.run))
            for backend in self._reach:
                self._watch(backend)

    def _watch(self, backend: Backend) -> None:
        if self._group is not None and isinstance(backend, Watches):
            self._group.create_task(self._hints(backend))

    async def add(self, backend: Backend) -> None:
        """A backend has come that was not there at the start."""
        await adopt_started(self._db, [backend], self._clock, self._options)
        self._reach.add(backend)
        await self._reach.probe_all()
        self._watch(backend)

    async def _guard(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run `loop` for ever: an error in it is told and survived."""
        while True:
            try:
                await loop()
            except Unavailable as error:
                log.warning("%s waits for the database: %s", name, error)
            except Exception:
                log.exception("the %s loop failed and goes on", name)
            await asyncio.sleep(1.0)

    async def _hints(self, backend: Backend) -> None:
        while True:
            try:
                async for key in backend.changes():  # type: ignore[attr-defined]
                    # A run that goes on after a pause may still have the name of the one before.
                    follower = self._by_run.get(_of_any_run(key))
                    if follower is not None:
                        follower.poke()
            except Exception as error:
                log.warning("hints of %s ended, asking again: %s", backend.name, error)
            await asyncio.sleep(0.5)

    def _on_wake(self, topic: str, key: str) -> None:
        if topic == "gpus" or not key:
            self._devices.look_again()
        if topic != "work":
            return
        follower = self._held.get(key)
        if follower is not None:
            follower.poke(request=True)
        else:
            self._unrescued = True
            self._places.look_everywhere()
            self._wake.set()

    def _look_everywhere(self) -> None:
        self._places.look_everywhere()
        self._devices.look_again()
        self._wake.set()

    # -- jobs that are being created

    def render(self, step: StepRecord) -> Json:
        """What would be sent to start `step`, without secret values. Raises Invalid when its
        backend would refuse it."""
        profile = self._reach.profiles.get(step.provider, step.profile)
        backend = self._reach.get(profile.backend) if profile else None
        if profile is None or backend is None:
            raise Invalid(f"no backend here runs profile {step.provider}/{step.profile}")
        try:
            return backend.render(plans.make_plan(step, step.generation, profile, self._options.platform))
        except Rejected as error:
            raise Invalid(str(error)) from error

    def arrive(self, provider: str, profile: str) -> tuple[Arrival, Lease | None] | None:
        """A job for this profile is about to be created. With a lease, its first step has a place
        here. What is given must be given to `arrived`; None where this engine has no part in it."""
        found = self._reach.profiles.get(provider, profile)
        if found is None or self._stopping or self._group is None or found not in self._reach.usable():
            return None
        arrival = self._places.arrive(found)
        if not arrival.reserved:
            return arrival, None
        host = self._options.host if self._reach.on_host(found) else None
        return arrival, Lease(self._options.owner, self._options.token, self._lease_end(), host)

    def arrived(self, arrival: Arrival, step: StepRecord | None) -> None:
        """The job is stored, and `step` is held for us; None: it was refused, or has no place."""
        self._places.arrived(arrival)
        if step is not None:
            self._hold(step)

    # -- claiming

    async def _claim_loop(self) -> None:
        while True:
            more = await self._claim_round()
            self._last_round = self._clock.monotonic()
            if more:
                continue
            try:
                async with asyncio.timeout(RESCUE_EVERY if self._unrescued else POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                self._devices.due = self._devices.due or not self._unrescued
                self._unrescued = True
                self._places.look_everywhere()
            if self._places.some_full:
                await asyncio.sleep(GATHER_SECONDS)
            self._wake.clear()

    async def _claim_round(self) -> bool:
        """Claim what fits; True when there may be more."""
        more = False
        wanted = [profile for profile in self._reach.usable() if self._places.may_wait(profile)]
        self._places.looking()
        if self._devices.due:
            places = {one.key: min(self._places.free(one), CLAIM_BATCH) for one in self._reach.usable()}
            for step in await self._devices.claim(places, self._lease_end()):
                self._hold(step)
        for profile in wanted:
            free = min(self._places.free(profile), CLAIM_BATCH)
            claimed = await self._claim(profile, free) if free > 0 else []
            self._places.looked(profile, more=len(claimed) >= free)
            for step in claimed:
                self._hold(step)
            more = more or len(claimed) == free == CLAIM_BATCH
        if self._unrescued and self._clock.monotonic() - self._last_rescue >= RESCUE_EVERY:
            self._last_rescue, self._unrescued = self._clock.monotonic(), False
            await self._rescue()
        return more

    async def _claim(self, profile: Profile, limit: int) -> list[StepRecord]:
        return await self._db.write(
            steps.claim_waiting,
            profile.provider,
            profile.profile,
            owner=self._options.owner,
            token=self._options.token,
            host=self._options.host,
            now=self._clock.now(),
            until=self._lease_end(),
            limit=limit,
            bind=self._reach.on_host(profile),
            wanting=self._devices.pool_of(profile) is None,
            durable=False,
        )

    async def _rescue(self) -> None:
        """Steps at work or asked to end that nobody holds."""
        found = await self._db.write(
            steps.claim_due,
            owner=self._options.owner,
            token=self._options.token,
            host=self._options.host,
            now=self._clock.now(),
            until=self._lease_end(),
            limit=256,
        )
        for step in found:
            if not self._hold(step):
                profiles = self._reach.profiles
                await tell_absent(self._db, step, profiles, self._clock, self._options, ABSENT_SECONDS)

    def _hold(self, step: StepRecord) -> bool:
        """Look after `step` from now on; False when it can't be done here."""
        found = self._reach.of_step(step)
        if found is None or self._group is None:
            return False
        if step.id in self._held:
            return True
        profile, backend = found
        follower = Follower(self._shared, step, profile, backend)
        self._held[step.id] = follower
        self._by_run[_of_any_run(follower.key)] = follower
        self._places.take(profile)
        self._group.create_task(self._follow(follower))
        return True

    async def _follow(self, follower: Follower) -> None:
        step_id, key = follower.step.id, follower.key
        try:
            await follower.run()
        except Exception:
            log.exception(
                "looking after step %s of %s failed; trying again", follower.step.name, follower.step.job
            )
            await asyncio.sleep(1.0)
            await self._give_back(step_id)
        finally:
            self._held.pop(step_id, None)
            self._by_run.pop(_of_any_run(key), None)
            self._places.give_back(follower.profile)
            self._devices.place_free(follower.profile)

    async def _give_back(self, step_id: str) -> None:
        due = self._clock.now() + 5_000_000
        try:
            await self._db.write(steps.release, self._options.token, [step_id], due)
        except Unavailable as error:
            log.warning("a lease is left to run out: %s", error)

    # -- keeping

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self._beat()

    async def _beat(self) -> None:
        extended = await self._db.write(steps.heartbeat, self._options.token, self._lease_end())
        if extended > len(self._held):
            # Nobody looks after some of them: the creation of a job was stored, say, and its
            # answer lost with the connection to the database.
            for step in await self._db.read(steps.held, self._options.token):
                self._hold(step)

    def _lease_end(self) -> int:
        return self._clock.now() + LEASE_SECONDS * 1_000_000

    async def _probe_loop(self) -> None:
        while True:
            profiles = self._reach.profiles
            await fail_steps_without_profile(self._db, profiles, self._clock, self._options)
            for profile in profiles:
                if why := self._reach.silent(profile):
                    await explain_waiting(self._db, profile.key, why, self._clock, self._options)
            await asyncio.sleep(PROBE_SECONDS)
            await self._reach.probe_all()


def _of_any_run(key: str) -> str:
    return key.rpartition("-")[0]

"""An engine over a real store and the scripted backend, in a time that the test moves."""

import asyncio
import contextlib
import json
from dataclasses import dataclass

from nemo_jobs.backends.api import Backend, PlatformInfo
from nemo_jobs.config_model import Settings
from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.domain.model import JobRecord
from nemo_jobs.domain.profiles import Profile, ProfileSet, SubprocessConfig
from nemo_jobs.domain.retention import retention_of
from nemo_jobs.domain.spec import JobSpec
from nemo_jobs.domain.states import Trigger
from nemo_jobs.engine.engine import Engine
from nemo_jobs.engine.options import Options
from nemo_jobs.engine.pools import Pool
from nemo_jobs.files.objects import ObjectStore
from nemo_jobs.store import jobs, workspaces
from nemo_jobs.store.db import Database
from nemo_jobs.testing import FakeBackend, FakeWorld
from nemo_jobs.vault.secrets import Secrets

WORKSPACE = "default"


@dataclass
class Place:
    """What outlives a crash: the database, the world outside and the time."""

    db: Database
    clock: ManualClock
    world: FakeWorld
    profiles: ProfileSet
    log_limit: int = 1 << 30
    objects: ObjectStore | None = None
    secrets: Secrets | None = None
    pool: Pool | None = None
    backend: type[FakeBackend] = FakeBackend


class Bench:
    """One service's life at a place; `crash` and `start` may follow each other."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.engine: Engine | None = None
        self._starts = 0
        self.made = 0  # jobs of a history

    @property
    def db(self) -> Database:
        return self.place.db

    async def start(self, backends: dict[str, Backend] | None = None) -> Engine:
        self._starts += 1
        options = Options(
            host="here",
            owner="one",
            token=f"token-{self._starts}",
            platform=PlatformInfo({"base": "http://127.0.0.1:1"}),
            log_limit=self.place.log_limit,
            objects=self.place.objects,
            secrets=self.place.secrets,
            retention=retention_of(Settings().jobs.storage, self.place.profiles),
            pool=self.place.pool,
        )
        backend = self.place.backend(self.place.clock, self.place.world)
        found = {"subprocess": backend} if backends is None else backends
        self.engine = Engine(self.db, self.place.profiles, found, self.place.clock, options)
        await self.engine.start()
        return self.engine

    async def crash(self) -> None:
        """The engine vanishes between two awaits: nothing is let go of."""
        assert self.engine is not None
        self.engine._unhook()
        main = self.engine._main
        assert main is not None
        main.cancel()
        await asyncio.gather(main, return_exceptions=True)
        self.engine = None

    async def create(self, name: str, *steps: dict[str, str], **spec: object) -> None:
        """A job whose steps are scripted by their environment."""
        new = self.new_job(name, *steps, **spec)
        await self.db.write(jobs.create_job, new, self.place.clock.now(), "test")

    def new_job(self, name: str, *steps: dict[str, str], **spec: object) -> jobs.NewJob:
        made = []
        for index, script in enumerate(steps or ({},)):
            made.append(
                {
                    "name": f"step-{index}",
                    "executor": {"provider": "subprocess", "command": ["true"]},
                    "environment": [{"name": key, "value": value} for key, value in script.items()],
                    **spec,
                }
            )
        platform_spec = JobSpec.model_validate({"steps": made}).model_dump(mode="json")
        return jobs.NewJob(WORKSPACE, name, "test", "{}", platform_spec, f"job-fileset-{name}", "{}")

    async def ask(self, name: str, trigger: Trigger) -> str:
        found = await self.db.write(jobs.request, WORKSPACE, name, trigger, self.place.clock.now(), "test")
        return found.state

    async def job(self, name: str) -> JobRecord:
        return await self.db.read(jobs.get_job, WORKSPACE, name)

    async def until(self, name: str, *states: str, seconds: float = 10.0) -> JobRecord:
        """The job when it has come to one of `states`; the test's time stands still meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (found := await self.job(name)).state not in states:
            assert loop.time() < deadline, f"{name} is {found.state} ({found.message}), not {states}"
            await asyncio.sleep(0.002)
        return found

    async def until_told(self, name: str, reason: str, text: str = "", seconds: float = 10.0) -> JobRecord:
        """The job when its reason is this one and its message holds `text`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (found := await self.job(name)).reason != reason or text not in found.message:
            assert loop.time() < deadline, f"{name} is {found.state}: {found.reason}, {found.message!r}"
            await asyncio.sleep(0.002)
        return found

    async def move(self, seconds: float) -> None:
        """Let time pass: the world outside changes, and everybody looks again."""
        self.place.clock.advance(seconds)
        self.place.world.tick(self.place.clock.now())
        if self.engine is not None:
            self.engine.nudge()
        await asyncio.sleep(0.005)

    async def move_until(self, name: str, *states: str, step: float = 5.0, most: int = 60) -> JobRecord:
        for _ in range(most):
            with contextlib.suppress(AssertionError):
                return await self.until(name, *states, seconds=0.05)
            await self.move(step)
        return await self.until(name, *states, seconds=0.1)

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.stop()
        await self.db.aclose()


def profiles_of(**config: object) -> ProfileSet:
    config = {"graceful_shutdown_timeout_seconds": 10, **config}
    profile = Profile("subprocess", "default", "subprocess", SubprocessConfig.model_validate(config))
    return ProfileSet({profile.key: profile})


async def open_place(path: str, **config: object) -> Place:
    clock = ManualClock()
    db = Database.open(f"sqlite:///{path}", clock=clock)
    await db.start()
    await db.write(workspaces.ensure_defaults, clock.now())
    return Place(db, clock, FakeWorld(), profiles_of(**config))


def details(text: str | None) -> dict:
    return json.loads(text or "{}")

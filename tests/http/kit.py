"""The real application over a real store, and a hand that moves steps on."""

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field

import httpx2
import uvicorn

from nemo_jobs.config import load_settings
from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.domain.profiles import resolve_profiles
from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.files.opening import open_objects
from nemo_jobs.http.app import App
from nemo_jobs.http.parts import Parts
from nemo_jobs.http.stream import Limits
from nemo_jobs.http.transport import OneWriteProtocol
from nemo_jobs.secret_store import open_secrets
from nemo_jobs.store import steps, workspaces
from nemo_jobs.store.db import Database
from nemo_jobs.store.steps import Chunk, LogBatch, Outcome, TaskChange

JOBS = "/apis/jobs/v2/workspaces/default/jobs"


def body(**over):
    """A create request with one step, `work`."""
    step = {"name": "work", "executor": {"provider": "subprocess", "command": ["true"]}}
    return {"name": "moth", "source": "test", "spec": {}, "platform_spec": {"steps": [step]}, **over}


def steps_named(*names):
    return {
        "steps": [
            {"name": name, "executor": {"provider": "subprocess", "command": ["true"]}} for name in names
        ]
    }


@dataclass
class EngineStandIn:
    """What the API is told about an engine."""

    loops: dict = field(default_factory=lambda: {"jobs": True})
    troubles: list = field(default_factory=list)
    away: dict = field(default_factory=dict)
    ownerless: list = field(default_factory=list)

    def health(self):
        return self.loops

    def problems(self):
        return self.troubles

    def snapshot(self):
        return {"subprocess/default": 1}

    def render(self, step):
        return {"argv": step.spec["executor"]["command"], "key": step.key}

    def trouble(self, profile):
        return self.away.get(profile.key, "")

    async def sweep(self, dry_run):
        return {"dry_run": dry_run, "data": [dict(one) for one in self.ownerless], "unavailable": []}

    def arrive(self, provider, profile):
        return None

    def arrived(self, arrival, step):
        raise AssertionError("nothing has arrived")


class Service:
    """An application with its parts, asked through `client`."""

    def __init__(self, db, app, clock, engine, client):
        self.db, self.app, self.clock, self.engine, self.client = db, app, clock, engine, client

    async def create(self, **over):
        answer = await self.client.post(JOBS, json=body(**over))
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def job(self, name="moth"):
        return (await self.client.get(f"{JOBS}/{name}")).json()

    async def job_status(self, name="moth"):
        return (await self.client.get(f"{JOBS}/{name}/status")).json()

    async def claim(self):
        """Take the oldest waiting step, as an engine does."""
        now = self.clock.now()
        (step,) = await self.db.write(
            steps.claim_waiting,
            "subprocess",
            "default",
            owner="test",
            token="token",
            host="here",
            now=now,
            until=now + 60_000_000,
            limit=1,
        )
        return step

    async def apply(self, step, *triggers, lines=(), task="task-0123456789abcdef0123456789abcdef", **outcome):
        """Move a claimed step on. `lines` are (stream, text)."""
        now = self.clock.now()
        chunks = tuple(
            Chunk(task, stream, now, text.count("\n") + 1, text.encode() + b"\n") for stream, text in lines
        )
        made = Outcome(
            triggers=triggers,
            logs=LogBatch(chunks, {"at": 1}) if chunks else None,
            tasks=tuple(outcome.pop("tasks", ())),
            claim_next=False,
            **outcome,
        )
        return await self.db.write(steps.apply, "token", step.id, made, now)

    async def start(self, lines=(), task="task-0123456789abcdef0123456789abcdef"):
        """Claim a step and have it run, with a task and some output."""
        step = await self.claim()
        state = TaskChange(
            name=task, rank=0, state=State.ACTIVE, status_details={}, error_details=None, error_stack=None
        )
        await self.apply(step, Trigger.SUBMITTED, Trigger.STARTED, lines=lines, task=task, tasks=[state])
        return step

    async def finish(self, step, trigger=Trigger.SUCCEEDED, **outcome):
        return await self.apply(step, trigger, **outcome)


@contextlib.asynccontextmanager
async def open_service(folder, *, limits=None, config="", environ=None, clock=None, url=None):
    """Everything but the engine and a socket."""
    file = folder / "config.yaml"
    file.write_text(config or "platform: {runtime: none}\n")
    settings = load_settings(file, environ or {}).settings
    profiles = resolve_profiles(settings, docker=False, available={"subprocess"})
    clock = clock or ManualClock()
    db = Database.open(url or f"sqlite:///{folder}/jobs.db", clock=clock)
    await db.start()
    try:
        await db.write(workspaces.ensure_defaults, clock.now())
        engine = EngineStandIn()
        objects = open_objects(settings, folder)
        vault = await open_secrets(folder, db, clock, environ or {})
        parts = Parts(
            *(db, settings, profiles, clock, engine, "1.2.3", "abc"), objects=objects, secrets=vault
        )
        app = App(parts, limits)
        await app.start()
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Service(db, app, clock, engine, client)
        app.stop()
        await vault.aclose()
    finally:
        await db.aclose()


class QuietServer(uvicorn.Server):
    """Leaves signals to the tests."""

    @contextlib.contextmanager
    def capture_signals(self):
        yield


@contextlib.asynccontextmanager
async def served(app):
    """The app behind a real server; its port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app,
            http=OneWriteProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
        )
        server = QuietServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                await asyncio.sleep(0.005)
            yield listener.getsockname()[1]
        finally:
            app.stop()
            server.should_exit = True
            await asyncio.wait_for(serving, 5)


def limits(**over):
    return Limits(**over)

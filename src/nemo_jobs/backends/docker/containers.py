"""What a backend knows of the containers of its engine, and reads of them; nothing is started here."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nemo_jobs.backends.api import (
    Handle,
    Json,
    Left,
    LeftFile,
    Leftover,
    LogPiece,
    Observation,
    Phase,
    Unavailable,
)
from nemo_jobs.backends.docker import facts, sweep
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.cgroups import Cgroups
from nemo_jobs.backends.docker.creator import Creator
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.handles import NAME, Engine
from nemo_jobs.backends.docker.helpers import Helpers
from nemo_jobs.backends.docker.logs import logs
from nemo_jobs.backends.docker.observe import Watcher
from nemo_jobs.backends.docker.pull import PullFailed, PullLimits, Pulls
from nemo_jobs.backends.docker.results import Results
from nemo_jobs.backends.docker.starting import Starting
from nemo_jobs.backends.docker.stopping import Stops
from nemo_jobs.backends.docker.stream import Demultiplexer
from nemo_jobs.backends.docker.table import Seen
from nemo_jobs.backends.docker.usage import Usages, with_usage
from nemo_jobs.domain.clock import Clock


@dataclass(frozen=True, slots=True)
class Options:
    """What a backend is told of its surroundings."""

    data_dir: Path
    host_id: str
    owner: str
    fallback_image: str = ""
    loopback: str | None = None
    pulls: PullLimits = field(default_factory=PullLimits)
    #: Write into volumes of this host's engine without the engine's help, where that is possible.
    direct: bool = True


class Containers:
    """The containers of one engine, whoever started them."""

    def __init__(self, engine: DockerEngine, options: Options, clock: Clock) -> None:
        self.name = NAME
        self._engine, self._options, self._clock = engine, options, clock
        self._creator = Creator(options.host_id)
        self._watcher = Watcher(engine, clock, lambda key: self._stops.asked(key))
        self._pulls = Pulls(engine, limits=options.pulls, hint=self._watcher.hint)
        self._stops = Stops(engine, self._watcher)
        self._usages = Usages(engine, Cgroups() if engine.local else None)
        self._helpers = Helpers(engine, options.owner, self._fetch)
        self._here = Engine("", str(engine.address))
        self._results = Results(engine, options.data_dir, self._creator)
        self._starting: dict[str, Starting] = {}
        self._closed = False

    @property
    def machine(self) -> tuple[str, str]:
        return self._here.id, self._here.name or self._here.address

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._creator.close()
        tasks = [starting.task for starting in self._starting.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stops.aclose()
        await self._pulls.aclose()
        await self._usages.aclose()
        await self._watcher.aclose()
        await self._results.aclose()
        await self._engine.aclose()

    async def observe(self, handles: Sequence[Handle]) -> dict[str, Observation]:
        if not handles:
            return {}
        await self._watcher.ready()
        pairs = [(handle, handle.data) for handle in handles]
        here = [handle for handle, data in pairs if self._here.has(data)]
        seen = dict(zip((h.key for h in here), await asyncio.gather(*map(self._look, here)), strict=True))
        return {handle.key: self._observation(handle, seen.get(handle.key)) for handle in handles}

    async def _look(self, handle: Handle) -> Seen | None:
        container = handle.data["container"]
        seen = self._watcher.table.get(container)
        if seen is None or not (seen.certain or seen.gone):
            seen = await self._watcher.look(container)
        if seen is None or not seen.ended or seen.code == 0 or seen.stack is not None:
            return seen
        if not self._stops.asked(seen.run.key):
            seen.stack = await self._last_words(seen)
        return seen

    def _observation(self, handle: Handle, seen: Seen | None) -> Observation:
        now = self._clock.now()
        if not self._here.has(handle.data):
            return Observation(Phase.WAITING, (), "host_unreachable", self._here.elsewhere(handle.data), now)
        container = handle.data["container"]
        if seen is not None and seen.state == "running" and seen.run.key == handle.key:
            self._usages.began(container, handle.key)
        asked = facts.Asked(self._stops.asked(handle.key), self._watcher.gaps)
        found = facts.observation(handle, seen, asked, now)
        return with_usage(found, self._usages.of(container, handle.key))

    async def _last_words(self, seen: Seen) -> str:
        since = f"{seen.run.since / 1e6:.6f}" if seen.run.since else "0"
        frames, text = Demultiplexer(), b""
        try:
            async with self._engine.logs(
                seen.id, since=since, follow=False, timestamps=False, tail=str(facts.STACK_LINES)
            ) as pieces:
                async for piece in pieces:
                    text = (text + b"".join(data for _, data in frames.feed(piece)))[-facts.MOST_READ :]
        except EngineError:
            return ""  # it is being removed
        except EngineAway as error:
            raise Unavailable(str(error)) from error
        return facts.last_words(text)

    async def left(self, handle: Handle, most_bytes: int) -> Left | None:
        return await self._results.left(handle, most_bytes) if self._here.has(handle.data) else None

    def read_left(self, handle: Handle, file: LeftFile) -> AsyncIterator[bytes]:
        return self._results.read_left(handle, file)

    def belongings(self) -> AsyncIterator[Leftover]:
        return sweep.belongings(self._engine, self._options.owner)

    async def discard(self, item: Leftover) -> None:
        await sweep.discard(self._engine, item)

    def changes(self) -> AsyncIterator[str]:
        return self._watcher.changes()

    async def logs(self, handle: Handle, cursor: Json | None) -> AsyncIterator[LogPiece]:
        if not self._here.has(handle.data):
            raise Unavailable(self._here.elsewhere(handle.data), retry_after=60.0)
        await self._watcher.ready()
        container, since = handle.data["container"], handle.data["since"]
        if self._watcher.table.get(container) is None:
            await self._watcher.look(container)
        task = handle.data["task"]

        async def doubtful() -> bool:
            seen = self._watcher.table.get(container)
            if seen is not None and not (seen.certain or seen.gone):
                seen = await self._watcher.look(container)  # of a list it isn't known when it ended
            return seen is not None and facts.in_a_gap(seen.ended_at, self._watcher.gaps)

        try:
            with self._watcher.end_of(container, since) as ended:
                pieces = logs(self._engine, container, task, cursor, ended, since=since, doubtful=doubtful)
                async with contextlib.aclosing(pieces):
                    async for piece in pieces:
                        yield piece
        except EngineAway as error:
            raise Unavailable(str(error)) from error
        except EngineError as error:
            raise Unavailable(f"the output of {handle.key} can't be read: {error}") from error

    async def _fetch(self, image: str) -> None:
        """Get the image of a helper. Raises Unavailable while that lasts, and when it can't be had."""
        try:
            pulling = await self._pulls.want(image, "")
        except PullFailed as error:
            raise Unavailable(str(error), retry_after=60.0) from error
        if pulling is not None:
            raise Unavailable(pulling.message, retry_after=2.0)

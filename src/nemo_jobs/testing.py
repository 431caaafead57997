"""A scripted backend for tests, and the conformance suite that every backend passes.

`FakeBackend` does what the environment of the step says, in the time of the clock it is given:

| variable | meaning |
|---|---|
| `FAKE_WAIT_SECONDS` | how long it waits before it runs (0) |
| `FAKE_RUN_SECONDS` | how long it runs (0); `forever` is allowed |
| `FAKE_EXIT_CODE` | the code at its own end (0); 128+n for the signal n |
| `FAKE_OUTPUT`, `FAKE_ERROR_OUTPUT` | text on stdout and stderr, written when it starts |
| `FAKE_LINES` | `n` lines on stdout, spread evenly over the run |
| `FAKE_SUBMIT_ERROR` | `rejected`, or `unavailable:<n>` for the first n submits |
| `FAKE_LOST` | seconds after its start at which it vanishes |
| `FAKE_IGNORE_STOP` | `1`: ends only when the grace is over; `<seconds>`: ends that long after the stop |
| `FAKE_REASON` | the reason that comes with a failure, such as `oom` |
| `FAKE_RESULTS` | what it leaves as results: a JSON object of paths and texts |
| `FAKE_RESULTS_CHANGE` | so many times a file of them is read while it changes |
"""

import asyncio
import contextlib
import json
import math
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nemo_jobs.backends.api import (
    ENDED,
    Capabilities,
    Handle,
    Health,
    Json,
    Left,
    LeftChanged,
    LeftFile,
    LeftItem,
    LogPiece,
    Observation,
    Phase,
    Plan,
    Rejected,
    TaskObservation,
    Unavailable,
)
from nemo_jobs.conformance import FOREVER, BackendConformance, Harness, Work
from nemo_jobs.domain.clock import Clock

__all__ = [
    "FOREVER", "BackendConformance", "FakeBackend", "FakeWork", "FakeWorld", "Harness", "Work", "script_of",
]  # fmt: skip

NEVER = math.inf
_SIGNALS = frozenset(map(int, signal.Signals))
_LOOK_AGAIN = 0.005  # seconds between looks of a log reader that waits for the clock to move


@dataclass(slots=True)
class FakeWork:
    """One scripted workload. Times are microseconds of the clock."""

    handle: Handle
    task: str
    attempt_id: str
    script: Mapping[str, str]
    submitted_at: int
    stop_at: int | None = None
    grace: float = 0.0
    removed: bool = False
    seen: Phase | None = None
    trimmed: dict[str, int] = field(default_factory=dict)
    changed: int = 0  # times that a result was read while it changed

    @property
    def starts_at(self) -> float:
        return self.submitted_at + _seconds(self.script, "FAKE_WAIT_SECONDS") * 1e6

    @property
    def ends_at(self) -> float:
        return self.starts_at + _seconds(self.script, "FAKE_RUN_SECONDS") * 1e6

    @property
    def lost_at(self) -> float:
        return self.starts_at + _seconds(self.script, "FAKE_LOST", NEVER) * 1e6

    @property
    def stopped_at(self) -> float:
        """When the work is gone because of `stop`; by force if it ignores the request."""
        if self.stop_at is None:
            return NEVER
        lasts = self.script.get("FAKE_IGNORE_STOP", "")
        delay = {"": 0.0, "1": self.grace}.get(lasts)
        return self.stop_at + (min(float(lasts), self.grace) if delay is None else delay) * 1e6

    def phase(self, now: int) -> Phase:
        """What is true at `now`; of several ends the first counts."""
        end, phase = min(
            (self.ends_at, Phase.SUCCEEDED if self.code == 0 else Phase.FAILED),
            (self.stopped_at, Phase.STOPPED),
            (self.lost_at, Phase.LOST),
            key=lambda pair: pair[0],
        )
        if now >= end:
            return phase
        return Phase.RUNNING if now >= self.starts_at else Phase.WAITING

    @property
    def code(self) -> int:
        return int(self.script.get("FAKE_EXIT_CODE", "0"))

    def ended_at(self) -> float:
        return min(self.ends_at, self.stopped_at, self.lost_at)

    def output(self, now: int) -> dict[str, bytes]:
        """Everything written up to `now`, by stream."""
        if now < self.starts_at or self.ended_at() < self.starts_at:
            return {"stdout": b"", "stderr": b""}
        out = self.script.get("FAKE_OUTPUT", "").encode("utf-8", "surrogateescape")
        total = int(self.script.get("FAKE_LINES", "0"))
        run = self.ends_at - self.starts_at
        elapsed = min(now, self.ended_at()) - self.starts_at
        ready = total if elapsed >= run else int(total * elapsed / run)
        out += b"".join(b"line %d\n" % number for number in range(ready))
        return {"stdout": out, "stderr": self.script.get("FAKE_ERROR_OUTPUT", "").encode()}


class FakeWorld:
    """What outlives a `FakeBackend`: give the same one to a second backend after a "crash"."""

    def __init__(self) -> None:
        self.works: dict[str, FakeWork] = {}
        self.storage: set[str] = set()  # attempts whose shared storage exists
        self.starts: Counter[str] = Counter()  # real starts by key: never above 1
        self.calls: Counter[str] = Counter()  # calls by method, failed ones included
        self.refused: Counter[str] = Counter()
        self.away: str = ""  # a sentence: every call but `probe` raises Unavailable with it
        self._listeners: set[asyncio.Queue[str]] = set()

    def notify(self, key: str) -> None:
        for listener in self._listeners:
            listener.put_nowait(key)

    def tick(self, now: int) -> list[str]:
        """Say who changed since the last tick; call it after moving the clock."""
        changed = []
        for key, work in self.works.items():
            phase = work.phase(now)
            if phase is not work.seen:
                work.seen = phase
                changed.append(key)
                self.notify(key)
        return changed

    @contextlib.contextmanager
    def listening(self) -> Iterator[asyncio.Queue[str]]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)


class FakeReading:
    """The reading half of the fake: its output and its hints."""

    def __init__(self, clock: Clock, world: FakeWorld) -> None:
        self.clock = clock
        self.world = world

    async def logs(self, handle: Handle, cursor: Json | None) -> AsyncIterator[LogPiece]:
        self._ask("logs")
        position = {"stdout": 0, "stderr": 0} | (cursor or {})
        while (work := self.world.works.get(handle.key)) is not None:
            now = self.clock.now()
            ended = work.phase(now) in ENDED
            pieces = list(_new_pieces(work, position, now))
            for piece in pieces:
                yield piece
            if ended and not pieces:
                return
            if not pieces:
                await asyncio.sleep(_LOOK_AGAIN)

    async def trim(self, handle: Handle, cursor: Json) -> None:
        self._ask("trim")
        if (work := self.world.works.get(handle.key)) is not None:
            for stream, position in cursor.items():
                work.trimmed[stream] = max(work.trimmed.get(stream, 0), int(position))

    async def left(self, handle: Handle, most_bytes: int) -> Left | None:
        self._ask("left")
        work = self.world.works.get(handle.key)
        texts = _results(work) if work is not None else {}
        items, notes = [], []
        for name in sorted({path.partition("/")[0] for path in texts}):
            below = {path: text for path, text in texts.items() if path.partition("/")[0] == name}
            files = tuple(
                LeftFile(path, path.partition("/")[2], len(text.encode())) for path, text in below.items()
            )
            if sum(file.size for file in files) > most_bytes:
                notes.append(f"{name} was left out: it does not fit")
            else:
                items.append(LeftItem(name, name not in below, files))
        return Left(tuple(items), tuple(notes)) if texts else None

    async def read_left(self, handle: Handle, file: LeftFile) -> AsyncIterator[bytes]:
        self._ask("read_left")
        work = self.world.works.get(handle.key)
        if work is None:
            raise LeftChanged("it is gone")
        if work.changed < int(work.script.get("FAKE_RESULTS_CHANGE", "0")):
            work.changed += 1
            raise LeftChanged("it changed while it was collected")
        yield _results(work)[file.place].encode()

    async def changes(self) -> AsyncIterator[str]:
        with self.world.listening() as queue:
            while True:
                yield await queue.get()

    def running(self) -> int:
        now = self.clock.now()
        return sum(work.phase(now) not in ENDED for work in self.world.works.values())

    def _ask(self, method: str) -> None:
        self.world.calls[method] += 1
        if self.world.away:
            raise Unavailable(self.world.away)


class FakeBackend(FakeReading):
    """A backend that runs nothing and keeps every promise of the protocol."""

    def __init__(self, clock: Clock, world: FakeWorld | None = None, *, name: str = "subprocess") -> None:
        super().__init__(clock, world or FakeWorld())
        self.name = name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(persistent_storage=True, on_host=self.name == "subprocess")

    async def start(self) -> None:
        self._ask("start")

    async def probe(self) -> Health:
        self.world.calls["probe"] += 1
        return Health(ok=not self.world.away, message=self.world.away, version="fake")

    def render(self, plan: Plan) -> Json:
        return {"key": plan.key, "script": script_of(plan)}

    async def submit(self, plan: Plan) -> Handle:
        self._ask("submit")
        world = self.world
        if (work := world.works.get(plan.key)) is not None:
            return work.handle
        script = script_of(plan)
        failure, _, times = script.get("FAKE_SUBMIT_ERROR", "").partition(":")
        if failure == "rejected":
            raise Rejected("the script of the step says that it is rejected")
        if failure == "unavailable" and world.refused[plan.key] < int(times or 1):
            world.refused[plan.key] += 1
            raise Unavailable("the script of the step says that the backend is away", retry_after=1.0)
        self._take_over(plan)
        data = {"task": plan.task, "attempt_id": plan.attempt_id}
        handle = Handle(self.name, plan.key, 1, data)
        work = FakeWork(handle, plan.task, plan.attempt_id, script, self.clock.now())
        world.works[plan.key] = work
        world.storage.add(plan.attempt_id)
        world.starts[plan.key] += 1
        work.seen = work.phase(self.clock.now())
        world.notify(plan.key)
        return handle

    def _take_over(self, plan: Plan) -> None:
        """The storage of the first earlier attempt that has some is this one's."""
        storage = self.world.storage
        source = next((one.attempt_id for one in plan.earlier if one.attempt_id in storage), None)
        if plan.attempt_id in storage:
            return
        if source is not None:
            storage.discard(source)
        elif plan.needs_storage:
            raise Rejected("the storage of the attempts before is not there any more")

    async def observe(self, handles: Sequence[Handle]) -> dict[str, Observation]:
        self._ask("observe")
        now = self.clock.now()
        return {handle.key: _observation(self.world.works.get(handle.key), now) for handle in handles}

    async def stop(self, handle: Handle, grace: float) -> None:
        self._ask("stop")
        work = self.world.works.get(handle.key)
        if work is not None and work.stop_at is None and work.phase(self.clock.now()) not in ENDED:
            work.stop_at, work.grace = self.clock.now(), grace
            self.world.notify(handle.key)

    async def remove(self, handle: Handle, *, wipe_storage: bool = False) -> None:
        self._ask("remove")
        self.world.works.pop(handle.key, None)
        if wipe_storage:
            self.world.storage.discard(str(handle.data.get("attempt_id")))

    async def handles(self) -> AsyncIterator[Handle]:
        self._ask("handles")
        for work in list(self.world.works.values()):
            yield work.handle

    async def aclose(self) -> None:
        self.world.calls["aclose"] += 1


def script_of(plan: Plan) -> dict[str, str]:
    """The `FAKE_…` variables of the step."""
    variables = plan.spec.get("environment") or []
    return {v["name"]: v["value"] or "" for v in variables if v["name"].startswith("FAKE_")}


def _results(work: FakeWork) -> dict[str, str]:
    texts: dict[str, str] = json.loads(work.script.get("FAKE_RESULTS", "{}"))
    return texts


def _seconds(script: Mapping[str, str], name: str, default: float = 0.0) -> float:
    text = script.get(name)
    if text is None:
        return default
    return NEVER if text == "forever" else float(text)


def _observation(work: FakeWork | None, now: int) -> Observation:
    if work is None:
        return Observation(Phase.LOST, reason="lost", message="There is no such workload.", at=now)
    phase = work.phase(now)
    code = _code(work, phase)
    name = signal.Signals(code - 128).name if code is not None and code - 128 in _SIGNALS else None
    task = TaskObservation(
        rank=0,
        name=work.task,
        phase=phase,
        native_id=f"fake-{work.handle.key}",
        exit_code=code,
        signal=name,
        oom_killed=work.script.get("FAKE_REASON") == "oom" and phase is Phase.FAILED,
        started_at=int(work.starts_at) if now >= work.starts_at else None,
        ended_at=int(work.ended_at()) if phase in ENDED else None,
        error_stack=work.script.get("FAKE_ERROR_OUTPUT") or None if phase is Phase.FAILED else None,
    )
    reason = work.script.get("FAKE_REASON", "") if phase is Phase.FAILED else ""
    return Observation(phase, (task,), reason="lost" if phase is Phase.LOST else reason, at=now)


def _code(work: FakeWork, phase: Phase) -> int | None:
    if phase in (Phase.SUCCEEDED, Phase.FAILED):
        return work.code
    if phase is Phase.STOPPED and work.stopped_at >= work.starts_at:
        forced = work.script.get("FAKE_IGNORE_STOP") == "1"
        return 128 + (signal.SIGKILL if forced else signal.SIGTERM)
    return None


def _new_pieces(work: FakeWork, position: dict[str, int], now: int) -> Iterator[LogPiece]:
    for stream, data in work.output(now).items():
        begin = max(position[stream], work.trimmed.get(stream, 0))
        if begin < len(data):
            missing = begin - position[stream]
            position[stream] = len(data)
            yield LogPiece(0, work.task, stream, now, data[begin:], dict(position), missing)

"""Following a log: server-sent events, one a line, whose id is the line's sequence number.

A follower sleeps until the store says that lines were stored or the job changed, and sends what
is new from the database; nothing is queued in memory for it. A reader that takes too long to
read is dropped: the last id it got is where it goes on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import BaseModel, Field

from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import JobRecord, LogLine, NotFound, Unavailable
from nemo_jobs.domain.states import TERMINAL, State
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.jobs import JOB
from nemo_jobs.http.logs import MAX_LINES, AttemptId, Place, find_place
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Receive, Request, Send
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Header, line_text, why_text
from nemo_jobs.store import attempts, jobs, logs
from nemo_jobs.store.attempts import AttemptRecord
from nemo_jobs.store.db import Database, Tx

log = logging.getLogger(__name__)

#: States after which nothing is printed, at least for now.
RESTING = TERMINAL | {State.PAUSED}
#: Lines read and sent in one go.
BATCH = 1000
BATCH_SIZE = 256 << 10
_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"connection", b"close"),
)


class StreamQuery(BaseModel):
    after: Annotated[int, Field(ge=0)] | None = None
    tail: Annotated[int, Field(gt=0, le=MAX_LINES)] | None = None
    attempt_id: AttemptId = None
    step_id: str | None = None
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How many may follow at once; seconds between signs of life; seconds a send may take."""

    followers: int = 256
    heartbeat: float = 15.0
    patience: float = 30.0


class Streams:
    """Everybody who follows a log of this process, woken by what they follow."""

    def __init__(self, db: Database, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.closing = False
        self._waiting: dict[tuple[str, str], set[asyncio.Event]] = {}
        self._count = 0
        self._unhook: Callable[[], None] = db.on_wake(self._on_wake)

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def follow(self, job_id: str, attempt_id: str) -> Iterator[asyncio.Event]:
        """An event that is set when the job or its log changes. Raises Refused (503) when full."""
        if self.closing:
            raise Refused(503, "the service is stopping", (b"retry-after", b"5"))
        if self._count >= self.limits.followers:
            raise Refused(
                503,
                f"{self._count} clients follow logs, the most this service serves at once; "
                "try again later, or read the pages of the log",
                (b"retry-after", b"10"),
            )
        wake = asyncio.Event()
        keys = (("job", job_id), ("logs", attempt_id))
        self._count += 1
        for key in keys:
            self._waiting.setdefault(key, set()).add(wake)
        try:
            yield wake
        finally:
            self._count -= 1
            for key in keys:
                self._leave(key, wake)

    def stop(self) -> None:
        """End all streams; their readers reconnect elsewhere or later."""
        self.closing = True
        self._unhook()
        self._wake_all()

    def _leave(self, key: tuple[str, str], wake: asyncio.Event) -> None:
        events = self._waiting[key]
        events.discard(wake)
        if not events:
            del self._waiting[key]

    def _on_wake(self, topic: str, key: str) -> None:
        if not key or topic == "token":  # some were missed, or somebody may not read any more
            self._wake_all()
        for event in self._waiting.get((topic, key), ()):
            event.set()

    def _wake_all(self) -> None:
        for events in self._waiting.values():
            for event in events:
                event.set()


async def stream_logs(api: Api, request: Request) -> None:
    """Answers by itself, until the job's end, the reader's or the service's."""
    query = request.query(StreamQuery)
    if query.after is not None and query.tail is not None:
        raise Refused(400, "tail and after can't be used together; leave one of them out")
    after = _last_seen(request, query)
    path, db = request.path, api.parts.db
    place = await db.read(
        find_place, path["workspace"], path["name"], query.attempt_id, query.step_id, query.task_id
    )
    first = after + 1 if after is not None else 0
    if after is None and query.tail is not None:
        newest, _total, _more = await db.read(logs.tail, place.attempt_id, place.filter, query.tail)
        first = newest[0].seq if newest else 0
    with api.streams.follow(place.job.id, place.attempt_id) as wake:
        follower = _Follower(db, api.parts.clock, api.streams, wake, place, first)
        if api.gate is not None:
            follower.may_go_on = partial(api.gate.holds, OPERATIONS[0], request)
        await follower.run(request.receive, request.send, request.extra_headers)


class _Follower:
    """One client that follows one log; `may_go_on` asks whether it is let in still."""

    may_go_on: Callable[[], Awaitable[bool]] | None = None

    def __init__(
        self, db: Database, clock: Clock, streams: Streams, wake: asyncio.Event, place: Place, first: int
    ) -> None:
        self._db, self._clock, self._streams, self._wake = db, clock, streams, wake
        self._place, self._next = place, first
        self._status = ""
        self._gone = False
        self._last_sent = clock.monotonic()

    async def run(self, receive: Receive, send: Send, extra: Sequence[Header]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *extra]})
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self._watch_client(receive))
            try:
                whole = await self._follow(send)
            finally:
                watcher.cancel()
        if whole and not self._gone:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._wake.set()

    async def _follow(self, send: Send) -> bool:
        """Send until there is no more to send; False for a reader that was dropped."""
        while not self._gone and not self._streams.closing:
            self._wake.clear()
            pause = self._streams.limits.heartbeat
            try:
                if self.may_go_on is not None and not await self.may_go_on():
                    return False  # who asks again is told why
                text, more, ended = await self._news()
            except Unavailable as error:
                text, more, ended = "", False, False
                pause = error.retry_after
            if text and not await self._sent(send, text):
                return False
            if ended:
                return True
            if not more and not await self._waited(send, pause):
                return False
        return True

    async def _news(self) -> tuple[str, bool, bool]:
        """What to send now, whether there is more, and whether that is the end."""
        try:
            shown, lines, more = await self._db.read(_read, self._place, self._next, BATCH)
        except NotFound:
            return _event("end", '{"status":null,"reason":null,"error_details":null}'), False, True
        frames = [f"id: {line.seq}\ndata: {line_text(line)}\n\n" for line in lines]
        if lines:
            self._next = lines[-1].seq + 1
        status = f'"status":"{shown.state}","reason":{why_text(shown)}'
        rests = State(shown.state) in RESTING
        if status != self._status and not (rests and more):
            # Who stops reading when the job rests has then read all that it printed.
            self._status = status
            frames.insert(len(frames) if rests else 0, _event("status", f"{{{status}}}"))
        ended = not more and State(shown.state) in TERMINAL
        if ended:
            frames.append(_event("end", f'{{{status},"error_details":{shown.error_details or "null"}}}'))
        return "".join(frames), more, ended

    async def _waited(self, send: Send, pause: float) -> bool:
        """Sleep until something may have changed; a sign of life when it is time for one."""
        try:
            async with asyncio.timeout(min(pause, self._until_heartbeat())):
                await self._wake.wait()
        except TimeoutError:
            pass  # the next look is due, wake-up or not
        if self._until_heartbeat() > 0:
            return True
        return await self._sent(send, ": heartbeat\n\n")

    def _until_heartbeat(self) -> float:
        return self._last_sent + self._streams.limits.heartbeat - self._clock.monotonic()

    async def _sent(self, send: Send, text: str) -> bool:
        """False when the reader did not take it in time."""
        try:
            async with asyncio.timeout(self._streams.limits.patience):
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        except TimeoutError:
            log.warning(
                "a reader of the log of job %s stopped reading and is dropped; its last id is where to go on",
                self._place.job.name,
            )
            return False
        self._last_sent = self._clock.monotonic()
        return True


def _read(
    tx: Tx, place: Place, first: int, limit: int
) -> tuple[JobRecord | AttemptRecord, list[LogLine], bool]:
    """What the log belongs to, and lines of the same moment, so that no line of what has ended is
    left behind. That is the job, or an attempt of it that is not the current one any more."""
    job = jobs.get_job(tx, place.job.workspace, place.job.id)
    current = place.attempt_id == job.attempt_id
    shown = job if current else attempts.by_id(tx, place.attempt_id)
    lines, _total, more = logs.page(tx, place.attempt_id, place.filter, first, limit, BATCH_SIZE)
    return shown, lines, more


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"


def _last_seen(request: Request, query: StreamQuery) -> int | None:
    text = request.header(b"last-event-id")
    if text is None or not text.strip():
        return query.after
    if not text.strip().isascii() or not text.strip().isdigit() or len(text.strip()) > 15:
        raise Refused(422, f"Last-Event-ID is {text[:50]!r}; it must be the id of a line, a whole number")
    return int(text)


OPERATIONS = (
    Operation(
        "GET",
        JOB + "/logs/stream",
        stream_logs,
        "Follow the log of a job",
        "EventStream",
        query="StreamQuery",
        errors=(400, 404, 422, 503),
        media="text/event-stream",
    ),
)

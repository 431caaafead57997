"""Following a job's log to its end, across broken connections, without a line lost or doubled.

    stream:  id: 41 | data: {"timestamp": …}      one event per line, numbered from 0
             ...                                  a comment as heartbeat
             event: end                           nothing more will come

A broken stream is opened again with the number of the last line that was handed out.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from nemo_jobs.client import JobsClient
from nemo_jobs.client.errors import BadAnswer, ClientError, ConnectionFailed, HttpError
from nemo_jobs.client.types import ENDED, LogLine

#: Answers after which trying again makes sense.
PASSING = frozenset({429, 502, 503, 504})
_LONGEST_PAUSE = 30.0


@dataclass(slots=True)
class Event:
    """One server-sent event."""

    kind: str = "message"
    data: str = ""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which lines of a job."""

    name: str
    workspace: str | None = None
    attempt_id: int | str | None = None
    step_id: str | None = None
    task_id: str | None = None

    def filters(self) -> dict[str, Any]:
        return {
            "workspace": self.workspace,
            "attempt_id": self.attempt_id,
            "step_id": self.step_id,
            "task_id": self.task_id,
        }


@dataclass(slots=True)
class Backoff:
    """Growing pauses after failures that pass; a success starts again from the shortest."""

    first: float = 1.0
    _next: float = field(default=0.0)

    def grow(self) -> float:
        pause = max(self._next, self.first)
        self._next = min(pause * 2, _LONGEST_PAUSE)
        return min(pause, _LONGEST_PAUSE)

    def reset(self) -> None:
        self._next = 0.0


def is_passing(error: ClientError) -> bool:
    """Whether the same request may work in a while."""
    if isinstance(error, HttpError):
        return error.status in PASSING
    return isinstance(error, ConnectionFailed)


def parse_events(lines: Iterable[str]) -> Iterator[Event]:
    """The events of an event stream; comments and unknown fields are left out."""
    event, data = Event(), list[str]()
    for line in lines:
        if not line:
            if data or event.kind != "message":
                event.data = "\n".join(data)
                yield event
            event, data = Event(), []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            event.kind = value
        elif name == "id":
            event.id = value


def follow_logs(
    client: JobsClient,
    which: Selection,
    *,
    tail: int | None = None,
    warn: Callable[[str], None] = lambda text: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[LogLine]:
    """Every line from the first one (or the newest `tail`) on, until the attempt has ended.

    A connection that breaks is opened again for as long as it takes, with one warning per
    outage; the caller sets the deadline. Other errors are raised.
    """
    last: str | None = None
    backoff, ended, warned = Backoff(), False, False
    while True:
        fresh = False
        try:
            for event in parse_events(_open(client, which, last, tail)):
                if event.kind == "end":
                    return
                last = event.id or last
                fresh, warned = True, False
                backoff.reset()
                if event.kind == "message":
                    yield from _lines(event)
            if ended and not fresh:
                return
            ended = client.get_job_status(which.name, workspace=which.workspace)["status"] in ENDED
            if not fresh:
                sleep(backoff.grow())
        except ClientError as error:
            if not is_passing(error):
                raise
            if not warned:
                warn(f"{error}; trying again")
            warned = True
            sleep(backoff.grow())


def _open(client: JobsClient, which: Selection, last: str | None, tail: int | None) -> Iterator[str]:
    if last is not None:
        tail = None
    return client.stream_job_logs(which.name, last_event_id=last, tail=tail, **which.filters())


def _lines(event: Event) -> list[LogLine]:
    try:
        payload = json.loads(event.data) if event.data else []
    except ValueError as error:
        raise BadAnswer("the log stream sent something that isn't JSON") from error
    items = payload if isinstance(payload, list) else [payload]
    return [cast(LogLine, item) for item in items if isinstance(item, dict) and "message" in item]

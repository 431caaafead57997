"""Following a job's log to its end, across broken connections, without a line lost or doubled.

    stream:  id: 41 | data: {"timestamp": …}      one event per line, numbered from 0
             ...                                  a comment as heartbeat
             event: end                           nothing more will come

A broken stream is opened again with the number of the last line that was handed out.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from nemo_jobs.client.errors import BadAnswer, ClientError
from nemo_jobs.client.sync import JobsClient
from nemo_jobs.client.types import ENDED, LogLine
from nemo_jobs.client.waiting import PASSING, Backoff, is_passing

__all__ = [
    "PASSING",
    "Backoff",
    "Event",
    "EventReader",
    "Selection",
    "follow_logs",
    "is_passing",
    "parse_events",
]


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


class EventReader:
    """Makes events of the lines of a stream; comments and unknown fields are left out."""

    def __init__(self) -> None:
        self._event, self._data = Event(), list[str]()

    def feed(self, line: str) -> Event | None:
        """Take a line; the event that it completes, if it does."""
        if not line:
            event, data = self._event, self._data
            self._event, self._data = Event(), []
            if not data and event.kind == "message":
                return None
            event.data = "\n".join(data)
            return event
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event.kind = value
        elif name == "id":
            self._event.id = value
        return None


def parse_events(lines: Iterable[str]) -> Iterator[Event]:
    """The events of an event stream."""
    reader = EventReader()
    for line in lines:
        event = reader.feed(line)
        if event is not None:
            yield event


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
                    yield from lines_of(event)
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


def lines_of(event: Event) -> list[LogLine]:
    """The log lines that an event carries. Raises `BadAnswer`."""
    try:
        payload = json.loads(event.data) if event.data else []
    except (ValueError, RecursionError) as error:
        raise BadAnswer("the log stream sent something that isn't JSON") from error
    items = payload if isinstance(payload, list) else [payload]
    return [cast(LogLine, item) for item in items if isinstance(item, dict) and "message" in item]

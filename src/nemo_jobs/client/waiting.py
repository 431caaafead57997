"""Waiting for a job's end, and running a command as a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nemo_jobs.client.ask import Ask, Flow, Pause, Step, Steps, Walk
from nemo_jobs.client.calls import Calls, job_body, new_key
from nemo_jobs.client.errors import ClientError, ConnectionFailed, HttpError, JobFailed, WaitExpired

if TYPE_CHECKING:
    from nemo_jobs.client.types import Job, JobStatus, Json

#: Answers after which trying again makes sense.
PASSING = frozenset({429, 502, 503, 504})
#: Ends of a wait: `paused` needs a person, so waiting on makes no sense.
STOPS = frozenset({"completed", "error", "cancelled", "paused"})
LONGEST_PAUSE = 30.0
_FIRST_PAUSE = 0.1


class Backoff:
    """Growing pauses after failures that pass; a success starts again from the shortest."""

    __slots__ = ("_next", "first")

    def __init__(self, first: float = 1.0) -> None:
        self.first = first
        self._next = 0.0

    def grow(self) -> float:
        pause = max(self._next, self.first)
        self._next = min(pause * 2, LONGEST_PAUSE)
        return min(pause, LONGEST_PAUSE)

    def reset(self) -> None:
        self._next = 0.0


def is_passing(error: ClientError) -> bool:
    """Whether the same request may work in a while."""
    if isinstance(error, HttpError):
        return error.status in PASSING
    return isinstance(error, ConnectionFailed)


class WaitCalls(Calls):
    """Calls that last as long as a job does."""

    clock: Callable[[], float] = staticmethod(time.monotonic)

    @Flow
    def wait(
        self,
        name: str,
        *,
        workspace: str | None = None,
        timeout: float | None = None,
        poll: float = 3.0,
        check: bool = False,
    ) -> Steps[Job]:
        """Wait until a job has ended, or is paused; the job as it is then.

        Looks are a tenth of a second apart at first and `poll` seconds later. Outages of the
        service are waited out. Raises `WaitExpired` after `timeout` seconds, and with `check`
        `JobFailed` when the job has not completed.
        """
        id = yield from self._states(name, workspace, timeout, poll)
        job: Job = yield Ask("GET", self._jobs(workspace, id))
        if check:
            check_completed(job)
        return job

    @Walk
    def watch_job(
        self,
        name: str,
        *,
        workspace: str | None = None,
        timeout: float | None = None,
        poll: float = 3.0,
    ) -> Steps[JobStatus]:
        """The status tree of a job each time that it has changed, up to the one in which it ended."""
        return self._states(name, workspace, timeout, poll)

    @Flow
    def run(
        self,
        /,
        command: Sequence[str],
        *,
        name: str | None = None,
        profile: str = "default",
        env: Mapping[str, str] | None = None,
        source: str = "python",
        spec: Json | None = None,
        labels: Mapping[str, str] | None = None,
        workspace: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
        poll: float = 3.0,
        check: bool = False,
        **fields: Any,
    ) -> Steps[Job]:
        """Run a command as a job of one step on the service's host, and wait for its end.

        The arguments reach the program as they are: no shell reads them. With `wait` off the new
        job is given back at once. `timeout`, `poll` and `check` as for `wait`; after `WaitExpired`
        the job goes on.
        """
        if isinstance(command, str):
            raise TypeError("command must be a list of words, like ['echo', 'hello']")
        step: dict[str, Any] = {
            "name": "run",
            "executor": {"provider": "subprocess", "profile": profile, "command": [*command]},
        }
        if env:
            step["environment"] = [{"name": key, "value": value} for key, value in env.items()]
        body = job_body(source, {"steps": [step]}, spec or {}, name, labels, fields)
        job: Job = yield Ask("POST", self._jobs(workspace), body=body, key=new_key())
        if wait:
            id = yield from self._states(job["name"], workspace, timeout, poll, id=job["id"])
            job = yield Ask("GET", self._jobs(workspace, id))
            if check:
                check_completed(job)
        return job

    def _states(
        self, name: str, workspace: str | None, timeout: float | None, poll: float, *, id: str = ""
    ) -> Generator[Step, Any, Any]:
        """Look until the job stops; its id. Looks after the first go by the id: a job of the same
        name that takes its place meanwhile is another job."""
        deadline = None if timeout is None else self.clock() + timeout
        backoff, pause, last = Backoff(max(poll, 1.0)), min(_FIRST_PAUSE, poll), None
        while True:
            try:
                tree = yield Ask("GET", self._jobs(workspace, id or name, "status"))
            except ClientError as error:
                if not is_passing(error):
                    raise
                rest = backoff.grow()
            else:
                backoff.reset()
                id = tree["id"]
                if tree != last:
                    last = tree
                    yield [tree]
                if tree["status"] in STOPS:
                    return id
                rest, pause = pause, min(pause * 1.5, poll)
            if deadline is not None:
                left = deadline - self.clock()
                if left <= 0:
                    raise WaitExpired(f"job '{name}' hasn't ended within {timeout:g} s; it goes on")
                rest = min(rest, left)
            yield Pause(rest)


def check_completed(job: Job) -> None:
    """Raise `JobFailed` unless the job has completed."""
    if job["status"] == "completed":
        return
    details = job.get("error_details") or {}
    why = details.get("message")
    raise JobFailed(f"job '{job['name']}': {job['status']}" + (f": {why}" if why else ""), job)

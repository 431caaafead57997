"""Waiting for a job's end by asking again and again, as clients of this interface do.

Each look asks for the status and, when the log is wanted, for the pages from the last known
cursor on. Failures that pass are warned about once and waited out.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nemo_jobs.cli.jobs_tail import line_printer
from nemo_jobs.cli.progress import Progress, closing, make_progress
from nemo_jobs.cli.session import CommandError, Session
from nemo_jobs.client import ClientError, HttpError, JobsClient, NotFound, Retry, Unprocessable
from nemo_jobs.client.follow import Backoff, Selection, is_passing
from nemo_jobs.client.types import ENDED

#: Ends of a watch: `paused` needs a person, so waiting on makes no sense.
STOPS = ENDED | {"paused"}
_LOG_TRIES_AFTER_END = 3
_FIRST_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class Watch:
    """What to watch and for how long. Pauses grow from a tenth of a second to `poll`."""

    name: str
    poll: float = 3.0
    timeout: float | None = None
    logs: bool = True
    limit: int | None = None
    history: bool = True
    attempt_id: int | str | None = None
    step_id: str | None = None
    task_id: str | None = None


class LogWalk:
    """Reads the log onwards. A page is read again at each look, because lines are added behind
    the ones it had; those already handed out are recognised and left out."""

    def __init__(self, client: JobsClient, which: Selection, limit: int | None) -> None:
        self._client = client
        self._which = which
        self._limit = limit
        self._cursor: str | None = None
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._total = 0
        self._skip = 0

    def lines(self) -> Iterator[Any]:
        """The lines that have come since the last call."""
        while True:
            try:
                page = self._page()
            except Unprocessable as error:
                if not _is_bad_cursor(error) or self._cursor is None:
                    raise
                self._restart()
                page = self._page()
            yield from self._new(page["data"])
            following = page["next_page"]
            if following is None or following == self._cursor:
                return
            self._cursor = following
            self._seen.clear()

    def _page(self) -> Any:
        which = self._which
        return self._client.list_job_logs(
            which.name, limit=self._limit, page_cursor=self._cursor, **which.filters()
        )

    def _restart(self) -> None:
        """From the beginning, past as many lines as were handed out: their order never changes."""
        self._cursor, self._skip = None, self._total
        self._seen.clear()

    def _new(self, lines: list[Any]) -> Iterator[Any]:
        occurrences: Counter[tuple[str, ...]] = Counter()
        for line in lines:
            key = (line["timestamp"], line["job_step"], line["job_task"], line["message"])
            occurrences[key] += 1
            if occurrences[key] <= self._seen[key]:
                continue
            self._seen[key] = occurrences[key]
            if self._skip:
                self._skip -= 1
                continue
            self._total += 1
            yield line


def watch_to_end(session: Session, plan: Watch, *, lines_to_stdout: bool) -> int:
    """Watch with progress on stderr; the exit code says how the job ended."""
    if session.prints_code:
        which = {"attempt_id": plan.attempt_id, "step_id": plan.step_id, "task_id": plan.task_id}
        if plan.logs:
            session.ask("follow_logs", plan.name, **which)
        session.ask("wait", plan.name, timeout=plan.timeout)
    place = session.name_hint(plan.name)
    session.hint = f"the job goes on; come back with: nemo jobs watch {place}"
    progress = make_progress(session, lines_to_stdout=lines_to_stdout)
    client = session.client(Retry(repeats=0))
    client.transport.timeout = min(client.transport.timeout, plan.timeout or client.transport.timeout)
    watcher = Watcher(client, plan, progress, line_printer(session))
    try:
        tree = watcher.run()
    except NotFound as error:
        raise CommandError(f"not found (404): {error}") from error
    finally:
        progress.close()
    if tree is None:
        raise CommandError(f"'{plan.name}' hasn't ended within {plan.timeout:g} s; it goes on")
    session.hint = ""
    session.note(closing(tree))
    if tree["status"] == "paused":
        session.note(f"go on with: nemo jobs resume {place}")
    return 0 if tree["status"] == "completed" else 1


class Watcher:
    """The loop itself; time comes in as functions."""

    def __init__(
        self,
        client: JobsClient,
        plan: Watch,
        progress: Progress,
        show: Callable[[Any], str],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        which = Selection(plan.name, None, plan.attempt_id, plan.step_id, plan.task_id)
        self._client, self._plan, self._progress, self._show = client, plan, progress, show
        self._clock, self._sleep = clock, sleep
        self._walk = LogWalk(client, which, plan.limit or 1000)
        self._silent = not plan.history
        self._started = clock()
        self._backoff = Backoff(first=max(plan.poll, 1.0))
        self._pause = min(_FIRST_PAUSE, plan.poll)
        self._warned = False

    def run(self) -> Any:
        """The status tree at the job's end; None when the time is up. Raises what doesn't pass."""
        failures = 0
        while True:
            tree = self._attempt(lambda: self._client.get_job_status(self._plan.name))
            logs_read = True
            if tree is not None:
                self._progress.tree(tree)
                logs_read = self._read_logs()
                if tree["status"] in STOPS:
                    failures += 0 if logs_read else 1
                    if logs_read or failures >= _LOG_TRIES_AFTER_END:
                        return tree
            if not self._rest(failed=tree is None or not logs_read):
                return None

    def _read_logs(self) -> bool:
        """Print new lines; False when the log can't be read now."""
        if not self._plan.logs:
            return True
        try:
            for line in self._walk.lines():
                if not self._silent:
                    self._progress.line(self._show(line))
        except ClientError as error:
            if not isinstance(error, HttpError) and not is_passing(error):
                raise
            self._warn(error)
            return False
        self._silent = False
        return True

    def _attempt(self, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except ClientError as error:
            if not is_passing(error):
                raise
            self._warn(error)
            return None
        return answer

    def _warn(self, error: ClientError) -> None:
        if not self._warned:
            self._progress.note(f"warning: {error}; trying again")
        self._warned = True

    def _rest(self, *, failed: bool) -> bool:
        """Pause; False when the time is up."""
        if failed:
            pause = self._backoff.grow()
        else:
            self._backoff.reset()
            self._warned = False
            pause, self._pause = self._pause, min(self._pause * 1.5, self._plan.poll)
        if self._plan.timeout is not None:
            left = self._plan.timeout - (self._clock() - self._started)
            if left <= 0:
                return False
            pause = min(pause, left)
        self._sleep(pause)
        return True


def _is_bad_cursor(error: Unprocessable) -> bool:
    return error.code == "invalid_page_cursor" or error.detail == "Invalid page cursor"

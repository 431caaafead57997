"""The async client: the same calls, awaited."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from nemo_jobs.client import groups
from nemo_jobs.client.aio_transfer import AsyncDownload, AsyncSource
from nemo_jobs.client.aio_transport import AsyncTransport
from nemo_jobs.client.ask import Ask, Async, End, Outcome, Pause, Steps, advanced
from nemo_jobs.client.errors import ClientError
from nemo_jobs.client.follow import Event, EventReader, lines_of
from nemo_jobs.client.retry import Retry
from nemo_jobs.client.sync import AllCalls
from nemo_jobs.client.transfer import Source
from nemo_jobs.client.types import ENDED
from nemo_jobs.client.waiting import Backoff, is_passing

if TYPE_CHECKING:
    from nemo_jobs.client.types import LogLine

T = TypeVar("T")
_NOTHING: Outcome = (None, None)


class AsyncJobsClient(AllCalls, Async):
    """Calls the service at a base URL (`http://…`, `https://…` or `unix:///…`) from an event loop.

    Any number of tasks may share a client; 64 requests are under way at one time. Requests that
    fail for a passing reason are repeated at most twice. A cancelled call closes its connection.
    `timeout` is how many seconds the service may stay silent. Raises `BadAddress`; the calls raise
    `ClientError` and its kinds.
    """

    def __init__(
        self,
        base_url: str = "http://localhost:8080",
        *,
        workspace: str = "default",
        token: str | None = None,
        timeout: float = 60.0,
        ca_file: str | None = None,
        retry: Retry | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        self.transport = transport or AsyncTransport(
            base_url, token=token, timeout=timeout, ca_file=ca_file, retry=retry
        )
        self.workspace = workspace

    @property
    def results(self) -> groups.AsyncResults:
        """Results, in the older spelling."""
        return groups.AsyncResults(self, self.workspace)

    @property
    def steps(self) -> groups.AsyncSteps:
        """Steps, in the older spelling."""
        return groups.AsyncSteps(self, self.workspace)

    @property
    def tasks(self) -> groups.AsyncTasks:
        """Tasks, in the older spelling."""
        return groups.AsyncTasks(self, self.workspace)

    @property
    def attempts(self) -> groups.AsyncAttempts:
        """Attempts, grouped the same way."""
        return groups.AsyncAttempts(self, self.workspace)

    @property
    def workspaces(self) -> groups.AsyncWorkspaces:
        """Workspaces, grouped the same way."""
        return groups.AsyncWorkspaces(self, self.workspace)

    @property
    def projects(self) -> groups.AsyncProjects:
        """Projects, grouped the same way."""
        return groups.AsyncProjects(self, self.workspace)

    @property
    def secrets(self) -> groups.AsyncSecrets:
        """Secrets, grouped the same way."""
        return groups.AsyncSecrets(self, self.workspace)

    @property
    def filesets(self) -> groups.AsyncFilesets:
        """Filesets, grouped the same way."""
        return groups.AsyncFilesets(self, self.workspace)

    async def follow_logs(
        self,
        name: str,
        *,
        workspace: str | None = None,
        tail: int | None = None,
        attempt_id: int | str | None = None,
        step_id: str | None = None,
        task_id: str | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> AsyncIterator[LogLine]:
        """Every line from the first one (or the newest `tail`) on, as it is written, until the
        attempt has ended. Broken connections are opened again without a line lost or doubled;
        `warn` is told once an outage."""
        which = [("attempt_id", attempt_id), ("step_id", step_id), ("task_id", task_id)]
        path = self._jobs(workspace, name, "logs", "stream")
        last: str | None = None
        backoff, ended, warned, fresh = Backoff(), False, False, False
        while True:
            try:
                async with aclosing(self._events(path, which, last, tail)) as events:
                    async for event in events:
                        if event.kind == "end":
                            return
                        last = event.id or last
                        fresh, warned = True, False
                        backoff.reset()
                        for line in lines_of(event) if event.kind == "message" else ():
                            yield line
                if ended and not fresh:
                    return
                ended = (await self.get_job_status(name, workspace=workspace))["status"] in ENDED
                rest, fresh = 0.0 if fresh else backoff.grow(), False
            except ClientError as error:
                if not is_passing(error):
                    raise
                if not warned:
                    warn(f"{error}; trying again")
                warned, fresh, rest = True, False, backoff.grow()
            await self.transport.sleep(rest)

    async def _events(
        self, path: str, which: list[tuple[str, Any]], last: str | None, tail: int | None
    ) -> AsyncGenerator[Event, None]:
        """The events of a stream, from the line behind `last` on."""
        headers = {"last-event-id": last} if last is not None else {}
        query = [*which, ("tail", tail if last is None else None)]
        reader = EventReader()
        async with aclosing(self.transport.stream(path, query=query, headers=headers)) as lines:
            async for text in lines:
                event = reader.feed(text)
                if event is not None:
                    yield event

    async def send(self, ask: Ask[T]) -> T:
        """Send one request; the base of all calls. Raises `ClientError`."""
        transport = self.transport
        if isinstance(ask.body, Source):
            source = AsyncSource(ask.body)
            answer = await transport.upload(
                ask.method, ask.path, source, query=ask.query, headers=ask.headers
            )
        else:
            answer = await transport.call(
                ask.method, ask.path, query=ask.query, body=ask.body, headers=ask.headers
            )
        return ask.checked(answer)

    async def fetch(self, ask: Ask[Any]) -> AsyncDownload:
        """Open content for reading; the base of all downloads."""
        return await self.transport.download(ask.path, query=ask.query, headers=ask.headers)

    async def walk_steps(self, steps: Steps[Any]) -> AsyncIterator[Any]:
        """Carry out what the steps ask for, and hand out their items."""
        outcome = _NOTHING
        try:
            while True:
                step = advanced(steps, outcome)
                if isinstance(step, End):
                    return
                if isinstance(step, list):
                    outcome = _NOTHING
                    for item in step:
                        yield item
                else:
                    outcome = await self._carried_out(step)
        finally:
            steps.close()

    async def run_steps(self, steps: Steps[T]) -> T:
        """Carry out what the steps ask for; their result."""
        outcome = _NOTHING
        try:
            while True:
                step = advanced(steps, outcome)
                if isinstance(step, End):
                    result: T = step.value
                    return result
                outcome = await self._carried_out(step)
        finally:
            steps.close()

    async def _carried_out(self, step: Any) -> Outcome:
        if isinstance(step, Ask):
            try:
                return await self.send(step), None
            except ClientError as error:
                return None, error
        if isinstance(step, Pause):
            await self.transport.sleep(step.seconds)
        return _NOTHING

    async def aclose(self) -> None:
        """Close the connections."""
        await self.transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

"""The sync client: how calls, flows and walks are carried out one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from nemo_jobs.client.ask import Ask, End, Outcome, Pause, Steps, Sync, advanced
from nemo_jobs.client.calls import ActCalls, BulkCalls, JobCalls, StatusCalls
from nemo_jobs.client.calls_gpus import GpuCalls
from nemo_jobs.client.calls_platform import ProjectCalls, SecretCalls, ServiceCalls, WorkspaceCalls
from nemo_jobs.client.calls_results import ResultCalls
from nemo_jobs.client.calls_steps import AttemptCalls, StepCalls
from nemo_jobs.client.calls_tokens import TokenCalls
from nemo_jobs.client.errors import ClientError
from nemo_jobs.client.retry import Retry
from nemo_jobs.client.transfer import Download, Source
from nemo_jobs.client.transport import Transport
from nemo_jobs.client.waiting import WaitCalls

if TYPE_CHECKING:
    from nemo_jobs.client import groups
    from nemo_jobs.client.types import LogLine

T = TypeVar("T")
_NOTHING: Outcome = (None, None)


class OlderSpelling(JobCalls, ActCalls, StatusCalls):
    """The calls on jobs by their older names."""

    create = JobCalls.create_job
    retrieve = JobCalls.get_job
    list = JobCalls.list_jobs
    update = JobCalls.update_job
    delete = ActCalls.delete_job
    cancel = ActCalls.cancel_job
    pause = ActCalls.pause_job
    resume = ActCalls.resume_job
    rerun = ActCalls.rerun_job
    list_execution_profiles = JobCalls.get_execution_profiles
    get_status = StatusCalls.get_job_status
    get_logs = StatusCalls.list_job_logs
    update_status_details = StatusCalls.update_job_status_details


class AllCalls(
    OlderSpelling,
    JobCalls,
    ActCalls,
    BulkCalls,
    StatusCalls,
    AttemptCalls,
    StepCalls,
    ResultCalls,
    WorkspaceCalls,
    ProjectCalls,
    SecretCalls,
    TokenCalls,
    GpuCalls,
    ServiceCalls,
    WaitCalls,
):
    """Every call."""


class JobsClient(AllCalls, Sync):
    """Calls the service at a base URL (`http://…`, `https://…` or `unix:///…`).

    A few connections are kept between calls, and threads may share a client. Requests that fail
    for a passing reason are repeated at most twice. `timeout` is how many seconds the service may
    stay silent. Raises `BadAddress`; the calls raise `ClientError` and its kinds.
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
        transport: Transport | None = None,
    ) -> None:
        self.transport = transport or Transport(
            base_url, token=token, timeout=timeout, ca_file=ca_file, retry=retry
        )
        self.workspace = workspace

    @property
    def results(self) -> groups.Results:
        """Results, in the older spelling."""
        from nemo_jobs.client.groups import Results

        return Results(self, self.workspace)

    @property
    def steps(self) -> groups.Steps:
        """Steps, in the older spelling."""
        from nemo_jobs.client.groups import Steps

        return Steps(self, self.workspace)

    @property
    def tasks(self) -> groups.Tasks:
        """Tasks, in the older spelling."""
        from nemo_jobs.client.groups import Tasks

        return Tasks(self, self.workspace)

    @property
    def attempts(self) -> groups.Attempts:
        """Attempts, grouped the same way."""
        from nemo_jobs.client.groups import Attempts

        return Attempts(self, self.workspace)

    @property
    def workspaces(self) -> groups.Workspaces:
        """Workspaces, grouped the same way."""
        from nemo_jobs.client.groups import Workspaces

        return Workspaces(self, self.workspace)

    @property
    def projects(self) -> groups.Projects:
        """Projects, grouped the same way."""
        from nemo_jobs.client.groups import Projects

        return Projects(self, self.workspace)

    @property
    def secrets(self) -> groups.Secrets:
        """Secrets, grouped the same way."""
        from nemo_jobs.client.groups import Secrets

        return Secrets(self, self.workspace)

    @property
    def filesets(self) -> groups.Filesets:
        """Filesets, grouped the same way."""
        from nemo_jobs.client.groups import Filesets

        return Filesets(self, self.workspace)

    def stream_job_logs(
        self,
        name: str,
        *,
        workspace: str | None = None,
        last_event_id: str | None = None,
        tail: int | None = None,
        attempt_id: int | str | None = None,
        step_id: str | None = None,
        task_id: str | None = None,
    ) -> Iterator[str]:
        """The lines of the event stream of a job's log; `follow_logs` makes log lines of them."""
        query = [("tail", tail), ("attempt_id", attempt_id), ("step_id", step_id), ("task_id", task_id)]
        headers = {"last-event-id": last_event_id} if last_event_id is not None else {}
        path = self._jobs(workspace, name, "logs", "stream")
        return self.transport.stream(path, query=query, headers=headers)

    def follow_logs(
        self,
        name: str,
        *,
        workspace: str | None = None,
        tail: int | None = None,
        attempt_id: int | str | None = None,
        step_id: str | None = None,
        task_id: str | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> Iterator[LogLine]:
        """Every line from the first one (or the newest `tail`) on, as it is written, until the
        attempt has ended. Broken connections are opened again without a line lost or doubled;
        `warn` is told once an outage."""
        from nemo_jobs.client.follow import Selection, follow_logs

        which = Selection(name, workspace, attempt_id, step_id, task_id)
        return follow_logs(self, which, tail=tail, warn=warn, sleep=self.transport.retry.sleep)

    def send(self, ask: Ask[T]) -> T:
        """Send one request; the base of all calls. Raises `ClientError`."""
        if isinstance(ask.body, Source):
            answer = self.transport.upload(
                ask.method, ask.path, ask.body, query=ask.query, headers=ask.headers
            )
        else:
            answer = self.transport.call(
                ask.method, ask.path, query=ask.query, body=ask.body, headers=ask.headers
            )
        return ask.checked(answer)

    def fetch(self, ask: Ask[Any]) -> Download:
        """Open content for reading; the base of all downloads."""
        return self.transport.download(ask.path, query=ask.query, headers=ask.headers)

    def walk_steps(self, steps: Steps[Any]) -> Iterator[Any]:
        """Carry out what the steps ask for, and hand out their items."""
        outcome = _NOTHING
        try:
            while True:
                step = advanced(steps, outcome)
                if isinstance(step, End):
                    return
                if isinstance(step, list):
                    outcome = _NOTHING
                    yield from step
                else:
                    outcome = self._carried_out(step)
        finally:
            steps.close()

    def run_steps(self, steps: Steps[T]) -> T:
        """Carry out what the steps ask for; their result."""
        outcome = _NOTHING
        try:
            while True:
                step = advanced(steps, outcome)
                if isinstance(step, End):
                    result: T = step.value
                    return result
                outcome = self._carried_out(step)
        finally:
            steps.close()

    def _carried_out(self, step: Any) -> Outcome:
        if isinstance(step, Ask):
            try:
                return self.send(step), None
            except ClientError as error:
                return None, error
        if isinstance(step, Pause):
            self.transport.retry.sleep(step.seconds)
        return _NOTHING

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

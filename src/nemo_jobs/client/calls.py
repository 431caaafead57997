"""One method for each route, by subject. `JobsClient` joins them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nemo_jobs.client.connection import quote
from nemo_jobs.client.errors import BadAnswer
from nemo_jobs.client.transport import Query, Transport

if TYPE_CHECKING:
    from nemo_jobs.client.types import (
        ExecutionProfile,
        Job,
        JobPage,
        JobStatus,
        Json,
        LogPage,
        Step,
        StepPage,
        Task,
        TaskList,
        Workspace,
        WorkspacePage,
    )

_JOBS = "/apis/jobs/v2"
_WORKSPACES = "/apis/entities/v2/workspaces"


class Calls:
    """What all groups of calls share: where to send, and the workspace when none is given."""

    def __init__(self, transport: Transport, workspace: str) -> None:
        self.transport = transport
        self.workspace = workspace

    def _jobs(self, workspace: str | None, *segments: str) -> str:
        parts = [workspace or self.workspace, "jobs", *segments]
        if "" in parts:
            raise ValueError("a name is empty")
        return f"{_JOBS}/workspaces/" + "/".join(quote(part) for part in parts)

    def _ask(self, method: str, path: str, *, query: Query = (), body: Any = None, kind: type = dict) -> Any:
        answer = self.transport.call(method, path, query=query, body=body)
        if not isinstance(answer, kind):
            raise BadAnswer(f"{method} {path} was answered with {type(answer).__name__}, not {kind.__name__}")
        return answer


class JobCalls(Calls):
    """Jobs as a whole."""

    def create_job(
        self,
        *,
        source: str,
        platform_spec: Json,
        spec: Json,
        name: str | None = None,
        workspace: str | None = None,
        **fields: Any,
    ) -> Job:
        """Create a job. Give a name (see `nemo_jobs.domain.names.generated_job_name`) when the
        call may be repeated: a second job of the same name is refused."""
        body = {"name": name, "source": source, "spec": spec, "platform_spec": platform_spec, **fields}
        body = {key: value for key, value in body.items() if value is not None}
        answer: Job = self._ask("POST", self._jobs(workspace), body=body)
        return answer

    def get_job(self, name: str, *, workspace: str | None = None) -> Job:
        """One job, by name or id."""
        answer: Job = self._ask("GET", self._jobs(workspace, name))
        return answer

    def list_jobs(
        self,
        *,
        workspace: str | None = None,
        page: int | None = None,
        page_size: int | None = None,
        sort: str | None = None,
        filter: str | Json | None = None,
    ) -> JobPage:
        """One page of jobs, the newest first unless sorted otherwise."""
        query = [("page", page), ("page_size", page_size), ("sort", sort), ("filter", filter)]
        answer: JobPage = self._ask("GET", self._jobs(workspace), query=query)
        return answer

    def delete_job(self, name: str, *, workspace: str | None = None) -> None:
        """Delete an ended job with its logs and storage."""
        self.transport.call("DELETE", self._jobs(workspace, name))

    def cancel_job(self, name: str, *, workspace: str | None = None) -> Job:
        """Ask the job to end. It is `cancelled` when nothing of it runs any more."""
        return self._trigger(name, "cancel", workspace)

    def pause_job(self, name: str, *, workspace: str | None = None) -> Job:
        """Stop the work so that it can be resumed."""
        return self._trigger(name, "pause", workspace)

    def resume_job(self, name: str, *, workspace: str | None = None) -> Job:
        """Start a paused job's step again."""
        return self._trigger(name, "resume", workspace)

    def _trigger(self, name: str, verb: str, workspace: str | None) -> Job:
        answer: Job = self._ask("POST", self._jobs(workspace, name, verb))
        return answer


class StatusCalls(Calls):
    """How a job is doing: its tree of states, its progress, its output."""

    def get_job_status(self, name: str, *, workspace: str | None = None) -> JobStatus:
        """The states of a job, its steps and their tasks."""
        answer: JobStatus = self._ask("GET", self._jobs(workspace, name, "status"))
        return answer

    def update_job_status_details(self, name: str, details: Json, *, workspace: str | None = None) -> None:
        """Merge `details` into the job's status_details."""
        self.transport.call("PATCH", self._jobs(workspace, name, "status-details"), body=details)

    def list_job_logs(
        self,
        name: str,
        *,
        workspace: str | None = None,
        limit: int | None = None,
        page_cursor: str | None = None,
        tail: int | None = None,
        attempt_id: int | str | None = None,
        step_id: str | None = None,
        task_id: str | None = None,
    ) -> LogPage:
        """One page of log lines, oldest first."""
        query = [
            ("limit", limit),
            ("page_cursor", page_cursor),
            ("tail", tail),
            ("attempt_id", attempt_id),
            ("step_id", step_id),
            ("task_id", task_id),
        ]
        answer: LogPage = self._ask("GET", self._jobs(workspace, name, "logs"), query=query)
        return answer

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
        """The lines of the event stream of a job's log; `nemo_jobs.client.follow` reads them."""
        query = [("tail", tail), ("attempt_id", attempt_id), ("step_id", step_id), ("task_id", task_id)]
        headers = {"last-event-id": last_event_id} if last_event_id is not None else {}
        path = self._jobs(workspace, name, "logs", "stream")
        return self.transport.stream(path, query=query, headers=headers)


class StepCalls(Calls):
    """Steps and tasks."""

    def list_steps(
        self,
        job: str,
        *,
        workspace: str | None = None,
        page: int | None = None,
        page_size: int | None = None,
        sort: str | None = None,
        filter: Json | str | None = None,
    ) -> StepPage:
        """One page of the steps of a job; `-` stands for all jobs, or for all workspaces."""
        query = [("page", page), ("page_size", page_size), ("sort", sort), ("filter", filter)]
        answer: StepPage = self._ask("GET", self._jobs(workspace, job, "steps"), query=query)
        return answer

    def get_job_step(self, name: str, *, job: str, workspace: str | None = None) -> Step:
        """One step of the current attempt."""
        answer: Step = self._ask("GET", self._jobs(workspace, job, "steps", name))
        return answer

    def list_job_step_tasks(self, step: str, *, job: str, workspace: str | None = None) -> TaskList:
        """All tasks of a step."""
        answer: TaskList = self._ask("GET", self._jobs(workspace, job, "steps", step, "tasks"))
        return answer

    def get_job_step_task(self, name: str, *, job: str, step: str, workspace: str | None = None) -> Task:
        """One task."""
        answer: Task = self._ask("GET", self._jobs(workspace, job, "steps", step, "tasks", name))
        return answer


class PlatformCalls(Calls):
    """Profiles and workspaces."""

    def get_execution_profiles(self) -> list[ExecutionProfile]:
        """Where steps can run."""
        answer: list[ExecutionProfile] = self._ask("GET", f"{_JOBS}/execution-profiles", kind=list)
        return answer

    def list_workspaces(
        self, *, page: int | None = None, page_size: int | None = None, sort: str | None = None
    ) -> WorkspacePage:
        """One page of workspaces."""
        query = [("page", page), ("page_size", page_size), ("sort", sort)]
        answer: WorkspacePage = self._ask("GET", _WORKSPACES, query=query)
        return answer

    def get_workspace(self, name: str) -> Workspace:
        """One workspace."""
        answer: Workspace = self._ask("GET", f"{_WORKSPACES}/{quote(name)}")
        return answer

    def create_workspace(self, name: str, *, description: str | None = None) -> Workspace:
        """Create a workspace."""
        body = {"name": name} | ({"description": description} if description is not None else {})
        answer: Workspace = self._ask("POST", _WORKSPACES, body=body)
        return answer

    def delete_workspace(self, name: str) -> Json:
        """Delete a workspace that holds nothing."""
        answer: Json = self._ask("DELETE", f"{_WORKSPACES}/{quote(name)}")
        return answer

"""Attempts, steps and tasks. `attempt_id` is an attempt's id or `current`; none: the current one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nemo_jobs.client.ask import Ask, Call, Steps, Walk
from nemo_jobs.client.calls import Calls, given
from nemo_jobs.client.paging import by_number

if TYPE_CHECKING:
    from nemo_jobs.client.types import (
        Attempt,
        AttemptPage,
        Json,
        Status,
        Step,
        StepPage,
        StepWithContext,
        Task,
        TaskList,
    )


class AttemptCalls(Calls):
    """The runs of a job."""

    @Call
    def list_job_attempts(
        self,
        job: str,
        *,
        workspace: str | None = None,
        page: int | None = None,
        page_size: int | None = None,
        sort: str | None = None,
        filter: Json | str | None = None,
    ) -> Ask[AttemptPage]:
        """One page of the attempts of a job, the newest first."""
        query = [("page", page), ("page_size", page_size), ("sort", sort), ("filter", filter)]
        return Ask("GET", self._jobs(workspace, job, "attempts"), query=query)

    @Walk
    def iter_job_attempts(
        self, job: str, *, workspace: str | None = None, page_size: int = 100, sort: str | None = None
    ) -> Steps[Attempt]:
        """All attempts of a job."""
        query = [("page_size", page_size), ("sort", sort)]
        return by_number(self._jobs(workspace, job, "attempts"), query)

    @Call
    def get_job_attempt(self, attempt: str, *, job: str, workspace: str | None = None) -> Ask[Attempt]:
        """One attempt, by id; `current` is the newest."""
        return Ask("GET", self._jobs(workspace, job, "attempts", attempt))

    @Call
    def update_job_attempt_status_details(
        self,
        attempt: str,
        details: Json,
        *,
        job: str,
        expected_step_id: str | None = None,
        expected_step_status: Status | None = None,
        workspace: str | None = None,
    ) -> Ask[None]:
        """Merge `details` into an attempt's status_details, if its step is still the expected one.
        Raises `Conflict` when it isn't."""
        query = [("expected_step_id", expected_step_id), ("expected_step_status", expected_step_status)]
        path = self._jobs(workspace, job, "attempts", attempt, "status-details")
        return Ask("PATCH", path, query=query, body=details, kind=None)


class StepCalls(Calls):
    """Steps and tasks."""

    def _run(self, workspace: str | None, job: str, attempt: str | None, *segments: str) -> str:
        """A path below the current attempt or a named one."""
        within = () if attempt is None else ("attempts", attempt)
        return self._jobs(workspace, job, *within, *segments)

    @Call
    def list_steps(
        self,
        job: str,
        *,
        workspace: str | None = None,
        attempt_id: str | None = None,
        page: int | None = None,
        page_size: int | None = None,
        sort: str | None = None,
        filter: Json | str | None = None,
    ) -> Ask[StepPage]:
        """One page of the steps of a job; `-` stands for all jobs, or for all workspaces."""
        query = [("page", page), ("page_size", page_size), ("sort", sort), ("filter", filter)]
        return Ask("GET", self._run(workspace, job, attempt_id, "steps"), query=query)

    @Walk
    def iter_steps(
        self,
        job: str,
        *,
        workspace: str | None = None,
        attempt_id: str | None = None,
        page_size: int = 100,
        sort: str | None = None,
        filter: Json | str | None = None,
    ) -> Steps[StepWithContext]:
        """All steps that match."""
        query = [("page_size", page_size), ("sort", sort), ("filter", filter)]
        return by_number(self._run(workspace, job, attempt_id, "steps"), query)

    @Call
    def get_job_step(
        self, name: str, *, job: str, attempt_id: str | None = None, workspace: str | None = None
    ) -> Ask[Step]:
        """One step of the current attempt, or of another one."""
        return Ask("GET", self._run(workspace, job, attempt_id, "steps", name))

    @Call
    def update_job_step_status(
        self,
        name: str,
        *,
        job: str,
        status: Status,
        expected_step_id: str | None = None,
        status_details: Json | None = None,
        error_details: Json | None = None,
        attempt_id: str | None = None,
        workspace: str | None = None,
    ) -> Ask[Step]:
        """Move a step to another state, as whoever runs it. Raises `Conflict` when it can't go there."""
        body = {"status": status} | given(
            {
                "expected_step_id": expected_step_id,
                "status_details": status_details,
                "error_details": error_details,
            }
        )
        return Ask("PATCH", self._run(workspace, job, attempt_id, "steps", name, "status"), body=body)

    @Call
    def list_job_step_tasks(
        self, step: str, *, job: str, attempt_id: str | None = None, workspace: str | None = None
    ) -> Ask[TaskList]:
        """All tasks of a step."""
        return Ask("GET", self._run(workspace, job, attempt_id, "steps", step, "tasks"))

    @Call
    def get_job_step_task(
        self, name: str, *, job: str, step: str, attempt_id: str | None = None, workspace: str | None = None
    ) -> Ask[Task]:
        """One task."""
        return Ask("GET", self._run(workspace, job, attempt_id, "steps", step, "tasks", name))

    @Call
    def update_job_step_task(
        self,
        name: str,
        *,
        job: str,
        step: str,
        status: Status | None = None,
        status_details: Json | None = None,
        error_details: Json | None = None,
        error_stack: str | None = None,
        attempt_id: str | None = None,
        workspace: str | None = None,
    ) -> Ask[Task]:
        """Report a task, which is created if it isn't there. A move that isn't allowed changes nothing."""
        body: dict[str, Any] = given(
            {
                "status": status,
                "status_details": status_details,
                "error_details": error_details,
                "error_stack": error_stack,
            }
        )
        return Ask("PUT", self._run(workspace, job, attempt_id, "steps", step, "tasks", name), body=body)

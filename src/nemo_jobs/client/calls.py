"""Jobs: create, look at, act on. One method for each route, by subject."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nemo_jobs.client.ask import Ask, Call, Steps, Walk
from nemo_jobs.client.connection import quote
from nemo_jobs.client.paging import by_cursor, by_number

if TYPE_CHECKING:
    from nemo_jobs.client.types import (
        Bulk,
        ExecutionProfile,
        Job,
        JobPage,
        JobPlan,
        JobStatus,
        Json,
        LogLine,
        LogPage,
    )

JOBS = "/apis/jobs/v2"


class Unset:
    """Stands for an argument that was not given, where None means something."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


class Calls:
    """What all groups of calls share: the workspace when none is given."""

    workspace: str

    def _in(self, base: str, workspace: str | None, *segments: str) -> str:
        """A path below a workspace; each segment is one name."""
        parts = [workspace or self.workspace, *segments]
        if "" in parts:
            raise ValueError("a name is empty")
        return f"{base}/workspaces/" + "/".join(quote(part) for part in parts)

    def _jobs(self, workspace: str | None, *segments: str) -> str:
        return self._in(JOBS, workspace, "jobs", *segments)


class JobCalls(Calls):
    """Jobs as a whole."""

    @Call
    def create_job(
        self,
        /,
        *,
        source: str,
        platform_spec: Json,
        spec: Json,
        name: str | None = None,
        workspace: str | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Ask[Job]:
        """Create a job. A repeat of the same call can't make two: it carries an idempotency key.

        `fields` are the further ones of the request, such as `description` and `project`. Raises
        `Conflict` when the name is taken, `Unprocessable` when the service can't run the job.
        """
        body = job_body(source, platform_spec, spec, name, labels, fields)
        return Ask("POST", self._jobs(workspace), body=body, key=idempotency_key or new_key())

    @Call
    def dry_run_job(
        self,
        /,
        *,
        source: str,
        platform_spec: Json,
        spec: Json,
        name: str | None = None,
        workspace: str | None = None,
        labels: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Ask[JobPlan]:
        """What `create_job` would do: every check, the completed spec, the profile of each step.
        Nothing is stored."""
        body = job_body(source, platform_spec, spec, name, labels, fields)
        return Ask("POST", self._jobs(workspace), query=[("dry_run", True)], body=body)

    @Call
    def get_job(self, name: str, *, workspace: str | None = None) -> Ask[Job]:
        """One job, by name or id."""
        return Ask("GET", self._jobs(workspace, name))

    @Call
    def list_jobs(
        self,
        *,
        workspace: str | None = None,
        page: int | None = None,
        page_size: int | None = None,
        sort: str | None = None,
        filter: str | Json | None = None,
    ) -> Ask[JobPage]:
        """One page of jobs, the newest first unless sorted otherwise."""
        query = [("page", page), ("page_size", page_size), ("sort", sort), ("filter", filter)]
        return Ask("GET", self._jobs(workspace), query=query)

    @Walk
    def iter_jobs(
        self,
        *,
        workspace: str | None = None,
        page_size: int = 100,
        sort: str | None = None,
        filter: str | Json | None = None,
    ) -> Steps[Job]:
        """All jobs that match, fetched page by page as they are wanted."""
        return by_number(
            self._jobs(workspace), [("page_size", page_size), ("sort", sort), ("filter", filter)]
        )

    @Call
    def update_job(
        self,
        name: str,
        *,
        workspace: str | None = None,
        description: str | Unset | None = UNSET,
        spec: Json | None = None,
        platform_spec: Json | None = None,
    ) -> Ask[Job]:
        """Change the description, or what later attempts run; `spec` and `platform_spec` go together."""
        body = {} if isinstance(description, Unset) else {"description": description}
        body |= given({"spec": spec, "platform_spec": platform_spec})
        return Ask("PATCH", self._jobs(workspace, name), body=body)

    @Call
    def update_job_control(
        self, name: str, *, pause_ttl_seconds: int, workspace: str | None = None
    ) -> Ask[Job]:
        """Say how many seconds the job's storage is kept after a pause."""
        body = {"pause_ttl_seconds": pause_ttl_seconds}
        return Ask("PATCH", self._jobs(workspace, name, "control"), body=body)

    @Call
    def get_execution_profiles(self) -> Ask[list[ExecutionProfile]]:
        """Where steps can run."""
        return Ask("GET", f"{JOBS}/execution-profiles", kind=list)


class ActCalls(Calls):
    """What is done to a job."""

    @Call
    def delete_job(self, name: str, *, workspace: str | None = None) -> Ask[None]:
        """Delete an ended job with its logs, results and storage."""
        return Ask("DELETE", self._jobs(workspace, name), kind=None)

    @Call
    def cancel_job(self, name: str, *, workspace: str | None = None) -> Ask[Job]:
        """Ask the job to end. It is `cancelled` when nothing of it runs any more."""
        return Ask("POST", self._jobs(workspace, name, "cancel"))

    @Call
    def pause_job(self, name: str, *, workspace: str | None = None) -> Ask[Job]:
        """Stop the work so that it can be resumed."""
        return Ask("POST", self._jobs(workspace, name, "pause"))

    @Call
    def resume_job(self, name: str, *, workspace: str | None = None) -> Ask[Job]:
        """Start a paused job's step again."""
        return Ask("POST", self._jobs(workspace, name, "resume"))

    @Call
    def rerun_job(
        self,
        name: str,
        *,
        from_step: str | None = None,
        workspace: str | None = None,
        idempotency_key: str | None = None,
    ) -> Ask[Job]:
        """Run an ended job again as a new attempt, whole or from a step on."""
        path = self._jobs(workspace, name, "rerun")
        return Ask("POST", path, query=[("from_step", from_step)], key=idempotency_key or new_key())


class BulkCalls(Calls):
    """Many jobs at once. `dry_run` only counts; `expected_count` makes the service refuse with
    `Conflict` when another number of jobs matches. One call takes up to 1000 jobs, the oldest
    first; `next` of its answer, given as `cursor`, goes on behind them, with their number left."""

    def _bulk(
        self,
        verb: str,
        filter: str | Json,
        workspace: str | None,
        dry_run: bool,
        expected: int | None,
        cursor: str | None,
    ) -> Ask[Bulk]:
        more = {"dry_run": dry_run or None, "expected_count": expected, "cursor": cursor}
        body = {"filter": filter, **given(more)}
        return Ask("POST", self._jobs(workspace) + f":{verb}", body=body, key=new_key())

    @Call
    def cancel_jobs(
        self,
        filter: str | Json,
        *,
        workspace: str | None = None,
        dry_run: bool = False,
        expected_count: int | None = None,
        cursor: str | None = None,
    ) -> Ask[Bulk]:
        """Cancel every job that matches; the answer says job by job what happened."""
        return self._bulk("cancel", filter, workspace, dry_run, expected_count, cursor)

    @Call
    def delete_jobs(
        self,
        filter: str | Json,
        *,
        workspace: str | None = None,
        dry_run: bool = False,
        expected_count: int | None = None,
        cursor: str | None = None,
    ) -> Ask[Bulk]:
        """Delete every ended job that matches; the answer says job by job what happened."""
        return self._bulk("delete", filter, workspace, dry_run, expected_count, cursor)

    @Call
    def rerun_jobs(
        self,
        filter: str | Json,
        *,
        workspace: str | None = None,
        dry_run: bool = False,
        expected_count: int | None = None,
        cursor: str | None = None,
    ) -> Ask[Bulk]:
        """Run every ended job that matches again; the answer says job by job what happened."""
        return self._bulk("rerun", filter, workspace, dry_run, expected_count, cursor)


class StatusCalls(Calls):
    """How a job is doing: its tree of states, its progress, its output."""

    @Call
    def get_job_status(self, name: str, *, workspace: str | None = None) -> Ask[JobStatus]:
        """The states of a job, its steps and their tasks."""
        return Ask("GET", self._jobs(workspace, name, "status"))

    @Call
    def update_job_status_details(
        self, name: str, details: Json, *, workspace: str | None = None
    ) -> Ask[None]:
        """Merge `details` into the job's status_details."""
        return Ask("PATCH", self._jobs(workspace, name, "status-details"), body=details, kind=None)

    @Call
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
    ) -> Ask[LogPage]:
        """One page of log lines, oldest first."""
        query = [
            ("limit", limit),
            ("page_cursor", page_cursor),
            ("tail", tail),
            ("attempt_id", attempt_id),
            ("step_id", step_id),
            ("task_id", task_id),
        ]
        return Ask("GET", self._jobs(workspace, name, "logs"), query=query)

    @Walk
    def iter_job_logs(
        self,
        name: str,
        *,
        workspace: str | None = None,
        limit: int = 1000,
        attempt_id: int | str | None = None,
        step_id: str | None = None,
        task_id: str | None = None,
    ) -> Steps[LogLine]:
        """Every line that is there now, `limit` a request; `follow_logs` waits for more."""
        query = [("limit", limit), ("attempt_id", attempt_id), ("step_id", step_id), ("task_id", task_id)]
        return by_cursor(self._jobs(workspace, name, "logs"), query)


def job_body(
    source: str,
    platform_spec: Json,
    spec: Json,
    name: str | None,
    labels: Mapping[str, str] | None,
    fields: Mapping[str, Any],
) -> Json:
    """The body of a create request, without what is not given."""
    body = given({"name": name, "source": source, "spec": spec, "platform_spec": platform_spec, **fields})
    if labels:
        custom = body.get("custom_fields") or {}
        body["custom_fields"] = {**custom, "labels": {**(custom.get("labels") or {}), **labels}}
    return body


def given(fields: Mapping[str, Any]) -> Json:
    """The fields that were given."""
    return {key: value for key, value in fields.items() if value is not None}


def new_key() -> str:
    """A key that names one request and its repeats."""
    return os.urandom(16).hex()

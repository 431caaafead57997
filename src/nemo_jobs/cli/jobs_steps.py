"""`nemo jobs steps` and `nemo jobs tasks`."""

from typing import Any, get_args

import click

from nemo_jobs.cli.inputs import Json, check_input, input_options, json_option, read_input
from nemo_jobs.cli.jobs_list import merge_pages
from nemo_jobs.cli.options import (
    columns_option,
    job_argument,
    job_command,
    job_option,
    name_argument,
    nonempty,
    paging_options,
)
from nemo_jobs.cli.render import note_pages, show_list, show_object
from nemo_jobs.cli.session import Session
from nemo_jobs.client.types import Status

_SORTS = ("created_at", "-created_at", "updated_at", "-updated_at")
_STATUS = click.Choice(sorted(get_args(Status)))
_COLUMNS = ("name", "workspace", "created_at")
_STEP_KEYS = (
    "id",
    "job",
    "name",
    "workspace",
    "attempt_id",
    "fileset",
    "artifact_base_path",
    "step_spec",
    "status",
    "status_details",
    "error_details",
    "auth_context",
    "created_at",
    "updated_at",
)


@click.group()
def steps() -> None:
    """The steps of a job."""


@click.group()
def tasks() -> None:
    """The tasks of a step: its processes."""


def _step_option(command: Any) -> Any:
    return click.option("--step", required=True, callback=nonempty, metavar="STEP", help="The step.")(command)


def _attempt(command: Any) -> Any:
    return click.option(
        "--attempt-id", callback=nonempty, metavar="ID", help="An attempt's id, or 'current'."
    )(command)


@steps.command("list")
@job_argument("job", "JOB")
@paging_options(_SORTS)
@json_option("--filter", help="A JSON object with job, source, status.")
@click.option("--filter.job", "filter_job", metavar="NAME", help="With JOB '-': steps of this job.")
@click.option("--filter.source", "filter_source", metavar="LABEL", help="Steps of jobs of this source.")
@_attempt
@job_command(context_letter=False)
def list_steps(
    session: Session,
    job: str,
    page: int | None,
    page_size: int | None,
    sort: str | None,
    all_pages: bool,
    stream: bool,
    columns: str,
    filter: Json | None,
    filter_job: str | None,
    filter_source: str | None,
    attempt_id: str | None,
) -> None:
    """List the steps of a job; '-' lists those of all jobs."""
    if all_pages and page:
        raise click.UsageError("--page and --all-pages can't go together")
    given = {"job": filter_job, "source": filter_source}
    joined = {**(filter or {}), **{key: value for key, value in given.items() if value is not None}}
    query: dict[str, Any] = {
        "attempt_id": attempt_id,
        "page": page,
        "page_size": page_size or (1000 if all_pages else None),
        "sort": sort,
        "filter": joined or None,
    }
    answer = session.ask("iter_steps" if all_pages and session.prints_code else "list_steps", job, **query)
    if all_pages:
        answer = merge_pages(
            answer, lambda number: session.ask("list_steps", job, **{**query, "page": number})
        )
    show_list(session, answer, columns=columns, default=_COLUMNS, keys=_STEP_KEYS, stream=stream)
    note_pages(session, answer, noun="steps")


@steps.command("get")
@name_argument()
@job_option
@_attempt
@job_command()
def get_step(session: Session, name: str, job: str, attempt_id: str | None) -> None:
    """Show a step."""
    show_object(session, session.ask("get_job_step", name, job=job, attempt_id=attempt_id))


@steps.command("update-status")
@name_argument()
@job_option
@click.option("--status", type=_STATUS, help="The new status.  [required]")
@json_option("--error-details", help="Why it failed.")
@json_option("--status-details", help="Keys to merge into its details.")
@click.option(
    "--expected-step-id", callback=nonempty, metavar="ID", help="Refuse if the step is another one."
)
@input_options
@_attempt
@job_command()
def update_step_status(
    session: Session,
    name: str,
    job: str,
    input_file: str | None,
    input_data: str | None,
    attempt_id: str | None,
    **options: Any,
) -> None:
    """Move a step to another status, as whatever runs it would."""
    fields = _fields(input_file, input_data, options)
    check_input(
        fields,
        texts=("status", "expected_step_id"),
        objects=("status_details", "error_details"),
        required=("status",),
    )
    answer = session.ask("update_job_step_status", name, job=job, attempt_id=attempt_id, **fields)
    show_object(session, answer)


def _fields(file: str | None, data: str | None, options: Json) -> Json:
    """The input's fields, and over them those of the options."""
    return read_input(file, data) | {key: value for key, value in options.items() if value is not None}


@tasks.command("list")
@name_argument("step", "STEP")
@job_option
@columns_option
@click.option("--stream", is_flag=True, help="One JSON object per line (json, raw).")
@_attempt
@job_command(context_letter=False)
def list_tasks(
    session: Session, step: str, job: str, columns: str, stream: bool, attempt_id: str | None
) -> None:
    """List the tasks of a step."""
    answer = session.ask("list_job_step_tasks", step, job=job, attempt_id=attempt_id)
    show_list(session, answer, columns=columns, default=_COLUMNS, stream=stream)


@tasks.command("get")
@name_argument()
@job_option
@_step_option
@_attempt
@job_command()
def get_task(session: Session, name: str, job: str, step: str, attempt_id: str | None) -> None:
    """Show a task."""
    answer = session.ask("get_job_step_task", name, job=job, step=step, attempt_id=attempt_id)
    show_object(session, answer)


@tasks.command("create-or-update")
@name_argument()
@job_option
@_step_option
@click.option("--status", type=_STATUS, help="The new status.  [pending]")
@json_option("--status-details", help="Keys to merge into its details.")
@json_option("--error-details", help="Why it failed.")
@click.option("--error-stack", metavar="TEXT", help="The last lines of its output.")
@input_options
@_attempt
@job_command()
def create_or_update_task(
    session: Session,
    name: str,
    job: str,
    step: str,
    input_file: str | None,
    input_data: str | None,
    attempt_id: str | None,
    **options: Any,
) -> None:
    """Report how a task is doing; it is created if it isn't there."""
    fields = _fields(input_file, input_data, options)
    check_input(fields, texts=("status", "error_stack"), objects=("status_details", "error_details"))
    answer = session.ask("update_job_step_task", name, job=job, step=step, attempt_id=attempt_id, **fields)
    show_object(session, answer)

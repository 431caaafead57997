"""`nemo jobs steps` and `nemo jobs tasks`."""

from typing import Any

import click

from nemo_jobs.cli.inputs import Json, json_option
from nemo_jobs.cli.jobs_list import merge_pages
from nemo_jobs.cli.options import columns_option, job_command, name_argument, nonempty, paging_options
from nemo_jobs.cli.render import note_pages, show_list, show_object
from nemo_jobs.cli.session import Session

_SORTS = ("created_at", "-created_at", "updated_at", "-updated_at")
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


def _job_option(command: Any) -> Any:
    return click.option("--job", required=True, callback=nonempty, metavar="JOB", help="The job.")(command)


def _step_option(command: Any) -> Any:
    return click.option("--step", required=True, callback=nonempty, metavar="STEP", help="The step.")(command)


@steps.command("list")
@name_argument("job", "JOB")
@paging_options(_SORTS)
@json_option("--filter", help="A JSON object with job, source, status.")
@click.option("--filter.job", "filter_job", metavar="NAME", help="With JOB '-': steps of this job.")
@click.option("--filter.source", "filter_source", metavar="LABEL", help="Steps of jobs of this source.")
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
) -> None:
    """List the steps of a job; '-' lists those of all jobs."""
    if all_pages and page:
        raise click.UsageError("--page and --all-pages can't go together")
    given = {"job": filter_job, "source": filter_source}
    joined = {**(filter or {}), **{key: value for key, value in given.items() if value is not None}}
    query: dict[str, Any] = {
        "page": page,
        "page_size": page_size or (1000 if all_pages else None),
        "sort": sort,
        "filter": joined or None,
    }
    answer = session.ask("list_steps", job, **query)
    if all_pages:
        answer = merge_pages(
            answer, lambda number: session.ask("list_steps", job, **{**query, "page": number})
        )
    show_list(session, answer, columns=columns, default=_COLUMNS, keys=_STEP_KEYS, stream=stream)
    note_pages(session, answer, noun="steps")


@steps.command("get")
@name_argument()
@_job_option
@job_command()
def get_step(session: Session, name: str, job: str) -> None:
    """Show a step."""
    show_object(session, session.ask("get_job_step", name, job=job))


@tasks.command("list")
@name_argument("step", "STEP")
@_job_option
@columns_option
@click.option("--stream", is_flag=True, help="One JSON object per line (json, raw).")
@job_command(context_letter=False)
def list_tasks(session: Session, step: str, job: str, columns: str, stream: bool) -> None:
    """List the tasks of a step."""
    answer = session.ask("list_job_step_tasks", step, job=job)
    show_list(session, answer, columns=columns, default=_COLUMNS, stream=stream)


@tasks.command("get")
@name_argument()
@_job_option
@_step_option
@job_command()
def get_task(session: Session, name: str, job: str, step: str) -> None:
    """Show a task."""
    show_object(session, session.ask("get_job_step_task", name, job=job, step=step))

"""`nemo jobs attempts`: the runs of a job."""

from typing import Any

import click

from nemo_jobs.cli.jobs_list import merge_pages
from nemo_jobs.cli.options import (
    STATES,
    job_argument,
    job_command,
    job_option,
    name_argument,
    paging_options,
)
from nemo_jobs.cli.render import note_pages, show_list, show_object
from nemo_jobs.cli.session import Session

_SORTS = ("seq", "-seq")
_COLUMNS = ("seq", "id", "status", "is_current", "created_at")
_KEYS = (
    *("id", "name", "job", "workspace", "seq", "spec", "platform_spec", "status", "status_details"),
    *("error_details", "is_current", "created_at", "updated_at", "reason"),
)


@click.group()
def attempts() -> None:
    """The attempts of a job: its first run and every rerun."""


@attempts.command("list")
@job_argument("job", "JOB")
@paging_options(_SORTS)
@click.option(
    "--filter.status", "status", type=click.Choice(STATES), multiple=True, help="Only these; repeatable."
)
@job_command(context_letter=False)
def list_attempts(
    session: Session,
    job: str,
    page: int | None,
    page_size: int | None,
    sort: str | None,
    all_pages: bool,
    stream: bool,
    columns: str,
    status: tuple[str, ...],
) -> None:
    """List the attempts of a job, the newest first."""
    if all_pages and page:
        raise click.UsageError("--page and --all-pages can't go together")
    query: dict[str, Any] = {
        "page": page,
        "page_size": page_size or (1000 if all_pages else None),
        "sort": sort,
        "filter": {"status": [*status]} if status else None,
    }
    answer = session.ask("list_job_attempts", job, **query)
    if all_pages:
        answer = merge_pages(
            answer, lambda number: session.ask("list_job_attempts", job, **{**query, "page": number})
        )
    show_list(session, answer, columns=columns, default=_COLUMNS, keys=_KEYS, stream=stream)
    note_pages(session, answer, noun="attempts")


@attempts.command("get")
@name_argument("attempt", "ATTEMPT|current")
@job_option
@job_command()
def get_attempt(session: Session, attempt: str, job: str) -> None:
    """Show an attempt, by id or number (0 is the first), or the current one."""
    show_object(session, session.ask("get_job_attempt", attempt, job=job))

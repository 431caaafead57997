"""`nemo jobs list` and `nemo jobs list-execution-profiles`."""

import json
from collections.abc import Callable
from typing import Any, get_args

import click

from nemo_jobs.cli.labels import Labels, label_option
from nemo_jobs.cli.options import (
    columns_option,
    complete_status,
    complete_workspace,
    global_options,
    job_command,
    paging_options,
    pass_session,
)
from nemo_jobs.cli.render import note_pages, show_list
from nemo_jobs.cli.session import CommandError, Session
from nemo_jobs.client.types import Status

JOB_KEYS = (
    "id",
    "attempt_id",
    "name",
    "workspace",
    "project",
    "description",
    "source",
    "spec",
    "platform_spec",
    "fileset",
    "output_location",
    "status",
    "status_details",
    "error_details",
    "reason",
    "created_at",
    "updated_at",
    "ownership",
    "custom_fields",
)
SORTS = ("created_at", "-created_at", "updated_at", "-updated_at", "source", "-source")
_MOST_PAGES = 100_000


@click.command("list")
@paging_options(SORTS)
@click.option("--filter", "expression", metavar="EXPR", help='JSON or text, like: status:"error"')
@click.option("--filter.name", "name", metavar="NAME", help="Jobs of this name.")
@click.option("--filter.project", "project", metavar="NAME", help="Jobs of this project.")
@click.option("--filter.source", "source", metavar="LABEL", help="Jobs of this source.")
@click.option(
    "--filter.status",
    "status",
    multiple=True,
    metavar="STATUS",
    shell_complete=complete_status,
    help="Repeatable: any of them.",
)
@click.option(
    "--filter.workspace",
    "in_workspace",
    metavar="NAME",
    shell_complete=complete_workspace,
    help="With --workspace -: only these.",
)
@label_option("Jobs with this label; repeatable: all of them.")
@job_command(context_letter=False)
def list_jobs(
    session: Session,
    page: int | None,
    page_size: int | None,
    sort: str | None,
    all_pages: bool,
    stream: bool,
    columns: str,
    expression: str | None,
    labels: Labels,
    **fields: Any,
) -> None:
    """List jobs, the newest first."""
    if all_pages and page:
        raise click.UsageError("--page and --all-pages can't go together")
    query = {
        "page": page,
        "page_size": page_size or (1000 if all_pages else None),
        "sort": sort,
        "filter": joined_filter(expression, fields, labels),
    }
    answer = session.ask("iter_jobs" if all_pages and session.prints_code else "list_jobs", **query)
    if all_pages:
        answer = merge_pages(answer, lambda number: session.ask("list_jobs", **{**query, "page": number}))
    show_list(
        session,
        answer,
        columns=columns,
        default=("name", "description", "status", "created_at"),
        keys=JOB_KEYS,
        stream=stream,
    )
    note_pages(session, answer, noun="jobs")
    _note_statuses(session, fields["status"])


def _note_statuses(session: Session, wanted: tuple[str, ...]) -> None:
    """The service takes any word and finds nothing for it: a mistyped one looks like good news."""
    known = get_args(Status)
    for word in wanted:
        if word not in known:
            session.note(f"'{word}' is no status of a job, so none matches; there are: {', '.join(known)}")


def joined_filter(
    expression: str | None, fields: dict[str, Any], labels: Labels
) -> str | dict[str, Any] | None:
    """One filter from `--filter`, the `--filter.<field>` options and labels, all of which must hold."""
    named: dict[str, Any] = {f"labels.{key}": value for key, value in labels.items()}
    for field, value in fields.items():
        if value is not None and value != ():
            named["workspace" if field == "in_workspace" else field] = (
                list(value) if isinstance(value, tuple) else value
            )
    if not named:
        return expression
    if expression is None:
        return named
    try:
        given = json.loads(expression)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise click.UsageError(
            "a text --filter can't be joined with --filter.<field> and --label; put all into the text, "
            'a label as labels["key"]:"value"'
        )
    return {"$and": [given, named]}


def merge_pages(first: Any, fetch: Callable[[int], Any]) -> Any:
    """All pages as one. Items that moved to a later page meanwhile appear once."""
    items = {item.get("id", number): item for number, item in enumerate(first["data"])}
    last = first
    number = last["pagination"]["page"]
    while number < last["pagination"]["total_pages"]:
        number += 1
        if number > _MOST_PAGES:
            raise CommandError(f"more than {_MOST_PAGES} pages; narrow the list with a filter")
        last = fetch(number)
        for item in last["data"]:
            items.setdefault(item.get("id", len(items)), item)
        if not last["data"]:
            break
    count = len(items)
    pagination = {
        "total_results": count,
        "total_pages": 1,
        "page_size": count,
        "page": 1,
        "current_page_size": count,
    }
    return {**first, "data": list(items.values()), "pagination": pagination}


@click.command("list-execution-profiles")
@columns_option
@click.option("--stream", is_flag=True, help="One JSON object per line (json, raw).")
@global_options(context_letter=False)
@pass_session
def list_execution_profiles(session: Session, columns: str, stream: bool) -> None:
    """List where steps can run."""
    show_list(
        session,
        session.ask("get_execution_profiles"),
        columns=columns,
        default=("profile", "backend", "provider", "config"),
        stream=stream,
    )

"""`nemo jobs get-logs`: stored lines, page by page."""

from collections.abc import Callable
from typing import Any

import click

from nemo_jobs.cli.options import attempt_option, columns_option, job_argument, job_command
from nemo_jobs.cli.render import list_format, show_list
from nemo_jobs.cli.session import Session

LINE_KEYS = ("timestamp", "job", "job_step", "job_task", "message")


def which_lines(command: Any) -> Any:
    """Attempt, step and task."""
    for option in (
        click.option("--task-id", metavar="TASK", help="Only lines of this task."),
        click.option("--step-id", metavar="STEP", help="Only lines of this step."),
        attempt_option("Only lines of this attempt: its number from 0, its id, or 'current'."),
    ):
        command = option(command)
    return command


@click.command("get-logs")
@job_argument()
@which_lines
@click.option("--limit", type=click.IntRange(1, 10000), metavar="N", help="Lines per page.  [100]")
@click.option("--page-cursor", metavar="CURSOR", help="next_page or prev_page of another page.")
@click.option("--tail", type=click.IntRange(1, 10000), metavar="N", help="The newest N lines.")
@click.option("--all-pages", is_flag=True, help="Fetch every page.")
@click.option("--stream", is_flag=True, help="One JSON object per line (json, raw).")
@columns_option
@job_command(context_letter=False)
def get_logs(
    session: Session,
    name: str,
    attempt_id: int | str | None,
    step_id: str | None,
    task_id: str | None,
    limit: int | None,
    page_cursor: str | None,
    tail: int | None,
    all_pages: bool,
    stream: bool,
    columns: str,
) -> None:
    """Show the log of a job."""
    if tail and (limit or page_cursor or all_pages):
        raise click.UsageError("--tail can't go together with --limit, --page-cursor or --all-pages")
    which = {"attempt_id": attempt_id, "step_id": step_id, "task_id": task_id}

    def fetch(cursor: str | None) -> Any:
        size = limit or (10000 if all_pages else None)
        return session.ask("list_job_logs", name, limit=size, page_cursor=cursor, tail=tail, **which)

    def show(answer: Any) -> None:
        default = ("timestamp", "message")
        show_list(session, answer, columns=columns, default=default, keys=LINE_KEYS, stream=stream)

    answer = fetch(page_cursor)
    if all_pages and stream and list_format(session) in ("json", "raw"):
        each_page(answer, fetch, show)
        return
    if all_pages:
        pages: list[Any] = []
        each_page(answer, fetch, lambda page: pages.extend(page["data"]))
        answer = {"data": pages, "next_page": None}
    show(answer)
    _note(session, answer, which)


def each_page(answer: Any, fetch: Callable[[str | None], Any], use: Callable[[Any], None]) -> None:
    """Every page from this one on; a cursor that repeats ends the walk."""
    cursor = None
    while True:
        use(answer)
        if answer["next_page"] in (None, cursor):
            return
        cursor = answer["next_page"]
        answer = fetch(cursor)


def _note(session: Session, answer: Any, which: dict[str, Any]) -> None:
    shown, total = len(answer["data"]), answer.get("total", 0)
    if answer["next_page"]:
        session.note(f"showing {shown} of {total} lines; --all-pages shows all, --page-cursor the next page")
    if not shown and any(value is not None for value in which.values()):
        given = ", ".join(
            f"--{key.replace('_', '-')} {value}" for key, value in which.items() if value is not None
        )
        session.note(f"no lines for {given}")

"""`nemo workspaces`."""

import click

from nemo_jobs.cli.jobs_list import merge_pages
from nemo_jobs.cli.options import global_options, name_argument, paging_options, pass_session
from nemo_jobs.cli.render import note_pages, show_list, show_object
from nemo_jobs.cli.session import Session

_KEYS = ("id", "name", "description", "created_at", "created_by", "updated_at", "updated_by")
_SORTS = ("name", "-name", "created_at", "-created_at", "updated_at", "-updated_at")


@click.group()
def workspaces() -> None:
    """Workspaces: names of jobs are unique within one."""


@workspaces.command("list")
@paging_options(_SORTS)
@global_options(context_letter=False)
@pass_session
def list_workspaces(
    session: Session,
    page: int | None,
    page_size: int | None,
    sort: str | None,
    all_pages: bool,
    stream: bool,
    columns: str,
) -> None:
    """List workspaces."""
    if all_pages and page:
        raise click.UsageError("--page and --all-pages can't go together")
    answer = session.ask("list_workspaces", page=page, page_size=page_size, sort=sort)
    if all_pages:
        answer = merge_pages(
            answer,
            lambda number: session.ask("list_workspaces", page=number, page_size=page_size, sort=sort),
        )
    default = ("name", "description", "created_at")
    show_list(session, answer, columns=columns, default=default, keys=_KEYS, stream=stream)
    note_pages(session, answer, noun="workspaces")


@workspaces.command()
@name_argument()
@global_options()
@pass_session
def get(session: Session, name: str) -> None:
    """Show a workspace."""
    show_object(session, session.ask("get_workspace", name))


@workspaces.command()
@name_argument()
@click.option("--description", metavar="TEXT", help="A sentence for people.")
@global_options()
@pass_session
def create(session: Session, name: str, description: str | None) -> None:
    """Create a workspace."""
    show_object(session, session.ask("create_workspace", name, description=description))


@workspaces.command()
@name_argument()
@global_options()
@pass_session
def delete(session: Session, name: str) -> None:
    """Delete a workspace that holds no jobs."""
    session.ask("delete_workspace", name)
    session.note(f"deleted workspace '{name}'")

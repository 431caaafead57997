"""`nemo projects`."""

import click

from nemo_jobs.cli.jobs_list import merge_pages
from nemo_jobs.cli.options import job_command, name_argument, paging_options
from nemo_jobs.cli.render import note_pages, show_list, show_object
from nemo_jobs.cli.session import Session

_KEYS = ("id", "name", "workspace", "description", "created_at", "updated_at")
_SORTS = ("name", "-name", "created_at", "-created_at", "updated_at", "-updated_at")


@click.group()
def projects() -> None:
    """Projects: jobs of a workspace that belong together."""


@projects.command("list")
@paging_options(_SORTS)
@job_command(context_letter=False)
def list_projects(
    session: Session,
    page: int | None,
    page_size: int | None,
    sort: str | None,
    all_pages: bool,
    stream: bool,
    columns: str,
) -> None:
    """List projects."""
    if all_pages and page:
        raise click.UsageError("--page and --all-pages can't go together")
    answer = session.ask("list_projects", page=page, page_size=page_size, sort=sort)
    if all_pages:
        answer = merge_pages(
            answer,
            lambda number: session.ask("list_projects", page=number, page_size=page_size, sort=sort),
        )
    default = ("name", "description", "created_at")
    show_list(session, answer, columns=columns, default=default, keys=_KEYS, stream=stream)
    note_pages(session, answer, noun="projects")


@projects.command()
@name_argument()
@job_command()
def get(session: Session, name: str) -> None:
    """Show a project."""
    show_object(session, session.ask("get_project", name))


@projects.command()
@name_argument()
@click.option("--description", metavar="TEXT", help="A sentence for people.")
@job_command()
def create(session: Session, name: str, description: str | None) -> None:
    """Create a project."""
    show_object(session, session.ask("create_project", name, description=description))


@projects.command()
@name_argument()
@click.option("--description", required=True, metavar="TEXT", help="A sentence for people.")
@job_command()
def update(session: Session, name: str, description: str) -> None:
    """Change a project's description."""
    show_object(session, session.ask("update_project", name, description=description))


@projects.command()
@name_argument()
@job_command()
def delete(session: Session, name: str) -> None:
    """Delete a project that no job belongs to."""
    session.ask("delete_project", name)
    session.note(f"deleted project '{name}'")

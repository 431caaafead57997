"""Commands that look at one job or act on it."""

from typing import Any

import click

from nemo_jobs.cli.inputs import Json, input_options, json_option, read_input
from nemo_jobs.cli.jobs_bulk import act_on_many, bulk_options, wants_many
from nemo_jobs.cli.options import job_argument, job_command
from nemo_jobs.cli.render import show_object
from nemo_jobs.cli.session import Session

#: States in which a job stays as it is when that is asked for.
_DEAF = {
    "cancel": ("completed", "error"),
    "pause": ("completed", "error", "cancelled", "cancelling"),
    "resume": ("completed", "error", "cancelled", "cancelling", "pausing"),
}


def _act(session: Session, verb: str, name: str | None) -> None:
    """The service answers such a request with the job also when it changes nothing."""
    job = session.ask(f"{verb}_job", name)
    show_object(session, job)
    if job["status"] in _DEAF[verb]:
        session.note(f"job '{job['name']}' is {job['status']}: there was nothing to {verb}")


@click.command()
@job_argument()
@job_command()
def get(session: Session, name: str) -> None:
    """Show a job."""
    show_object(session, session.ask("get_job", name))


@click.command("get-status")
@job_argument()
@job_command()
def get_status(session: Session, name: str) -> None:
    """Show the states of a job, its steps and their tasks."""
    show_object(session, session.ask("get_job_status", name))


@click.command()
@job_argument(required=False)
@bulk_options
@job_command()
def cancel(session: Session, name: str | None, **many: Any) -> int:
    """Ask a job to end, or all that match a filter; nothing of a job runs any more when it is
    'cancelled'."""
    if wants_many(name, many):
        return act_on_many(session, "cancel", **many)
    _act(session, "cancel", name)
    return 0


@click.command()
@job_argument()
@job_command()
def pause(session: Session, name: str) -> None:
    """Stop a job's work so that it can be resumed."""
    _act(session, "pause", name)


@click.command()
@job_argument()
@job_command()
def resume(session: Session, name: str) -> None:
    """Start the stopped step of a paused job again."""
    _act(session, "resume", name)


@click.command()
@job_argument(required=False)
@bulk_options
@job_command()
def delete(session: Session, name: str | None, **many: Any) -> int:
    """Delete an ended job, or all that match a filter, with logs and storage."""
    if wants_many(name, many):
        return act_on_many(session, "delete", **many)
    session.ask("delete_job", name)
    session.note(f"deleted job '{name}'")
    return 0


@click.command("update-status-details")
@job_argument()
@json_option("--body", help="The keys to set, as a JSON object.")
@input_options
@job_command()
def update_status_details(
    session: Session, name: str, body: Json | None, input_file: str | None, input_data: str | None
) -> None:
    """Merge keys into a job's status_details; prints null."""
    details = {**read_input(input_file, input_data), **(body or {})}
    if not details and body is None:
        raise click.UsageError("nothing to set; give --body JSON, --input-file or --input-data")
    show_object(session, session.ask("update_job_status_details", name, details))

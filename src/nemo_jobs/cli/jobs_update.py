"""`nemo jobs update`: a job's description, and what its next attempts run."""

from typing import Any

import click

from nemo_jobs.cli.inputs import Json, input_options, json_option, read_input
from nemo_jobs.cli.options import job_argument, job_command
from nemo_jobs.cli.render import show_object
from nemo_jobs.cli.session import Session
from nemo_jobs.cli.text import given_text

_KNOWN = ("description", "spec", "platform_spec")


def _text(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return value if value is None else given_text(value)


@click.command()
@job_argument()
@click.option("--description", callback=_text, metavar="TEXT", help="A sentence for people.")
@json_option("--spec", help="Your own description of the work; goes with --platform-spec.")
@json_option("--platform-spec", help="The steps of the next attempts; goes with --spec.")
@click.option(
    "--pause-ttl-seconds",
    type=click.IntRange(0),
    metavar="S",
    help="Keep the storage of the paused job for S seconds.",
)
@input_options
@job_command()
def update(
    session: Session,
    name: str,
    pause_ttl_seconds: int | None,
    input_file: str | None,
    input_data: str | None,
    **options: Any,
) -> None:
    """Change a job. Attempts that are there keep the definition that they ran."""
    fields = read_input(input_file, input_data)
    fields |= {key: value for key, value in options.items() if value is not None}
    _check(fields, pause_ttl_seconds)
    job: Any = None
    if pause_ttl_seconds is not None:
        job = session.ask("update_job_control", name, pause_ttl_seconds=pause_ttl_seconds)
    if fields:
        # `ask` leaves out what is null, which here has a meaning.
        clears = fields.get("description", "") is None and not session.prints_code
        job = (
            session.client().update_job(name, **fields)
            if clears
            else session.ask("update_job", name, **fields)
        )
    show_object(session, job)


def _check(fields: Json, pause_ttl_seconds: int | None) -> None:
    problems = [f"{key}: unknown; known: {', '.join(_KNOWN)}" for key in fields if key not in _KNOWN]
    if ("spec" in fields) != ("platform_spec" in fields):
        problems.append("spec and platform_spec must be given together")
    if not fields and pause_ttl_seconds is None:
        problems.append("nothing to change; give --description, --spec with --platform-spec, or a file")
    if problems:
        raise click.UsageError("the job can't be changed:\n  " + "\n  ".join(problems))

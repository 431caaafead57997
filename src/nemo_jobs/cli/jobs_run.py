"""`nemo jobs run`: a command line as a job of one step."""

from typing import Any

import click

from nemo_jobs.cli.jobs_create import send
from nemo_jobs.cli.labels import Labels, label_option, with_labels
from nemo_jobs.cli.options import job_command, nonempty
from nemo_jobs.cli.render import show_object
from nemo_jobs.cli.session import Session, code_of_wait
from nemo_jobs.cli.text import given_text


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--name", callback=nonempty, metavar="NAME", help="Name of the job; else one is made up.")
@click.option("--profile", default="default", callback=nonempty, metavar="NAME", help="Execution profile.")
@click.option("-e", "--env", multiple=True, metavar="K=V", help="A variable for the command; repeatable.")
@click.option("--description", metavar="TEXT", help="A sentence for people.")
@click.option("--project", metavar="NAME", help="The project that it belongs to.")
@label_option("A label; repeatable.")
@click.option("--follow", is_flag=True, help="Show the output until the end; exit 1 if it fails.")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND [ARGS]...")
@job_command()
def run(
    session: Session,
    name: str | None,
    profile: str,
    env: tuple[str, ...],
    labels: Labels,
    follow: bool,
    command: tuple[str, ...],
    description: str | None,
    project: str | None,
) -> int:
    """Run a command on the service's host.

    The arguments reach the program exactly as they are: no shell reads them again. For pipes
    and variables say so: -- sh -c 'sort data.txt | uniq'
    """
    fields: dict[str, Any] = {
        "name": name,
        "source": "cli",
        "spec": {},
        "platform_spec": {"steps": [step(command, profile, env)]},
        "description": description,
        "project": project,
    }
    if follow:
        session.code_after = code_of_wait(logs=True)
    job = send(session, with_labels(fields, labels))
    if not follow:
        show_object(session, job)
        return 0
    from nemo_jobs.cli.following import Follow, follow_to_end

    session.note(f"job '{job['name']}' created")
    return follow_to_end(session, Follow(job["name"], plain=True, decide=True))


def step(command: tuple[str, ...], profile: str, env: tuple[str, ...]) -> dict[str, Any]:
    """The one step: argv and variables byte for byte, as far as JSON can carry them."""
    try:
        argv = [given_text(word) for word in command]
        variables = [variable(given_text(pair)) for pair in env]
    except ValueError as error:
        raise click.UsageError(
            "command and variables must be UTF-8: a request can't carry other bytes"
        ) from error
    found: dict[str, Any] = {
        "name": "run",
        "executor": {"provider": "subprocess", "profile": profile, "command": argv},
    }
    if variables:
        found["environment"] = variables
    return found


def variable(pair: str) -> dict[str, str]:
    """`K=V` as a variable; everything behind the first `=` is the value."""
    key, equals, value = pair.partition("=")
    if not key or not equals:
        raise click.UsageError(f"--env '{pair}': must look like KEY=VALUE")
    return {"name": key, "value": value}

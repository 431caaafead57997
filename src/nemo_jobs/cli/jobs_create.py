"""`nemo jobs create`, and sending a new job so that a repeat can't create it twice."""

from typing import Any

import click

from nemo_jobs.cli.inputs import Json, input_options, json_option, read_input
from nemo_jobs.cli.labels import Labels, label_option, with_labels
from nemo_jobs.cli.options import job_command, nonempty
from nemo_jobs.cli.render import show_object
from nemo_jobs.cli.session import CommandError, Session, code_of_wait
from nemo_jobs.client import Conflict, ConnectionFailed

_REQUIRED = ("source", "spec", "platform_spec")
_OBJECTS = ("spec", "platform_spec", "ownership", "custom_fields")
_TEXTS = ("name", "source", "project", "description", "output_location")


@click.command()
@click.argument("name", required=False, callback=nonempty)
@json_option("--platform-spec", help="The steps and where they run.  [required]")
@click.option("--source", metavar="LABEL", help="Where the job comes from.  [required]")
@json_option("--spec", help="Your own description of the work.  [required]")
@json_option("--custom-fields", help="Further fields of yours.")
@click.option("--description", metavar="TEXT", help="A sentence for people.")
@click.option("--output-location", metavar="FILESET", help="An existing fileset for the results.")
@json_option("--ownership", help="Who owns the job.")
@click.option("--project", metavar="NAME", help="The project that it belongs to.")
@label_option("A label; repeatable.")
@input_options
@click.option("--dry-run", is_flag=True, help="Check everything, show what would be sent, store nothing.")
@click.option("--wait", is_flag=True, help="Wait for the end.")
@click.option("--watch", is_flag=True, help="Wait for the end and show the log.")
@click.option("--timeout", type=click.IntRange(1), metavar="S", help="Give up after S seconds.  [wait: 1200]")
@click.option(
    "--poll-interval", type=click.IntRange(1), default=3, metavar="S", help="Longest pause between looks."
)
@job_command()
def create(
    session: Session,
    name: str | None,
    input_file: str | None,
    input_data: str | None,
    labels: Labels,
    dry_run: bool,
    wait: bool,
    watch: bool,
    timeout: int | None,
    poll_interval: int,
    **options: Any,
) -> int:
    """Create a job from options, or from a file with the same fields."""
    if wait and watch:
        raise click.UsageError("--wait and --watch can't go together; --watch waits too")
    if dry_run and (wait or watch):
        raise click.UsageError("--dry-run makes no job to wait for; leave --wait and --watch out")
    fields = read_input(input_file, input_data)
    fields |= {key: value for key, value in {"name": name, **options}.items() if value is not None}
    check_fields(fields)
    fields = with_labels(fields, labels)
    if dry_run:
        show_object(session, session.ask("dry_run_job", **fields))
        return 0
    timeout = timeout or (1200 if wait else None)
    if wait or watch:
        session.code_after = code_of_wait(logs=watch, timeout=timeout)
    job = send(session, fields)
    show_object(session, job)
    if not (wait or watch):
        return 0
    from nemo_jobs.cli.watching import Watch, watch_to_end

    plan = Watch(job["name"], poll=poll_interval, timeout=timeout, logs=watch)
    return watch_to_end(session, plan, lines_to_stdout=False)


def check_fields(fields: Json) -> None:
    """Refuse what no service would take, all problems at once."""
    known = {*_OBJECTS, *_TEXTS}
    problems = [f"{key}: required, but missing" for key in _REQUIRED if fields.get(key) is None]
    problems += [f"{key}: unknown; known: {', '.join(sorted(known))}" for key in fields if key not in known]
    for key, value in fields.items():
        if value is None:
            continue
        if key in _OBJECTS and not isinstance(value, dict):
            problems.append(f"{key}: must be an object, not {type(value).__name__}")
        elif key in _TEXTS and not isinstance(value, str):
            problems.append(f"{key}: must be text, not {type(value).__name__} ({value!r}); put it in quotes")
    if problems:
        raise click.UsageError("the job can't be sent:\n  " + "\n  ".join(problems))


def send(session: Session, fields: Json) -> Json:
    """Create the job. A missing name is made here, before the first try, so that a repeated
    request meets the first one's job and not a second place in the queue."""
    made = fields.get("name") is None
    if made:
        from nemo_jobs.domain.names import generated_job_name

        fields = {**fields, "name": generated_job_name(fields["source"])}
    name = fields["name"]
    session.hint = f"the job may have been created; look with: nemo jobs get {session.name_hint(name)}"
    try:
        job: Json = session.ask("create_job", **fields)
    except Conflict as error:
        if error.tries == 1:
            raise
        if made:
            job = dict(session.client().get_job(name))
        else:
            text = f"{error}\nan earlier try got no answer and may have created it; {session.hint}"
            raise CommandError(f"conflict (409): {text}", 3) from error
    except ConnectionFailed as error:
        if error.refused:
            session.hint = ""
        raise
    session.hint = ""
    return job

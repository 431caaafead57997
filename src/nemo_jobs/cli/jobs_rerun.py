"""`nemo jobs rerun`: an ended job once more, as a new attempt."""

from typing import Any

import click

from nemo_jobs.cli.jobs_bulk import act_on_many, bulk_options, wants_many
from nemo_jobs.cli.options import job_argument, job_command, nonempty
from nemo_jobs.cli.render import show_object
from nemo_jobs.cli.session import Session, code_of_wait


@click.command()
@job_argument(required=False)
@bulk_options
@click.option(
    "--from-step", callback=nonempty, metavar="STEP", help="Keep the steps before this one as completed."
)
@click.option("--wait", is_flag=True, help="Wait for the end.")
@click.option("--watch", is_flag=True, help="Wait for the end and show the log.")
@click.option("--timeout", type=click.IntRange(1), metavar="S", help="Give up after S seconds.  [wait: 1200]")
@click.option(
    "--poll-interval", type=click.IntRange(1), default=3, metavar="S", help="Longest pause between looks."
)
@job_command()
def rerun(
    session: Session,
    name: str | None,
    from_step: str | None,
    wait: bool,
    watch: bool,
    timeout: int | None,
    poll_interval: int,
    **many: Any,
) -> int:
    """Run an ended job again, or all that match a filter, on the storage that it left, as a new
    attempt."""
    if wait and watch:
        raise click.UsageError("--wait and --watch can't go together; --watch waits too")
    if wants_many(name, many):
        if wait or watch or from_step is not None:
            raise click.UsageError("--wait, --watch and --from-step go with a single job")
        return act_on_many(session, "rerun", **many)
    timeout = timeout or (1200 if wait else None)
    if wait or watch:
        session.code_after = code_of_wait(logs=watch, timeout=timeout)
    job = session.ask("rerun_job", name, from_step=from_step)
    show_object(session, job)
    if not (wait or watch):
        return 0
    from nemo_jobs.cli.watching import Watch, watch_to_end

    plan = Watch(job["name"], poll=poll_interval, timeout=timeout, logs=watch)
    return watch_to_end(session, plan, lines_to_stdout=False)

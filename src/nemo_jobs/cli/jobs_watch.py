"""`nemo jobs watch`."""

from typing import Any

import click

from nemo_jobs.cli.jobs_logs import which_lines
from nemo_jobs.cli.options import job_argument, job_command
from nemo_jobs.cli.session import Session


@click.command()
@job_argument()
@which_lines
@click.option("--limit", type=click.IntRange(1, 10000), metavar="N", help="Lines per request.")
@click.option("--timeout", type=click.IntRange(1), metavar="S", help="Give up after S seconds; exit 1.")
@click.option(
    "--poll-interval", type=click.IntRange(1), default=3, metavar="S", help="Longest pause between looks."
)
@click.option("--history/--no-history", default=True, help="Start with the lines that are there already.")
@job_command()
def watch(
    session: Session,
    name: str,
    limit: int | None,
    timeout: int | None,
    poll_interval: int,
    history: bool,
    **which: Any,
) -> int:
    """Follow a job to its end: its states on stderr, its log on stdout. Exit 0 if it completes."""
    from nemo_jobs.cli.watching import Watch, watch_to_end

    plan = Watch(name, poll=poll_interval, timeout=timeout, limit=limit, history=history, **which)
    return watch_to_end(session, plan, lines_to_stdout=True)

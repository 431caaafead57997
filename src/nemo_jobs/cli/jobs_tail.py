"""`nemo jobs tail`: the newest lines, and what comes after them."""

import time
from typing import Any

import click

from nemo_jobs.cli.jobs_logs import which_lines
from nemo_jobs.cli.options import job_argument, job_command
from nemo_jobs.cli.session import Session, stdout
from nemo_jobs.cli.text import clean


@click.command()
@job_argument()
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(1, 10000),
    default=100,
    show_default=True,
    metavar="N",
    help="Show the newest N lines.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until the job has ended.")
@which_lines
@job_command(format_letter=False)
def tail(session: Session, name: str, count: int, follow: bool, **which: Any) -> int:
    """Show the newest lines of a job's log, oldest first, times in the local zone."""
    if follow:
        from nemo_jobs.cli.following import Follow, follow_to_end

        return follow_to_end(session, Follow(name, tail=count, **which))
    answer = session.ask("list_job_logs", name, tail=count, **which)
    if session.flags.output_format in ("json", "raw"):
        session.json(answer, compact=session.flags.output_format == "raw")
        return 0
    show = line_printer(session)
    if answer["data"]:
        session.note(zone_note())
    for line in answer["data"]:
        session.data(show(line))
    if not answer["data"] and any(value is not None for value in which.values()):
        session.note("no lines for this attempt, step or task")
    return 0


def line_printer(session: Session) -> Any:
    """A function from a log line to its text: `[HH:MM:SS] step/task | message`."""
    colours = session.settings.colour and stdout().isatty()

    def show(line: Any) -> str:
        place = clean(f"{line['job_step']}/{line['job_task']}", colours=False)
        return f"[{local_time(line['timestamp'])}] {place} | {clean(line['message'], colours=colours)}"

    return show


def local_time(timestamp: str) -> str:
    """The time of day in the zone of this process."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(timestamp).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return timestamp


def zone_note() -> str:
    """Which zone the times are in."""
    now = time.localtime()
    offset = time.strftime("%z", now)
    return f"times are local: {time.strftime('%Z', now)} (UTC{offset[:3]}:{offset[3:]})"

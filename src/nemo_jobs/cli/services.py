"""`nemo services`: run the service in this terminal, and clean up behind it."""

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import click

from nemo_jobs.cli.main import stop_at_once
from nemo_jobs.cli.options import columns_option, global_options, pass_session
from nemo_jobs.cli.render import show_list
from nemo_jobs.cli.session import Session

_SWEPT = ("backend", "kind", "name", "made_at", "state", "message")
_STATES = {
    "found": "would be removed",
    "removed": "removed",
    "kept": "kept for now",
    "failed": "could not be removed",
}


@click.group()
def services() -> None:
    """Run the jobs service, and clean up behind it."""


@services.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@columns_option
@global_options(context_letter=False)
@pass_session
def sweep(session: Session, dry_run: bool, columns: str) -> int:
    """Remove what the service made at a backend, such as a Docker engine, and nobody owns.

    Only what bears the name of this service is looked at. What is younger than two minutes is kept.
    The service sweeps by itself every five minutes. Exit code 1 when something could not be removed
    or asked.
    """
    answer = session.ask("sweep", dry_run=dry_run)
    show_list(session, answer, columns=columns, default=_SWEPT)
    for problem in answer["unavailable"]:
        session.note(f"could not be asked: {problem}")
    counts = Counter(one["state"] for one in answer["data"])
    said = ", ".join(f"{counts[state]} {word}" for state, word in _STATES.items() if counts[state])
    session.note(said or "nothing without an owner was found")
    return int(bool(counts["failed"] or answer["unavailable"]))


@services.command()
@click.option("--host", help="Address to listen on.  [default: service.host, 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [default: 8080]"
)
@click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where the service keeps its data."
)
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="Configuration file (YAML).")
@click.option(
    "--role",
    type=click.Choice(["all", "api", "engine"]),
    default="all",
    show_default=True,
    help="Serve the API, run jobs, or both; one of the two needs PostgreSQL.",
)
@click.option(
    "--insecure-no-auth",
    is_flag=True,
    help="Listen on an address that others reach, without asking for tokens.",
)
def run(
    host: str | None,
    port: int | None,
    data_dir: Path | None,
    config: Path | None,
    role: str,
    insecure_no_auth: bool,
) -> None:
    """Serve the API and run jobs until SIGTERM or Ctrl-C.

    Exit code 0 after a stop, 2 when it can't start as asked. Jobs on this host go on after it.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_at_once)
    from nemo_jobs.preflight import ServiceOptions
    from nemo_jobs.service import run_service

    options = ServiceOptions(host, port, data_dir, config, role, insecure_no_auth)  # type: ignore[arg-type]
    sys.exit(run_service(options, os.environ))

"""`nemo services`: run the service in this terminal."""

import os
import signal
import sys
from pathlib import Path

import click

from nemo_jobs.cli.main import stop_at_once


@click.group()
def services() -> None:
    """Run the jobs service."""


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

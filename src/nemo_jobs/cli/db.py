"""`nemo db`: care for the service's database."""

from pathlib import Path

import click

from nemo_jobs.cli.options import global_options, pass_session
from nemo_jobs.cli.session import CommandError, Session


@click.group()
def db() -> None:
    """Care for the service's database."""


@db.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--data-dir", type=click.Path(path_type=Path), help="Data directory of the service.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Its configuration file.")
@global_options()
@pass_session
def backup(session: Session, file: Path, data_dir: Path | None, config_file: Path | None) -> None:
    """Write a complete copy of the database to FILE, also while the service runs."""
    from nemo_jobs.config import ConfigError, default_data_dir, load_settings
    from nemo_jobs.domain.model import NemoJobsError
    from nemo_jobs.store.db import backup as copy

    try:
        loaded = load_settings(config_file, session.environ)
    except ConfigError as error:
        raise CommandError(str(error), 2) from error
    directory = (data_dir or default_data_dir(session.environ)).absolute()
    url = loaded.settings.database.url or f"sqlite:///{directory}/nemo-jobs.db"
    try:
        copy(url, file.absolute())
    except NemoJobsError as error:
        raise CommandError(str(error)) from error
    session.note(f"wrote {file} ({file.stat().st_size} bytes)")

"""`nemo db`: care for the service's database."""

from pathlib import Path

import click

from nemo_jobs.cli.options import global_options, pass_session
from nemo_jobs.cli.session import CommandError, Session, can_ask


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
    from nemo_jobs.domain.model import NemoJobsError
    from nemo_jobs.store.db import backup as copy

    try:
        copy(_url(session, data_dir, config_file), file.absolute())
    except NemoJobsError as error:
        raise CommandError(str(error)) from error
    session.note(f"wrote {file} ({file.stat().st_size} bytes)")


@db.command("forget-secrets")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Data directory of the service.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Its configuration file.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@global_options()
@pass_session
def forget_secrets(session: Session, data_dir: Path | None, config_file: Path | None, yes: bool) -> int:
    """Delete all secrets, when their key is lost for good and services refuse to start.

    Without its key no value can be had back. Stop all services first.
    """
    from nemo_jobs.domain.model import NemoJobsError
    from nemo_jobs.secret_store import forget_secrets as forget

    url = _url(session, data_dir, config_file)
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        raise CommandError(f"there is no database {url.removeprefix('sqlite:///')}")
    if not (yes or can_ask()):
        raise click.UsageError("nobody can be asked here: add --yes to delete all secrets of this database")
    if not yes and not click.confirm("Delete all secrets of this database?", err=True):
        session.note("nothing was done")
        return 1
    try:
        gone = forget(url)
    except (NemoJobsError, OSError) as error:
        raise CommandError(f"{error}; stop the services that use it first") from error
    noun = "secret" if gone == 1 else "secrets"
    session.note(f"deleted {gone} {noun}; the next one makes a new key")
    return 0


def _url(session: Session, data_dir: Path | None, config_file: Path | None) -> str:
    """The database of a service with these options."""
    from nemo_jobs.config import ConfigError, default_data_dir, load_settings

    try:
        loaded = load_settings(config_file, session.environ)
    except ConfigError as error:
        raise CommandError(str(error), 2) from error
    directory = (data_dir or default_data_dir(session.environ)).absolute()
    return loaded.settings.database.url or f"sqlite:///{directory}/nemo-jobs.db"

"""`nemo auth`: tokens for a service that asks for them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nemo_jobs.cli.jobs_prune import age
from nemo_jobs.cli.options import columns_option, global_options, name_argument, pass_session
from nemo_jobs.cli.render import note_pages, show_list, show_object
from nemo_jobs.cli.session import CommandError, Session

if TYPE_CHECKING:
    from nemo_jobs.local_tokens import Place

_KEYS = (
    *("id", "principal", "description", "grants", "created_at", "created_by"),
    *("expires_at", "revoked_at"),
)
_COLUMNS = ("id", "principal", "grants", "created_at", "expires_at", "revoked_at")


@click.group()
def auth() -> None:
    """Who may call a service that asks for tokens."""


@auth.group()
def tokens() -> None:
    """Tokens: make, list and revoke them.

    Over the API this takes the scope admin. With --data-dir or --database-url it works on the
    service's own machine, for the first token of an installation.
    """


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    return None if value is None else age(context, parameter, value)


def _grants(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for value in values:
        workspace, equals, scopes = value.partition("=")
        if not equals or not workspace or not scopes:
            raise click.BadParameter(f"'{value}' must be WORKSPACE=SCOPE, like lab=write or '*=admin'")
        found.setdefault(workspace, []).extend(scopes.split(","))
    return found


def _place_options(command: Any) -> Any:
    for option in (
        click.option(
            "--config", type=click.Path(path_type=Path), help="The service's configuration file, for its URL."
        ),
        click.option("--database-url", metavar="URL", help="Use this database instead of the API."),
        click.option(
            "--data-dir", type=click.Path(path_type=Path), help="Use the database in this data directory."
        ),
    ):
        command = option(command)
    return command


@tokens.command()
@name_argument("principal", "PRINCIPAL")
@click.option(
    "--grant",
    "grants",
    multiple=True,
    callback=_grants,
    metavar="WORKSPACE=SCOPE",
    help="What it may do where: read, write, admin or service; '*' is everywhere. Repeatable.",
)
@click.option("--description", metavar="TEXT", help="A sentence for people.")
@click.option("--expires", "seconds", callback=_seconds, metavar="AGE", help="How long it holds, like 30d.")
@_place_options
@global_options()
@pass_session
def create(
    session: Session,
    principal: str,
    grants: dict[str, list[str]],
    description: str | None,
    seconds: int | None,
    data_dir: Path | None,
    database_url: str | None,
    config: Path | None,
) -> None:
    """Make a token for PRINCIPAL, the name that records show; it is printed this once.

    On the service's own machine and without --grant it is an admin's ('*=admin').
    """
    place = _place(session, data_dir, database_url, config)
    if place is not None:
        from nemo_jobs import local_tokens

        made = _locally(
            lambda: local_tokens.create(place, principal, grants, description=description, seconds=seconds)
        )
    elif not grants:
        raise click.UsageError("give at least one --grant WORKSPACE=SCOPE, like --grant lab=write")
    else:
        made = session.ask(
            "create_token", principal, grants=grants, description=description, expires_in_seconds=seconds
        )
    show_object(session, made)
    session.note("keep the token now: it is not shown again. The nemo command sends NHX_ACCESS_TOKEN.")


@tokens.command("list")
@click.option("--page", type=click.IntRange(1), default=1, metavar="N", help="Number of the page.")
@click.option("--page-size", type=click.IntRange(1, 1000), default=100, metavar="N", help="Items per page.")
@columns_option
@_place_options
@global_options(context_letter=False)
@pass_session
def list_tokens(
    session: Session,
    page: int,
    page_size: int,
    columns: str,
    data_dir: Path | None,
    database_url: str | None,
    config: Path | None,
) -> None:
    """List tokens, revoked and expired ones for 30 days too; never what they are themselves."""
    place = _place(session, data_dir, database_url, config)
    if place is not None:
        from nemo_jobs import local_tokens

        answer = _locally(lambda: local_tokens.listed(place, page, page_size))
    else:
        answer = session.ask("list_tokens", page=page, page_size=page_size)
    show_list(session, answer, columns=columns, default=_COLUMNS, keys=_KEYS)
    note_pages(session, answer, noun="tokens")


@tokens.command()
@name_argument("token_id", "ID")
@_place_options
@global_options()
@pass_session
def revoke(
    session: Session,
    token_id: str,
    data_dir: Path | None,
    database_url: str | None,
    config: Path | None,
) -> None:
    """Revoke the token with this ID; within 5 seconds nobody is let in by it."""
    place = _place(session, data_dir, database_url, config)
    if place is not None:
        from nemo_jobs import local_tokens

        gone = _locally(lambda: local_tokens.revoke(place, token_id))
    else:
        gone = session.ask("revoke_token", token_id)
    show_object(session, gone)


def _place(
    session: Session, data_dir: Path | None, database_url: str | None, config: Path | None
) -> "Place | None":
    """Which database to use; None: ask the API."""
    if data_dir is None and database_url is None and config is None:
        return None
    if data_dir is not None and database_url is not None:
        raise click.UsageError("--data-dir and --database-url name two databases; give one")
    if session.prints_code:
        raise click.UsageError("-f code shows calls of the API, which --data-dir and its like don't make")
    from nemo_jobs.local_tokens import Place

    return Place(session.environ, data_dir, database_url, config)


def _locally(act: Callable[[], Any]) -> Any:
    from nemo_jobs.config import ConfigError
    from nemo_jobs.domain.model import Invalid, NemoJobsError

    try:
        return act()
    except (ConfigError, Invalid) as error:
        raise CommandError(str(error), 2) from error
    except (NemoJobsError, OSError) as error:
        raise CommandError(str(error)) from error

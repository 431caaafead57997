"""`nemo secrets`. A value comes from standard input, a file or a prompt, never from an argument."""

import sys
from typing import Any

import click

from nemo_jobs.cli.jobs_list import merge_pages
from nemo_jobs.cli.options import (
    global_options,
    name_argument,
    paging_options,
    pass_session,
    workspace_option,
)
from nemo_jobs.cli.render import note_pages, show_list, show_object
from nemo_jobs.cli.session import CommandError, Session

_KEYS = ("name", "workspace", "description", "created_at", "updated_at")
_SORTS = ("name", "-name", "created_at", "-created_at", "updated_at", "-updated_at")
_LARGEST = 64 << 10
#: Stands for the value in the Python that `-f code` shows.
_PLACE = "the value"
_IN_ARGUMENTS = (
    "a value in an argument can be read by everybody on this machine and stays in the shell's history; "
    "pipe it in, or use --from-file FILE"
)


@click.group()
def secrets() -> None:
    """Secrets: values that steps get as variables and nobody can read back."""


def _value_options(command: Any) -> Any:
    for option in (
        click.option("--value", hidden=True, expose_value=False, callback=_refuse),
        click.option(
            "--keep-newline", is_flag=True, help="Keep a line feed at the end, which is cut otherwise."
        ),
        click.option(
            "--from-file", "file", metavar="FILE", help="Read the value from FILE; '-' is standard input."
        ),
        click.option("--description", metavar="TEXT", help="A sentence for people."),
    ):
        command = option(command)
    return command


def _refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(_IN_ARGUMENTS)


@secrets.command()
@name_argument()
@_value_options
@global_options()
@workspace_option
@pass_session
def create(
    session: Session, name: str, description: str | None, file: str | None, keep_newline: bool
) -> None:
    """Store a secret. Its value is read from standard input, or asked for on a terminal."""
    value = _value(session, file, keep_newline)
    _show(session, session.ask("create_secret", name, value, description=description))


@secrets.command()
@name_argument()
@_value_options
@global_options()
@workspace_option
@pass_session
def update(
    session: Session, name: str, description: str | None, file: str | None, keep_newline: bool
) -> None:
    """Give a secret another value. With --description and no --from-file only that is changed.

    Steps that run keep the value they were started with.
    """
    value = None
    if file is not None or description is None:
        value = _value(session, file, keep_newline)
    _show(session, session.ask("update_secret", name, value=value, description=description))


@secrets.command("list")
@paging_options(_SORTS)
@global_options(context_letter=False)
@workspace_option
@pass_session
def list_secrets(
    session: Session,
    page: int | None,
    page_size: int | None,
    sort: str | None,
    all_pages: bool,
    stream: bool,
    columns: str,
) -> None:
    """List secrets, without their values."""
    if all_pages and page:
        raise click.UsageError("--page and --all-pages can't go together")

    def ask(number: int | None) -> Any:
        return session.ask("list_secrets", page=number, page_size=page_size, sort=sort)

    answer = ask(page)
    if all_pages:
        answer = merge_pages(answer, ask)
    default = ("name", "description", "created_at", "updated_at")
    show_list(session, answer, columns=columns, default=default, keys=_KEYS, stream=stream)
    note_pages(session, answer, noun="secrets")


@secrets.command()
@name_argument()
@global_options()
@workspace_option
@pass_session
def get(session: Session, name: str) -> None:
    """Show a secret, without its value."""
    show_object(session, session.ask("get_secret", name))


@secrets.command()
@name_argument()
@global_options()
@workspace_option
@pass_session
def delete(session: Session, name: str) -> None:
    """Delete a secret. Steps that wait for it end with an error; those that run go on."""
    session.ask("delete_secret", name)
    session.note(f"deleted secret '{name}'")


@secrets.command("rotate-key")
@click.option(
    "--old-key-leaked",
    is_flag=True,
    help="Don't hand the new key to other services through the database; copy the key file to them.",
)
@global_options()
@pass_session
def rotate_key(session: Session, old_key_leaked: bool) -> None:
    """Encrypt all secrets with a new key, while everything goes on.

    After an interruption the same command goes on where it was.
    """
    hand_over = False if old_key_leaked else None
    answer = session.ask("rotate_secrets_key", hand_over=hand_over)
    changed = answer["changed"]
    while not answer["finished"] and answer["changed"]:
        session.note(f"{changed} changed, {answer['left']} left")
        answer = session.ask("rotate_secrets_key", hand_over=hand_over)
        changed += answer["changed"]
    show_object(session, {**answer, "changed": changed})
    if not answer["finished"]:
        names = ", ".join(answer["unreadable"]) or f"{answer['left']} values"
        raise CommandError(
            f"some values can't be decrypted and stay under the old key: {names}; "
            "set them again or delete them, then repeat this command"
        )


def _show(session: Session, answer: Any) -> None:
    show_object(session, answer)
    for note in answer.get("notes", ()):
        session.note(f"note: {note}")


def _value(session: Session, file: str | None, keep_newline: bool) -> str:
    if session.prints_code:
        return _PLACE
    if file is None and sys.stdin is not None and sys.stdin.isatty():
        asked: str = click.prompt("Value", hide_input=True, confirmation_prompt=True, err=True)
        return asked
    where = "standard input" if file in (None, "-") else str(file)
    raw = _read(None if file in (None, "-") else file, where)
    try:
        value = raw.decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"{where}: isn't UTF-8 text; encode it, for instance in base64") from None
    if not keep_newline:
        value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise click.UsageError(f"{where}: holds no value")
    return value


def _read(file: str | None, where: str) -> bytes:
    try:
        if file is None:
            raw = sys.stdin.buffer.read(_LARGEST + 3) if sys.stdin is not None else b""
        else:
            from pathlib import Path

            with Path(file).open("rb") as stream:
                raw = stream.read(_LARGEST + 3)
    except OSError as error:
        raise click.UsageError(f"{where}: can't be read: {error.strerror}") from error
    if len(raw) > _LARGEST + 2:
        raise click.UsageError(f"{where}: is larger than 64 KiB")
    return raw

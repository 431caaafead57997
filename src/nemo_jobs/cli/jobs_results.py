"""`nemo jobs results`: what jobs leave behind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from nemo_jobs.cli.inputs import check_input, input_options, read_input
from nemo_jobs.cli.options import (
    attempt_option,
    columns_option,
    job_argument,
    job_command,
    job_option,
    name_argument,
    nonempty,
)
from nemo_jobs.cli.render import show_list, show_object
from nemo_jobs.cli.session import CommandError, OutputLost, Session, flush, stdout

if TYPE_CHECKING:
    from nemo_jobs.client.transfer import Download

_SORTS = ("created_at", "-created_at", "updated_at", "-updated_at")
_COLUMNS = ("name", "workspace", "created_at")
_KEYS = (
    "name",
    "job",
    "workspace",
    "project",
    "created_at",
    "updated_at",
    "artifact_url",
    "artifact_storage_type",
    "download_url",
    "attempt_id",
    "step",
    "original_name",
)
_attempt = attempt_option("What this attempt left: its number, its id or 'current'.  [the newest]")


@click.group()
def results() -> None:
    """The results of a job: files and folders that it left, or that were uploaded for it."""


@results.command("list")
@job_argument("job", "JOB")
@click.option("--sort", type=click.Choice(_SORTS), help="Order; '-' in front: descending.")
@columns_option
@click.option("--stream", is_flag=True, help="One JSON object per line (json, raw).")
@_attempt
@job_command(context_letter=False)
def list_results(
    session: Session, job: str, sort: str | None, columns: str, stream: bool, attempt_id: int | str | None
) -> None:
    """List the results of a job."""
    answer = session.ask("list_job_results", job, sort=sort, attempt_id=attempt_id)
    show_list(session, answer, columns=columns, default=_COLUMNS, keys=_KEYS, stream=stream)


@results.command("get")
@name_argument()
@job_option
@_attempt
@job_command()
def get_result(session: Session, name: str, job: str, attempt_id: int | str | None) -> None:
    """Show a result."""
    show_object(session, session.ask("get_job_result", name, job=job, attempt_id=attempt_id))


@results.command("create")
@name_argument()
@job_option
@click.option(
    "--artifact-url", metavar="URL", help="WORKSPACE/FILESET#PATH; '/' at the end: a folder.  [required]"
)
@click.option(
    "--artifact-storage-type", type=click.Choice(["fileset"]), help="Where the artifact is.  [required]"
)
@click.option(
    "--attempt-id", callback=nonempty, metavar="ID", help="The attempt that made it.  [the current]"
)
@input_options
@job_command()
def create_result(
    session: Session, name: str, job: str, input_file: str | None, input_data: str | None, **options: Any
) -> None:
    """Make a file or folder of a fileset a result of a job."""
    given = {key: value for key, value in options.items() if value is not None}
    fields = read_input(input_file, input_data) | given
    texts = ("artifact_url", "artifact_storage_type", "attempt_id")
    check_input(fields, texts=texts, required=texts[:2])
    show_object(session, session.ask("create_job_result", name, job=job, **fields))


@results.command("upload")
@name_argument()
@click.argument("path", metavar="PATH", callback=nonempty)
@job_option
@job_command()
def upload(session: Session, name: str, path: str, job: str) -> None:
    """Upload a file or a folder and make it a result of a job. Links in a folder are left out.

    Under a name that the same attempt has uploaded before, its files are replaced.
    """
    left_out = _check_upload(name, path)
    result = session.ask("upload_job_result", name, path, job=job)
    if left_out:
        session.note(f"{left_out} links and special files in {path} were left out")
    show_object(session, result)


def _check_upload(name: str, path: str) -> int:
    """Refuse what would fail only after everything has been sent; how much will be left out."""
    import os

    from nemo_jobs.client.transfer import files_below
    from nemo_jobs.domain.names import NAME_RULE, is_name

    if not is_name(name):
        raise click.UsageError(f"'{name}' can't be the name of a result; a name has {NAME_RULE}")
    if not os.path.exists(path):  # noqa: PTH110 - pathlib is slow to load
        raise click.UsageError(f"{path}: there is no such file or folder")
    if not os.path.isdir(path):  # noqa: PTH112
        return 0
    sent = sum(1 for _ in files_below(path))
    if not sent:
        raise click.UsageError(f"{path}: there is no file in this folder")
    found = 0
    for place, folders, files in os.walk(path):
        links = [folder for folder in folders if os.path.islink(f"{place}/{folder}")]  # noqa: PTH114
        found += len(files) + len(links)
    return found - sent


@results.command("download")
@name_argument()
@job_option
@click.option(
    "-o",
    "--output-file",
    "target",
    required=True,
    callback=nonempty,
    metavar="FILE",
    help="Where to write it: a file, a folder to write it into, or '-' for standard output.",
)
@_attempt
@job_command()
def download(session: Session, name: str, job: str, target: str, attempt_id: int | str | None) -> None:
    """Download a result; a folder comes as a .tar.gz. The file appears whole or not at all."""
    if target == "-":
        session.code_after = ("import sys", "sys.stdout.buffer.write(answer.read())")
    else:
        session.code_after = (f"print(answer.write_to_file({target!a}))",)
    with session.ask("download_job_result", name, job=job, attempt_id=attempt_id) as content:
        if target == "-":
            _print(content)
            return
        try:
            written = content.write_to_file(target)
        except OSError as error:
            raise CommandError(f"{target} can't be written: {error.strerror or error}") from error
    session.note(f"downloaded '{name}' to {written}")


def _print(content: Download) -> None:
    """The bytes as they are, to standard output."""
    flush()
    raw = getattr(stdout(), "buffer", None) or sys.stdout.buffer
    for piece in content:
        try:
            raw.write(piece)
        except OSError as error:
            raise OutputLost("" if isinstance(error, BrokenPipeError) else str(error.strerror)) from error

"""`nemo jobs prune`: delete ended jobs by age, one by one through the API."""

import re
from typing import Any

import click

from nemo_jobs.cli.options import job_command
from nemo_jobs.cli.session import Session
from nemo_jobs.cli.text import clean
from nemo_jobs.client import Conflict, NotFound

_AGE = re.compile(r"([0-9]{1,9})\s*(s|m|h|d|w)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PAGE = 1000


def age(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """An age like `30d` in seconds."""
    match = _AGE.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"'{value}' is not an age; write a number and s, m, h, d or w, like 30d")
    return int(match[1]) * _UNITS[match[2]]


@click.command()
@click.option(
    "--older-than", "seconds", required=True, callback=age, metavar="AGE", help="Like 30d, 12h or 2w."
)
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, delete nothing.")
@job_command()
def prune(session: Session, seconds: int, dry_run: bool) -> int:
    """Delete completed, failed and cancelled jobs that have not changed for so long, with their
    logs and storage. Prints a name per job."""
    names = find(session, seconds)
    if dry_run:
        for workspace, name in names:
            session.data(_shown(workspace, name))
        session.note(f"would delete {len(names)} jobs; nothing was changed")
        return 0
    deleted = 0
    client = session.client()
    for workspace, name in names:
        session.hint = f"{deleted} of {len(names)} jobs were deleted; the same command goes on"
        try:
            client.delete_job(name, workspace=workspace)
        except NotFound:
            continue
        except Conflict as error:
            session.note(f"kept '{name}': {error}")
            continue
        deleted += 1
        session.data(_shown(workspace, name))
    session.hint = ""
    session.note(f"deleted {deleted} jobs")
    return 0


def find(session: Session, seconds: int) -> list[tuple[str, str]]:
    """Workspace and name of the jobs that are old enough, oldest first. All are collected before
    the first is deleted, because deleting moves the pages."""
    query: dict[str, Any] = {
        "page_size": _PAGE,
        "sort": "updated_at",
        "filter": {
            "status": {"$in": ["completed", "error", "cancelled"]},
            "updated_at": {"$lt": _moment(seconds)},
        },
    }
    found: dict[str, tuple[str, str]] = {}
    page, pages = 0, 1
    while page < pages:
        page += 1
        answer = session.ask("list_jobs", page=page, **query)
        pages = answer["pagination"]["total_pages"]
        found.update({job["id"]: (job["workspace"], job["name"]) for job in answer["data"]})
    return list(found.values())


def _moment(seconds: int) -> str:
    from datetime import UTC, datetime, timedelta

    try:
        moment = datetime.now(UTC) - timedelta(seconds=seconds)
    except OverflowError as error:
        raise click.UsageError("--older-than reaches before the first year") from error
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _shown(workspace: str, name: str) -> str:
    return clean(name if workspace == "default" else f"{workspace}/{name}", colours=False)

"""Cancel, delete and rerun with a filter: shows how many jobs match, asks, and tells what happened."""

from typing import Any

import click

from nemo_jobs.cli.jobs_list import joined_filter
from nemo_jobs.cli.labels import Labels, label_option
from nemo_jobs.cli.render import show_list
from nemo_jobs.cli.session import CommandError, Session, can_ask
from nemo_jobs.cli.text import clean
from nemo_jobs.client import Conflict

_SHOWN = 5  # names in the question
_RECOUNTS = 5
_DONE = {"cancel": "cancelled", "delete": "deleted", "rerun": "run again"}
_COLUMNS = ("name", "outcome", "status", "detail")
_COUNTS = ("done", "unchanged", "refused", "gone", "failed")


def bulk_options(command: Any) -> Any:
    """`--filter` and what goes with it."""
    for option in (
        click.option("--dry-run", is_flag=True, help="With a filter: only say what would be done."),
        click.option("-y", "--yes", is_flag=True, help="With a filter: don't ask."),
        label_option("All jobs with this label; repeatable."),
        click.option("--filter", "expression", metavar="EXPR", help="All jobs that match; JSON or text."),
    ):
        command = option(command)
    return command


def wants_many(name: str | None, many: dict[str, Any]) -> bool:
    """Whether a filter was given and not a name. Raises UsageError for both or neither."""
    filtered = many["expression"] is not None or bool(many["labels"])
    if filtered and name is not None:
        raise click.UsageError("a NAME can't go together with --filter or --label")
    if not filtered and name is None:
        raise click.UsageError("which job? Give its NAME, or --filter or --label for all that match")
    if not filtered and (many["yes"] or many["dry_run"]):
        raise click.UsageError("--yes and --dry-run go with --filter or --label")
    return filtered


def act_on_many(
    session: Session, verb: str, *, expression: str | None, labels: Labels, yes: bool, dry_run: bool
) -> int:
    """Do it to all that match; the exit code: 1 when some job was refused or failed."""
    if not (yes or dry_run or can_ask()):
        raise click.UsageError(f"nobody can be asked here: add --yes to {verb} all that match, or --dry-run")
    where = joined_filter(expression, {}, labels)
    if not dry_run:
        session.code_after = _code(f"client.{verb}_jobs({where!a}")
    seen = session.ask(f"{verb}_jobs", where, dry_run=True)
    if dry_run:
        _show(session, seen)
        session.note(f"{seen['count']} {_noun(seen['count'])} match; nothing was done")
        return 0
    if not seen["count"]:
        session.note("no job matches; nothing was done")
        return 0
    if not yes and not click.confirm(_question(session, verb, seen), err=True):
        session.note("nothing was done")
        return 1
    answer = _walked(session, verb, where, seen["count"])
    _show(session, answer)
    rest = ", ".join(f"{answer[name]} {name}" for name in _COUNTS[1:] if answer[name])
    done = f"{_DONE[verb]}: {answer['done']} {_noun(answer['done'])}"
    session.note(f"{done}; {rest}" if rest else done)
    return 1 if answer["refused"] or answer["failed"] else 0


def _code(call: str) -> tuple[str, ...]:
    """The Python that does it, once `answer` is what a dry run has said."""
    return (
        f"answer = {call}, expected_count=answer['count'])",
        "while answer['next']:",
        "    left = answer['count'] - len(answer['data'])",
        f"    answer = {call}, expected_count=left, cursor=answer['next'])",
    )


def _noun(count: int) -> str:
    return "job" if count == 1 else "jobs"


def _question(session: Session, verb: str, seen: dict[str, Any]) -> str:
    count = seen["count"]
    names = ", ".join(clean(job["name"], colours=False) for job in seen["data"][:_SHOWN])
    shown = names if count <= _SHOWN else f"{names}, …"
    workspace = session.workspace or session.settings.workspace
    return f"{verb} {count} {_noun(count)} in workspace '{workspace}' ({shown})?"


def _walked(session: Session, verb: str, where: Any, agreed: int) -> dict[str, Any]:
    """All calls as one answer. No more jobs than were agreed to: some may drop out on the way."""
    whole: dict[str, Any] = {"action": verb, "count": agreed, **dict.fromkeys(_COUNTS, 0), "data": []}
    left, cursor, recounts = agreed, None, 0
    while True:
        session.hint = f"{whole['done']} of {agreed} jobs were {_DONE[verb]}; the same command goes on"
        try:
            answer = session.ask(f"{verb}_jobs", where, expected_count=left, cursor=cursor)
        except Conflict as error:
            recounts += 1
            now = session.ask(f"{verb}_jobs", where, dry_run=True, cursor=cursor)["count"]
            if cursor is None or now > left or recounts > _RECOUNTS:
                raise CommandError(f"{error}\n{session.hint}" if cursor else str(error), 3) from error
            left = now
            continue
        for name in _COUNTS:
            whole[name] += answer[name]
        whole["data"] += answer["data"]
        left, cursor = answer["count"] - len(answer["data"]), answer["next"]
        if cursor is None or answer["failed"]:
            session.hint = ""
            return whole


def _show(session: Session, answer: dict[str, Any]) -> None:
    show_list(session, answer, columns="default", default=_COLUMNS, keys=("id", *_COLUMNS))

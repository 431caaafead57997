"""Log records from outside: into the log of the attempt that they name, or refused with a reason."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.model import NotFound
from nemo_jobs.store import logs
from nemo_jobs.store.chunks import Chunk, LogBatch
from nemo_jobs.store.driver import off_loop
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import attempt, job, step
from nemo_jobs.store.tables_files import fileset

#: More sources than this are not looked up on the event loop.
FEW = 20
_SHOWN = 100


class Incoming(NamedTuple):
    """Records of one task, as the chunk of lines they make. `job` is a name or an id."""

    job: str
    attempt: str
    step: str
    task: str
    chunk: Chunk
    records: int


class Where(NamedTuple):
    """The fileset that records are sent to. With an attempt, only records of that one are taken."""

    workspace: str
    fileset: str
    attempt: str | None = None


@dataclass(slots=True)
class _Place:
    """Where the records of one source go, or why nowhere."""

    task: str = ""
    job: str = ""
    size: int = 0  # bytes of lines that the log holds
    problem: str = ""


_FIND = Statement(
    sa.select(job.c.id, job.c.name, job.c.fileset, attempt.c.log_bytes, step.c.id)
    .select_from(
        attempt.join(job, job.c.id == attempt.c.job_id).outerjoin(
            step, sa.and_(step.c.attempt_id == attempt.c.id, step.c.name == sa.bindparam("of_step"))
        )
    )
    .where(attempt.c.id == sa.bindparam("of_attempt"), job.c.workspace == sa.bindparam("of_workspace"))
)
_FILESET = Statement(
    sa.select(fileset.c.id).where(
        fileset.c.workspace == sa.bindparam("of_workspace"), fileset.c.name == sa.bindparam("of_name")
    )
)
_OWN = Statement(
    sa.select(job.c.fileset).where(
        job.c.workspace == sa.bindparam("of_workspace"), job.c.name == sa.bindparam("of_name")
    )
)


def ingest(tx: Tx, where: Where, incoming: Sequence[Incoming], limit: int, now: int) -> Counter[str]:
    """Store what can be stored; how many records were refused, by the reason in words.

    `limit` is that of an attempt's log in bytes. Raises NotFound for an unknown fileset."""
    check_fileset(tx, where.workspace, where.fileset)
    refused: Counter[str] = Counter()
    places: dict[tuple[str, str, str, str], _Place] = {}
    sizes: dict[str, int] = {}
    for item in incoming:
        source = item[:4]
        place = places.get(source)
        if place is None:
            place = places[source] = _find(tx, where, item)
        if not place.problem and sizes.setdefault(item.attempt, place.size) >= limit:
            place.problem = f"the log of job {place.job!r} has reached its limit of {limit} bytes"
        if place.problem:
            refused[place.problem] += item.records
            continue
        sizes[item.attempt] = _append(tx, item, place.task, limit, now)
    return refused


@off_loop
def ingest_from_many(
    tx: Tx, where: Where, incoming: Sequence[Incoming], limit: int, now: int
) -> Counter[str]:
    """Like `ingest`, for more than a `FEW` sources."""
    return ingest(tx, where, incoming, limit, now)


def check_fileset(tx: Tx, workspace: str, name: str) -> None:
    """Raise NotFound when there is neither such a fileset nor a job whose own it is."""
    if tx.one(_FILESET, {"of_workspace": workspace, "of_name": name}) is not None:
        return
    own = name.removeprefix(names.FILESET_PREFIX)
    row = tx.one(_OWN, {"of_workspace": workspace, "of_name": own}) if own != name else None
    if row is None or row[0] != name:
        raise NotFound(f"no fileset {name[:_SHOWN]!r} in workspace {workspace!r}")


def _find(tx: Tx, where: Where, item: Incoming) -> _Place:
    workspace = where.workspace
    job_told, attempt_told, step_told, task_told = (repr(text[:_SHOWN]) for text in item[:4])
    if any("\0" in text for text in item[:4]):
        return _Place(problem="a name has a NUL character in it")
    row = tx.one(_FIND, {"of_workspace": workspace, "of_attempt": item.attempt, "of_step": item.step})
    if row is None:
        return _Place(problem=f"workspace {workspace!r} has no attempt {attempt_told}")
    job_id, name, own, size, step_id = row
    if item.job not in (name, job_id):
        return _Place(problem=f"attempt {attempt_told} is not of a job {job_told}")
    if where.attempt not in (None, item.attempt):
        return _Place(problem=f"the token is for attempt {where.attempt!r} alone, not for {attempt_told}")
    if own != where.fileset:
        return _Place(problem=f"the logs of job {name!r} belong to fileset {own!r}")
    if step_id is None:
        return _Place(problem=f"attempt {attempt_told} of job {name!r} has no step {step_told}")
    task = _task_name(item.task)
    if task is None:
        return _Place(problem=f"{task_told} can't be the name of a task: {names.NAME_RULE}")
    return _Place(task, name, size)


def _task_name(told: str) -> str | None:
    """A pod says its uid alone; its task is called `task-<uid>`."""
    if names.is_name(told):
        return told
    return f"task-{told}" if names.is_name(f"task-{told}") else None


def _append(tx: Tx, item: Incoming, task: str, limit: int, now: int) -> int:
    chunk = item.chunk
    size = logs.append(tx, item.attempt, item.step, LogBatch((replace(chunk, task=task),), {}))
    if size - chunk.size < limit <= size:  # this chunk has reached it, and no other can have
        text = f"[nemo-jobs] log limit of {limit} bytes reached; later output is discarded\n"
        marker = Chunk(task, "stdout", now, 1, text.encode())
        size = logs.append(tx, item.attempt, item.step, LogBatch((marker,), {}))
    return size

"""Results: what a job leaves behind under a name.

A name is posted once per job. What a step leaves in its directory of results is collected anew by
each attempt: under one name the newest attempt's is shown, the earlier ones when they are asked for.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.artifacts import Artifact, parse_artifact
from nemo_jobs.domain.model import Conflict, Invalid, JobRecord, NotFound
from nemo_jobs.store import files, filesets, steps
from nemo_jobs.store.driver import off_loop
from nemo_jobs.store.files import Written
from nemo_jobs.store.logs import attempt_of
from nemo_jobs.store.lookup import get_job, lock_job
from nemo_jobs.store.sql import Statement, Tx, insert_into, listed
from nemo_jobs.store.tables import attempt
from nemo_jobs.store.tables_files import file, object_removal, result

#: Results of one job, all attempts together.
MOST_RESULTS = 10_000
SERVICE = "service:jobs"
#: In place of an attempt: the current one alone, where None would mean any.
CURRENT = "current"
_RESULT_ID = "result"
_STEP_PART = 28  # characters of a step's name that become part of a result's


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """`original_name` is what the step called it, where that is no legal name; `step` is None for
    one that was posted."""

    id: str
    job_id: str
    attempt_id: str
    step: str | None
    workspace: str
    name: str
    original_name: str | None
    artifact_url: str
    collected: int
    created_at: int
    updated_at: int

    @property
    def artifact(self) -> Artifact:
        return parse_artifact(self.artifact_url, self.workspace)

    @property
    def left_as(self) -> str:
        return self.original_name or self.name


@dataclass(frozen=True, slots=True)
class Gathered:
    """A file or folder that a step left, with its bytes stored. The only file of one that is no
    folder has an empty path."""

    name: str
    folder: bool
    files: tuple[tuple[str, Written], ...]


_OF_JOB = (
    sa.select(result)
    .join(attempt, attempt.c.id == result.c.attempt_id)
    .where(result.c.job_id == sa.bindparam("the_job"))
)
_later_result, _later_attempt = result.alias(), attempt.alias()
_IS_SHOWN = ~(
    sa.select(sa.literal_column("1"))
    .select_from(_later_result.join(_later_attempt, _later_attempt.c.id == _later_result.c.attempt_id))
    .where(
        _later_result.c.job_id == result.c.job_id,
        _later_result.c.name == result.c.name,
        _later_attempt.c.seq > attempt.c.seq,
    )
    .exists()
)
_OF_ATTEMPT = result.c.attempt_id == sa.bindparam("in_attempt")
_NAMED = result.c.name == sa.bindparam("asked")
_SHOWN = Statement(_OF_JOB.where(_NAMED).order_by(attempt.c.seq.desc()).limit(sa.literal_column("1")))
_NAMED_OF_ATTEMPT = Statement(_OF_JOB.where(_NAMED, _OF_ATTEMPT))
_ALL_OF_ATTEMPT = Statement(_OF_JOB.where(_OF_ATTEMPT))
_ALL_SHOWN = Statement(_OF_JOB.where(_IS_SHOWN))
_COUNT = Statement(sa.select(sa.func.count()).where(result.c.job_id == sa.bindparam("the_job")))
_INSERT = Statement(lambda dialect: insert_into(result, dialect))
_REPLACE = Statement(
    sa.update(result)
    .where(result.c.id == sa.bindparam("the_id"))
    .values(artifact_url=sa.bindparam("artifact_url"), updated_at=sa.bindparam("now"))
)
_INSERT_FILE = Statement(lambda dialect: insert_into(file, dialect))
_ANNOUNCED = Statement(
    lambda dialect: (
        sa.select(object_removal.c.object)
        .where(object_removal.c.object.in_(listed(dialect, "keys")))
        .with_for_update()
    )
)
_ABANDON = Statement(
    lambda dialect: (
        sa.update(object_removal)
        .where(object_removal.c.object.in_(listed(dialect, "keys")))
        .values(due_at=sa.bindparam("due"))
    )
)
_KEEP = Statement(
    lambda dialect: sa.delete(object_removal).where(object_removal.c.object.in_(listed(dialect, "keys")))
)


def add_result(
    tx: Tx, workspace: str, job: str, name: str, artifact_url: str, attempt: int | str | None, now: int
) -> ResultRecord:
    """Post a result of the attempt (None: the current one). Raises NotFound for a job or attempt
    that is not there, Conflict for a name that is taken, Invalid for an artifact that can't be one."""
    found = lock_job(tx, workspace, job)
    attempt_id = _attempt_id(tx, found, CURRENT if attempt is None else attempt)
    if tx.one(_SHOWN, {"the_job": found.id, "asked": name}) is not None:
        raise Conflict(
            f"job {found.name!r} in workspace {workspace!r} has a result {name!r} already; "
            "choose another name, or get the one that is there"
        )
    check_artifact(tx, found, parse_artifact(artifact_url, workspace))
    row = tx.one(_COUNT, {"the_job": found.id})
    if row and row[0] >= MOST_RESULTS:
        raise Conflict(f"job {found.name!r} in workspace {workspace!r} has {MOST_RESULTS} results, the most")
    made = _made(found, attempt_id, name, artifact_url, now)
    _insert(tx, made)
    tx.wake("job", found.id)
    return made


def _made(
    found: JobRecord,
    attempt_id: str,
    name: str,
    artifact_url: str,
    now: int,
    step: str | None = None,
    left_as: str | None = None,
) -> ResultRecord:
    """A new result; one of a step knows what the step called it."""
    return ResultRecord(
        id=names.new_id(_RESULT_ID, now),
        job_id=found.id,
        attempt_id=attempt_id,
        step=step,
        workspace=found.workspace,
        name=name,
        original_name=left_as if left_as != name else None,
        artifact_url=artifact_url,
        collected=int(step is not None),
        created_at=now,
        updated_at=now,
    )


def check_artifact(tx: Tx, found: JobRecord, artifact: Artifact) -> str | None:
    """The id of the fileset that a result of this job may lie in; None when it is the job's own
    and was not made yet. Raises Invalid for one that is missing or belongs to another job."""
    place = filesets.find_fileset(tx, artifact.workspace, artifact.fileset)
    if place is not None and place.job_id in (None, found.id):
        return place.id
    if (artifact.workspace, artifact.fileset) == (found.workspace, found.fileset):
        return None
    where = f"fileset {artifact.fileset!r} in workspace {artifact.workspace!r}"
    if place is None:
        raise Invalid(f"artifact_url: there is no {where}; create it and upload the artifact first")
    raise Invalid(f"artifact_url: {where} belongs to another job; a result is a file of its own job")


def get_result(tx: Tx, workspace: str, job: str, name: str, attempt: int | str | None) -> ResultRecord:
    """The result of that name: the attempt's, or without one the newest attempt's. Raises NotFound."""
    return find_result(tx, workspace, job, name, attempt)[1]


def find_result(
    tx: Tx, workspace: str, job: str, name: str, attempt: int | str | None
) -> tuple[JobRecord, ResultRecord]:
    """Like `get_result`, with its job."""
    found = get_job(tx, workspace, job)
    key = {"the_job": found.id, "asked": name}
    if attempt is None:
        row = tx.one(_SHOWN, key)
    else:
        row = tx.one(_NAMED_OF_ATTEMPT, {**key, "in_attempt": _attempt_id(tx, found, attempt)})
    if row is None:
        of = "" if attempt is None else f" of attempt {attempt}"
        raise NotFound(f"no result {name!r}{of} in job {found.name!r} of workspace {workspace!r}")
    return found, ResultRecord(*row)


def _attempt_id(tx: Tx, found: JobRecord, attempt: int | str) -> str:
    return found.attempt_id if attempt == CURRENT else attempt_of(tx, found.id, attempt)


def list_results(
    tx: Tx, workspace: str, job: str, sort: str, attempt: int | str | None
) -> tuple[JobRecord, list[ResultRecord]]:
    """The job, and the attempt's results; without an attempt one of each name, the newest attempt's."""
    found = get_job(tx, workspace, job)
    if attempt is None:
        rows = tx.run(_ALL_SHOWN, {"the_job": found.id})
    else:
        key = {"the_job": found.id, "in_attempt": _attempt_id(tx, found, attempt)}
        rows = tx.run(_ALL_OF_ATTEMPT, key)
    time = sort.removeprefix("-")
    records = [ResultRecord(*row) for row in rows]
    records.sort(key=lambda one: (getattr(one, time), one.name), reverse=sort.startswith("-"))
    return found, records


def abandon(tx: Tx, keys: Sequence[str], now: int) -> None:
    """Those of these announced objects that did not become a file's can go."""
    tx.count(_ABANDON, {"keys": json.dumps(list(keys)), "due": now + filesets.REMOVAL_GRACE})


@off_loop
def collect(tx: Tx, token: str, step_id: str, left: Sequence[Gathered], now: int) -> list[str] | None:
    """Make what a step left results of its attempt, all at once; the names it went under. None,
    and nothing written, when the lease is gone.

    What the step left under the same name before, in a run that was paused or a collection that
    a crash cut off from the step's end, is replaced.
    """
    step = steps.reload(tx, token, step_id)
    if step is None:
        return None
    found = lock_job(tx, step.workspace, step.job_id)
    if steps.reload(tx, token, step_id) is None:
        return None
    place = filesets.ensure_job_fileset(tx, found, now, SERVICE)
    key = {"the_job": found.id, "in_attempt": step.attempt_id}
    there = {one.name: one for one in (ResultRecord(*row) for row in tx.run(_ALL_OF_ATTEMPT, key))}
    mine = {one.left_as: one for one in there.values() if one.collected and one.step == step.name}
    taken = set(there)
    base = _base(tx, found, place.id, step.attempt_id)
    given = []
    for item in left:
        old = mine.get(item.name)
        name = old.name if old else next(one for one in _candidates(item.name, step.name) if one not in taken)
        taken.add(name)
        given.append(name)
        artifact = Artifact(found.workspace, found.fileset, f"{base}/{name}", item.folder)
        _store(tx, place.id, artifact.path, item, now)
        if old is not None:
            tx.count(_REPLACE, {"the_id": old.id, "artifact_url": str(artifact), "now": now})
        else:
            _insert(tx, _made(found, step.attempt_id, name, str(artifact), now, step.name, item.name))
    tx.wake("job", found.id)
    return given


def _base(tx: Tx, found: JobRecord, fileset_id: str, attempt_id: str) -> str:
    """The folder of what the steps of an attempt left. Posted results lie elsewhere by custom, so
    that neither becomes a part of the other."""
    base = f"jobs/{found.name}/collected" if found.output_location else "collected"
    folders = f"{base}/{attempt_id}".split("/")
    for depth in range(1, len(folders) + 1):
        path = "/".join(folders[:depth])
        if files.find_file(tx, fileset_id, path) is not None:
            raise Conflict(f"the folder {path!r} can't be made in fileset {found.fileset!r}: it is a file")
    return "/".join(folders)


def _candidates(left_as: str, step: str) -> Iterator[str]:
    """Names for what a step left, the best one first; always the same ones."""
    yield names.result_name(left_as)
    part = step[:_STEP_PART].rstrip("-")
    yield names.result_name(left_as, f"-{part}")
    for number in range(2, MOST_RESULTS * 2):
        yield names.result_name(left_as, f"-{part}-{number}")


def _store(tx: Tx, fileset_id: str, base: str, item: Gathered, now: int) -> None:
    """Make the files known, in place of all that was there. One look and one insertion for all of
    them: a folder may have thousands."""
    new = {f"{base}/{path}" if item.folder else base: written for path, written in item.files}
    path, written = next(iter(new.items()))
    there = files.find_file(tx, fileset_id, path)
    if there is not None and there.object == written.key:
        return  # this very transaction was stored before, but its answer was lost
    for path in files.paths_below(tx, fileset_id, base):
        files.remove_file(tx, fileset_id, path, now)
    keys = json.dumps([written.key for written in new.values()])
    if len(tx.run(_ANNOUNCED, {"keys": keys})) != len(new):
        raise Conflict(f"{item.name!r} took more than a day to be stored and was given up")
    tx.count(_KEEP, {"keys": keys})
    common = {"fileset_id": fileset_id, "created_at": now, "created_by": SERVICE}
    rows = [
        {**common, "path": path, "object": written.key, "size": written.size, "digest": written.digest}
        for path, written in new.items()
    ]
    tx.many(_INSERT_FILE, rows)


def _insert(tx: Tx, made: ResultRecord) -> None:
    tx.count(_INSERT, {column.name: getattr(made, column.name) for column in result.c})

"""Filesets: named places for files, a person's own or a job's.

A job's own fileset needs no row until something is written to it: until then it is read from the
job, so that creating a job costs nothing for it. Its name is reserved by the job all the while.
"""

import json
from typing import Any, NamedTuple

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.model import Conflict, JobRecord, NotFound
from nemo_jobs.store.driver import off_loop
from nemo_jobs.store.lookup import lock_job
from nemo_jobs.store.records import text
from nemo_jobs.store.sql import Statement, Tx, insert_into
from nemo_jobs.store.tables import job, job_count, workspace
from nemo_jobs.store.tables_files import file, fileset, object_removal

#: How long an object that lost its name stays readable for those who read it just now.
REMOVAL_GRACE = 600_000_000
FILESET_ID = "fileset"


class FilesetRecord(NamedTuple):
    """A fileset; `custom_fields` and `metadata` are JSON texts."""

    id: str
    workspace: str
    name: str
    job_id: str | None
    project: str | None
    description: str | None
    purpose: str
    custom_fields: str
    metadata: str
    created_at: int
    updated_at: int


_COLUMNS = tuple(fileset.c[name] for name in FilesetRecord._fields)
_NAMED = (fileset.c.workspace == sa.bindparam("in_workspace"), fileset.c.name == sa.bindparam("the_name"))
_BY_NAME = Statement(sa.select(*_COLUMNS, fileset.c.gone).where(*_NAMED))
_LOCK = Statement(sa.select(*_COLUMNS, fileset.c.gone).where(*_NAMED).with_for_update())
_SHARE = Statement(
    sa.select(*_COLUMNS, fileset.c.gone).where(*_NAMED).with_for_update(read=True, key_share=True)
)
_OF_JOB = Statement(sa.select(*_COLUMNS).where(fileset.c.job_id == sa.bindparam("of_job")).with_for_update())
_INSERT = Statement(
    lambda dialect: insert_into(fileset, dialect).on_conflict_do_nothing(index_elements=["workspace", "name"])
)
_DELETE = Statement(sa.delete(fileset).where(fileset.c.id == sa.bindparam("the_id")))
_HIDE = Statement(sa.update(fileset).where(fileset.c.id == sa.bindparam("the_id")).values(gone=1))
_REVIVE = Statement(sa.update(fileset).where(*_NAMED, fileset.c.gone == 1).values(gone=0))
_DETACH = Statement(sa.update(fileset).where(fileset.c.id == sa.bindparam("the_id")).values(job_id=None))
_HAS_WORKSPACE = Statement(sa.select(workspace.c.name).where(workspace.c.name == sa.bindparam("the_name")))
#: A job's own fileset as long as it has no row: it looks like the row that it would get.
_FROM_JOB: tuple[sa.ColumnElement[Any], ...] = (
    sa.literal_column(f"'{FILESET_ID}' || substr(job.id, {len(names.JOB_ID) + 1})").label("id"),
    job.c.workspace.label("workspace"),
    sa.literal_column(f"'{names.FILESET_PREFIX}' || job.name").label("name"),
    job.c.id.label("job_id"),
    job.c.project.label("project"),
    sa.cast(sa.null(), sa.Text).label("description"),
    sa.literal_column("'generic'").label("purpose"),
    sa.literal_column("'{}'").label("custom_fields"),
    sa.literal_column("'{}'").label("metadata"),
    job.c.created_at.label("created_at"),
    job.c.created_at.label("updated_at"),
)
_BY_JOB = Statement(
    sa.select(*_FROM_JOB).where(
        job.c.workspace == sa.bindparam("in_workspace"),
        job.c.name == sa.bindparam("the_name"),
        job.c.output_location.is_(None),
    )
)
_USED_BY = sa.select(job.c.name).where(
    job.c.workspace == sa.bindparam("in_workspace"), job.c.output_location == sa.bindparam("the_name")
)
_USER = Statement(_USED_BY.limit(sa.literal_column("1")))
_LIVE_USER = Statement(
    _USED_BY.where(sa.text("job.state NOT IN ('completed', 'error', 'cancelled')")).limit(
        sa.literal_column("1")
    )
)
_FREE_OBJECTS = Statement(
    sa.insert(object_removal)
    .inline()
    .from_select(
        ["object", "due_at", "tries"],
        sa.select(file.c.object, sa.bindparam("due", type_=sa.BigInteger), sa.literal_column("0")).where(
            file.c.fileset_id == sa.bindparam("the_id")
        ),
    )
)
_FORGET_FILES = Statement(sa.delete(file).where(file.c.fileset_id == sa.bindparam("the_id")))
#: Whether there is a fileset that has a row, for statements that are run anyway.
HAS_ROW = sa.exists(sa.select(sa.literal_column("1")).select_from(fileset).where(*_NAMED))


def find_fileset(tx: Tx, workspace: str, name: str) -> FilesetRecord | None:
    """The fileset of that name, a job's own included."""
    row = tx.one(_BY_NAME, {"in_workspace": workspace, "the_name": name})
    if row is not None:
        return None if row[-1] else FilesetRecord(*row[:-1])
    return _of_a_job(tx, workspace, name)


def _of_a_job(tx: Tx, workspace: str, name: str) -> FilesetRecord | None:
    if not name.startswith(names.FILESET_PREFIX):
        return None
    row = tx.one(_BY_JOB, {"in_workspace": workspace, "the_name": name.removeprefix(names.FILESET_PREFIX)})
    return FilesetRecord(*row) if row else None


def get_fileset(tx: Tx, workspace: str, name: str) -> FilesetRecord:
    """Raises NotFound."""
    found = find_fileset(tx, workspace, name)
    if found is None:
        raise no_fileset(workspace, name)
    return found


def no_fileset(workspace: str, name: str) -> NotFound:
    return NotFound(f"no fileset {name!r} in workspace {workspace!r}")


def hold_fileset(tx: Tx, workspace: str, name: str) -> FilesetRecord:
    """The fileset with a row of its own, which nobody deletes before the transaction ends.
    Raises NotFound."""
    return _held(tx, workspace, name, _SHARE)


def hold(tx: Tx, workspace: str, name: str) -> bool:
    """Whether the fileset exists; if so, nobody deletes it before the transaction ends."""
    try:
        hold_fileset(tx, workspace, name)
    except NotFound:
        return False
    return True


def _held(tx: Tx, workspace: str, name: str, lock: Statement) -> FilesetRecord:
    key = {"in_workspace": workspace, "the_name": name}
    row = tx.one(lock, key)
    if row is None:
        found = _of_a_job(tx, workspace, name)
        if found is None or found.job_id is None:
            raise no_fileset(workspace, name)
        # Whoever deletes the job waits, or the job is gone already.
        lock_job(tx, workspace, found.job_id)
        _insert(tx, found)
        row = tx.one(lock, key)
    if row is None or row[-1]:
        raise no_fileset(workspace, name)
    return FilesetRecord(*row[:-1])


def ensure_job_fileset(tx: Tx, record: JobRecord, now: int, actor: str) -> FilesetRecord:
    """The fileset that the job writes to, with a row. The job's own is made if it has none, also
    when it was deleted. Raises NotFound when the job, or its output_location, is gone."""
    if record.output_location is None:
        lock_job(tx, record.workspace, record.id)
        tx.count(_REVIVE, {"in_workspace": record.workspace, "the_name": record.fileset})
    return hold_fileset(tx, record.workspace, record.fileset)


def _insert(tx: Tx, record: FilesetRecord, actor: str | None = None) -> bool:
    params = {**record._asdict(), "gone": 0, "created_by": actor, "updated_by": actor}
    return tx.count(_INSERT, params) > 0


#: What a job's own fileset without a row is sorted by, in the words of the job's indexes.
_JOB_SORTS = {"created_at": job.c.created_at, "updated_at": job.c.created_at, "name": job.c.name}


@off_loop
def list_filesets(
    tx: Tx, workspace: str, sort: str = "-created_at", page: int = 1, page_size: int = 10
) -> tuple[list[FilesetRecord], int]:
    """One page and how many there are in all, those of jobs included. Raises NotFound for an
    unknown workspace."""
    check_workspace(tx, workspace)
    total, skip = _how_many(tx, workspace), (page - 1) * page_size
    size = min(page_size, total - skip)
    if size <= 0:
        return [], total
    down, from_end = sort.startswith("-"), total - skip - size
    if from_end < skip:  # the last pages are read from the end
        rows = tx.run(_sorted(workspace, sort.removeprefix("-"), not down, size, from_end))[::-1]
    else:
        rows = tx.run(_sorted(workspace, sort.removeprefix("-"), down, size, skip))
    return [FilesetRecord(*row) for row in rows], total


def _sorted(workspace: str, by: str, down: bool, size: int, skip: int) -> sa.Select[Any]:
    """A part of the filesets with rows and of those without, each side no longer than it can be
    needed and in the order of an index, so that few of many are looked at."""

    def some(query: sa.Select[Any], column: sa.ColumnElement[Any], key: sa.ColumnElement[Any]) -> Any:
        order = (column.desc(), key.desc()) if down else (column, key)
        return query.order_by(*order).limit(skip + size).subquery()

    here = (fileset.c.workspace == workspace, fileset.c.gone == 0)
    # By name: in a race somebody may have made a fileset of that name just before the job.
    same = (fileset.c.workspace == job.c.workspace, fileset.c.name == _FROM_JOB[2])
    with_row = sa.exists(sa.select(fileset.c.id).where(*same))
    virtual = (job.c.workspace == workspace, job.c.output_location.is_(None), ~with_row)
    sides = (
        some(sa.select(*_COLUMNS).where(*here), fileset.c[by], fileset.c.id),
        some(sa.select(*_FROM_JOB).where(*virtual), _JOB_SORTS[by], job.c.id),
    )
    both = sa.union_all(*(sa.select(side) for side in sides)).subquery()
    column = both.c[by]
    order = (column.desc(), both.c.id.desc()) if down else (column, both.c.id)
    return sa.select(both).order_by(*order).limit(size).offset(skip)


def check_workspace(tx: Tx, workspace: str) -> None:
    """Raises NotFound for one that does not exist."""
    if tx.one(_HAS_WORKSPACE, {"the_name": workspace}) is None:
        raise NotFound(f"no workspace {workspace!r}; create it first")


def count_in(tx: Tx, workspace: str) -> int:
    """How many filesets have a row in a workspace."""
    row = tx.one(sa.select(sa.func.count()).select_from(fileset).where(fileset.c.workspace == workspace))
    return int(row[0]) if row else 0


def _how_many(tx: Tx, workspace: str) -> int:
    """Counted by indexes and by the totals of jobs, never by looking at jobs."""
    here = fileset.c.workspace == workspace
    counts = (
        sa.select(sa.func.count()).select_from(fileset).where(here, fileset.c.job_id.is_(None)),
        sa.select(sa.cast(sa.func.coalesce(sa.func.sum(job_count.c.n), 0), sa.BigInteger)).where(
            job_count.c.workspace == workspace
        ),
        sa.select(-sa.func.count())
        .select_from(job)
        .where(job.c.workspace == workspace, sa.text("job.output_location IS NOT NULL")),
        sa.select(-sa.func.count()).select_from(fileset).where(here, fileset.c.gone == 1),
    )
    rows = [tx.one(count) for count in counts]
    return sum(int(row[0]) for row in rows if row)


def create_fileset(
    tx: Tx, workspace: str, name: str, given: dict[str, Any], now: int, actor: str
) -> FilesetRecord:
    """Make a fileset with the fields of `given`. A job's own that was deleted comes back. Raises
    NotFound for an unknown workspace and Conflict for a name that is taken."""
    check_workspace(tx, workspace)
    key = {"in_workspace": workspace, "the_name": name}
    row = tx.one(_LOCK, key)
    if row is not None and row[-1]:
        tx.count(_REVIVE, key)
        return update_fileset(tx, workspace, name, given, now, actor)
    fields = {"project": None, "description": None, "purpose": "generic", **_stored(given)}
    fields = {"custom_fields": "{}", "metadata": "{}", **fields}
    new = FilesetRecord(
        id=names.new_id(FILESET_ID, now), workspace=workspace, name=name, job_id=None,
        created_at=now, updated_at=now, **fields,
    )  # fmt: skip
    if row is not None or _of_a_job(tx, workspace, name) or not _insert(tx, new, actor):
        raise Conflict(
            f"fileset {name!r} exists already in workspace {workspace!r}; use it or choose another name"
        )
    return new


def update_fileset(
    tx: Tx, workspace: str, name: str, given: dict[str, Any], now: int, actor: str
) -> FilesetRecord:
    """Set the fields that `given` names. Raises NotFound."""
    found = _held(tx, workspace, name, _LOCK)
    at = max(now, found.updated_at)
    change = {**_stored(given), "updated_at": at, "updated_by": actor}
    tx.count(sa.update(fileset).where(fileset.c.id == found.id).values(change))
    return get_fileset(tx, workspace, name)


def _stored(given: dict[str, Any]) -> dict[str, Any]:
    """Fields of a request as the columns hold them."""
    texts = {
        key: value and text(value)
        for key, value in given.items()
        if key in ("project", "description", "purpose")
    }
    dumped = {
        key: text(json.dumps(value or {}, ensure_ascii=False, separators=(",", ":")))
        for key, value in given.items()
        if key in ("custom_fields", "metadata")
    }
    return {**texts, **dumped}


@off_loop
def delete_fileset(tx: Tx, workspace: str, name: str, now: int) -> FilesetRecord:
    """Delete a fileset with its files; the record as it was. Raises NotFound, or Conflict while a
    job that has not ended writes to it."""
    found = _held(tx, workspace, name, _LOCK)
    user = tx.one(_LIVE_USER, {"in_workspace": workspace, "the_name": name})
    if user is not None:
        raise Conflict(
            f"fileset {name!r} is the output_location of job {user[0]!r}, which has not ended; "
            "cancel the job first or wait for its end"
        )
    _drop_files(tx, found.id, now)
    tx.count(_DELETE if found.job_id is None else _HIDE, {"the_id": found.id})
    return found


def drop_of_job(tx: Tx, record: JobRecord, now: int) -> None:
    """Delete the own fileset of a job that is being deleted, which is locked. One that other jobs
    name as their output_location stays, and belongs to nobody from now on."""
    if record.output_location is not None:
        return
    row = tx.one(_OF_JOB, {"of_job": record.id})
    used = tx.one(_USER, {"in_workspace": record.workspace, "the_name": record.fileset})
    if row is not None and used is None:
        _drop_files(tx, row[0], now)
        tx.count(_DELETE, {"the_id": row[0]})
    elif row is not None:
        tx.count(_DETACH, {"the_id": row[0]})


def _drop_files(tx: Tx, fileset_id: str, now: int) -> None:
    tx.count(_FREE_OBJECTS, {"the_id": fileset_id, "due": now + REMOVAL_GRACE})
    tx.count(_FORGET_FILES, {"the_id": fileset_id})

"""Files of filesets. A file is there when its row is; its object was complete before."""

import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import sqlalchemy as sa

from nemo_jobs.domain.model import Conflict, NotFound
from nemo_jobs.store.driver import off_loop
from nemo_jobs.store.filesets import REMOVAL_GRACE, FilesetRecord, get_fileset, hold_fileset
from nemo_jobs.store.sql import Statement, Tx, insert_into, listed
from nemo_jobs.store.tables_files import file, fileset, object_removal

#: An upload has so long, in microseconds; then its object counts as left behind.
UPLOAD_TIME = 86_400_000_000
#: Attempts to remove an object are at least so far apart, in microseconds, and at most:
RETRY_FIRST, RETRY_MOST = 30_000_000, 3_600_000_000


class FileRecord(NamedTuple):
    """A file; `object` is the key of its bytes, `digest` their sha256 in hex."""

    fileset_id: str
    path: str
    object: str
    size: int
    digest: str
    created_at: int
    created_by: str | None


class Written(Protocol):
    """An object that is complete in the object store."""

    @property
    def key(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def digest(self) -> str: ...


_COLUMNS = tuple(file.c[name] for name in FileRecord._fields)
_HERE = file.c.fileset_id == sa.bindparam("in_fileset")
_GET = Statement(sa.select(*_COLUMNS).where(_HERE, file.c.path == sa.bindparam("at_path")))
_TAKE = Statement(sa.select(*_COLUMNS).where(_HERE, file.c.path == sa.bindparam("at_path")).with_for_update())
_ABOVE = Statement(
    lambda dialect: (
        sa.select(file.c.path)
        .where(_HERE, file.c.path.in_(listed(dialect, "above")))
        .limit(sa.literal_column("1"))
    )
)
_RANGE = (file.c.path > sa.bindparam("first"), file.c.path < sa.bindparam("last"))
_BELOW = Statement(sa.select(file.c.path).where(_HERE, *_RANGE).limit(sa.literal_column("1")))
_PAGE = Statement(
    sa.select(*_COLUMNS)
    .where(_HERE, *_RANGE)
    .order_by(file.c.path)
    .limit(sa.bindparam("n", type_=sa.Integer))
)
_PATHS = Statement(
    sa.select(file.c.path)
    .where(_HERE, sa.or_(file.c.path == sa.bindparam("itself"), sa.and_(*_RANGE)))
    .order_by(file.c.path)
)
_TOTALS = Statement(
    sa.select(sa.func.count(), sa.cast(sa.func.coalesce(sa.func.sum(file.c.size), 0), sa.BigInteger)).where(
        _HERE, *_RANGE
    )
)
_LOCK_FILESET = Statement(
    sa.select(fileset.c.gone)
    .where(fileset.c.id == sa.bindparam("in_fileset"))
    .with_for_update(key_share=True)
)
_INSERT = Statement(lambda dialect: insert_into(file, dialect))
_DELETE = Statement(sa.delete(file).where(_HERE, file.c.path == sa.bindparam("at_path")))
_RESERVE = Statement(
    lambda dialect: insert_into(object_removal, dialect).on_conflict_do_update(
        index_elements=["object"], set_={"due_at": sa.bindparam("due_at"), "tries": 0}
    )
)
_CONFIRM = Statement(sa.delete(object_removal).where(object_removal.c.object == sa.bindparam("the_object")))
_RELEASE = Statement(
    sa.update(object_removal)
    .where(object_removal.c.object == sa.bindparam("the_object"))
    .values(due_at=sa.bindparam("due"))
)
_DUE = Statement(
    sa.select(object_removal.c.object, object_removal.c.tries)
    .where(object_removal.c.due_at <= sa.bindparam("now"))
    .order_by(object_removal.c.due_at)
    .limit(sa.bindparam("n", type_=sa.Integer))
    .with_for_update(skip_locked=True)
)
_TRIED = Statement(
    sa.update(object_removal)
    .where(object_removal.c.object == sa.bindparam("the_object"))
    .values(due_at=sa.bindparam("due"), tries=object_removal.c.tries + 1)
)
_ANY_DUE = Statement(
    sa.select(object_removal.c.object)
    .where(object_removal.c.due_at <= sa.bindparam("now"))
    .limit(sa.literal_column("1"))
)


def begin_upload(tx: Tx, workspace: str, name: str, path: str, key: str, now: int) -> FilesetRecord:
    """Where a file is about to be put, and a note of its object, so that nothing of an upload that
    is cut stays for ever. Raises NotFound, or Conflict when `path` can't be a file there."""
    found = hold_fileset(tx, workspace, name)
    _check_place(tx, found.id, path)
    announce(tx, [key], now)
    return found


def announce(tx: Tx, keys: Sequence[str], now: int) -> None:
    """Objects of these keys are about to be written; each has a day until `put_file` names it."""
    tx.many(_RESERVE, [{"object": key, "due_at": now + UPLOAD_TIME, "tries": 0} for key in keys])


def end_upload(tx: Tx, key: str, now: int) -> None:
    """The upload failed: its object, if there is one, can go."""
    tx.count(_RELEASE, {"the_object": key, "due": now + REMOVAL_GRACE})


def put_file(tx: Tx, fileset_id: str, path: str, written: Written, now: int, actor: str) -> FileRecord:
    """Give an object that was announced its name; one that had the name before loses it.
    Raises NotFound when the fileset is gone, Conflict when the place is no longer free."""
    row = tx.one(_LOCK_FILESET, {"in_fileset": fileset_id})
    if row is None or row[0]:
        raise NotFound(f"the fileset was deleted while {path!r} was on its way")
    _check_place(tx, fileset_id, path)
    if not tx.count(_CONFIRM, {"the_object": written.key}):
        raise Conflict(f"{path!r} took more than a day to arrive and was given up; send it again")
    remove_file(tx, fileset_id, path, now)
    new = FileRecord(fileset_id, path, written.key, written.size, written.digest, now, actor)
    tx.count(_INSERT, new._asdict())
    return new


def find_file(tx: Tx, fileset_id: str, path: str) -> FileRecord | None:
    row = tx.one(_GET, {"in_fileset": fileset_id, "at_path": path})
    return FileRecord(*row) if row else None


def get_file(tx: Tx, workspace: str, name: str, path: str) -> FileRecord:
    """The file at `path` of a fileset. Raises NotFound, which says so if it is a folder."""
    found = get_fileset(tx, workspace, name)
    record = find_file(tx, found.id, path)
    if record is None:
        raise _no_file(tx, found, path)
    return record


def delete_file(tx: Tx, workspace: str, name: str, path: str, now: int) -> FileRecord:
    """Delete a file; the record as it was. Raises NotFound."""
    found = hold_fileset(tx, workspace, name)
    record = remove_file(tx, found.id, path, now)
    if record is None:
        raise _no_file(tx, found, path)
    return record


@off_loop
def paths_below(tx: Tx, fileset_id: str, folder: str) -> list[str]:
    """The paths of all files of a folder, or that of the file itself. For few ones: not in pages."""
    first, last = _bounds(folder)
    span = {"in_fileset": fileset_id, "itself": folder, "first": first, "last": last}
    return [row[0] for row in tx.run(_PATHS, span)]


@off_loop
def list_files(
    tx: Tx, fileset_id: str, below: str = "", after: str = "", limit: int = 1000
) -> list[FileRecord]:
    """Up to `limit` files in the order of their paths: the file `below`, or all in that folder, or
    all; `after` is the last path of the page before."""
    only = find_file(tx, fileset_id, below) if below and not after else None
    if only is not None:
        return [only]
    first, last = _bounds(below)
    span = {"in_fileset": fileset_id, "first": max(first, after), "last": last, "n": limit}
    return [FileRecord(*row) for row in tx.run(_PAGE, span)]


@off_loop
def measure(tx: Tx, fileset_id: str, below: str = "") -> tuple[int, int]:
    """How many files are in a folder, and how many bytes they have together."""
    first, last = _bounds(below)
    row = tx.one(_TOTALS, {"in_fileset": fileset_id, "first": first, "last": last})
    return (int(row[0]), int(row[1])) if row else (0, 0)


def any_removal_due(tx: Tx, now: int) -> bool:
    return tx.one(_ANY_DUE, {"now": now}) is not None


def claim_removals(tx: Tx, now: int, limit: int) -> list[str]:
    """Objects to be removed now. Each comes again, later and later, until it is forgotten."""
    found = []
    for key, tries in tx.run(_DUE, {"now": now, "n": limit}):
        pause = min(RETRY_MOST, RETRY_FIRST * 2 ** min(tries, 10))
        tx.count(_TRIED, {"the_object": key, "due": now + pause})
        found.append(key)
    return found


def forget_removals(tx: Tx, keys: list[str]) -> None:
    """These objects are removed."""
    tx.many(_CONFIRM, [{"the_object": key} for key in keys])


def remove_file(tx: Tx, fileset_id: str, path: str, now: int) -> FileRecord | None:
    """Take a file's name away, if it is there; its bytes go when nobody can be reading them."""
    key = {"in_fileset": fileset_id, "at_path": path}
    row = tx.one(_TAKE, key)
    if row is None:
        return None
    before = FileRecord(*row)
    tx.count(_DELETE, key)
    tx.count(_RESERVE, {"object": before.object, "due_at": now + REMOVAL_GRACE, "tries": 0})
    return before


def _check_place(tx: Tx, fileset_id: str, path: str) -> None:
    """A path is a file or a folder, never both."""
    folders = path.split("/")
    above = ["/".join(folders[:depth]) for depth in range(1, len(folders))]
    row = tx.one(_ABOVE, {"in_fileset": fileset_id, "above": json.dumps(above)}) if above else None
    if row is not None:
        raise Conflict(f"{path!r} can't be written: {row[0]!r} is a file; choose another path or delete it")
    if _is_folder(tx, fileset_id, path):
        raise Conflict(f"{path!r} can't be written: it is a folder with files; choose another path")


def _is_folder(tx: Tx, fileset_id: str, path: str) -> bool:
    first, last = _bounds(path)
    return tx.one(_BELOW, {"in_fileset": fileset_id, "first": first, "last": last}) is not None


def _bounds(folder: str) -> tuple[str, str]:
    """What is in the folder lies between these; paths sort by their bytes."""
    return (f"{folder}/", f"{folder}0") if folder else ("", "\U0010ffff")


def _no_file(tx: Tx, found: FilesetRecord, path: str) -> NotFound:
    where = f"fileset {found.name!r} of workspace {found.workspace!r}"
    if _is_folder(tx, found.id, path):
        return NotFound(f"{path!r} in {where} is a folder; list its files with files?path= and get each")
    return NotFound(f"no file {path!r} in {where}")

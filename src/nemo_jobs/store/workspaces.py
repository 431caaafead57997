"""Workspaces: the name spaces of jobs."""

from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.model import Conflict, NotFound
from nemo_jobs.store import filesets, tokens
from nemo_jobs.store.records import text
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import job, job_count, workspace
from nemo_jobs.store.tables_access import idempotency, project, secret
from nemo_jobs.store.tables_files import fileset

DEFAULTS = ("default", "system")


@dataclass(frozen=True, slots=True)
class WorkspaceRecord:
    name: str
    id: str
    description: str | None
    created_at: int
    created_by: str | None
    updated_at: int
    updated_by: str | None


_BY_NAME = Statement(sa.select(workspace).where(workspace.c.name == sa.bindparam("the_name")))
# Whatever is put into a workspace holds its row, through the foreign key.
_LOCK = Statement(
    sa.select(workspace.c.name).where(workspace.c.name == sa.bindparam("the_name")).with_for_update()
)
_INSERT = Statement(
    sa.text(
        "INSERT INTO workspace (name, id, description, created_at, created_by, updated_at, updated_by) "
        "VALUES (:name, :id, :description, :now, :actor, :now, :actor) ON CONFLICT (name) DO NOTHING"
    )
)
_SORTS = {
    name: (sa.desc if name.startswith("-") else sa.asc)(workspace.c[name.removeprefix("-")])
    for name in ("name", "-name", "created_at", "-created_at", "updated_at", "-updated_at")
}


def ensure_defaults(tx: Tx, now: int) -> None:
    """Make the workspaces that are always there."""
    for name in DEFAULTS:
        _insert(tx, name, None, now, "service:jobs")


def list_workspaces(
    tx: Tx,
    sort: str = "created_at",
    page: int = 1,
    page_size: int = 100,
    within: frozenset[str] | None = None,
) -> tuple[list[WorkspaceRecord], int]:
    """One page and how many there are in all, of those in `within` (None: of all)."""
    where = sa.true() if within is None else workspace.c.name.in_(sorted(within))
    row = tx.one(sa.select(sa.func.count()).select_from(workspace).where(where))
    total, skip = int(row[0]) if row else 0, (page - 1) * page_size
    if skip >= total:
        return [], total
    order = (_SORTS[sort], workspace.c.name)
    query = sa.select(workspace).where(where).order_by(*order).limit(page_size).offset(skip)
    return [WorkspaceRecord(*found) for found in tx.run(query)], total


def get_workspace(tx: Tx, name: str) -> WorkspaceRecord:
    row = tx.one(_BY_NAME, {"the_name": name})
    if row is None:
        raise NotFound(f"no workspace {name!r}")
    return WorkspaceRecord(*row)


def create_workspace(tx: Tx, name: str, description: str | None, now: int, actor: str) -> WorkspaceRecord:
    if not _insert(tx, name, description, now, actor):
        raise Conflict(f"workspace {name!r} exists already; choose another name")
    return get_workspace(tx, name)


def update_workspace(tx: Tx, name: str, description: str | None, now: int, actor: str) -> WorkspaceRecord:
    before = get_workspace(tx, name)
    change = {"description": description and text(description), "updated_by": actor}
    at = max(now, before.updated_at)
    tx.count(sa.update(workspace).where(workspace.c.name == name).values(**change, updated_at=at))
    return get_workspace(tx, name)


def delete_workspace(tx: Tx, name: str) -> WorkspaceRecord:
    """Delete an empty workspace; the record as it was. Raises Conflict for one that is always
    there or that holds something, with the numbers."""
    before = get_workspace(tx, name)
    if name in DEFAULTS:
        raise Conflict(f"workspace {name!r} is always there and can't be deleted")
    tx.one(_LOCK, {"the_name": name})
    held = [(table, _count(tx, table, name)) for table in _HELD]
    if any(count for _, count in held):
        shown = ", ".join(f"{count} {_noun(table, count)}" for table, count in held if count)
        raise Conflict(f"workspace {name!r} still has {shown}; delete them first")
    tx.count(sa.delete(idempotency).where(idempotency.c.workspace == name))
    left = filesets.count_in(tx, name)
    if left:
        noun = "fileset" if left == 1 else "filesets"
        raise Conflict(f"workspace {name!r} still has {left} {noun}; delete them first")
    tokens.forget_workspace(tx, name)
    tx.count(sa.delete(job_count).where(job_count.c.workspace == name))
    tx.count(sa.delete(workspace).where(workspace.c.name == name))
    return before


#: What a workspace must not hold when it is deleted.
_HELD = (job, secret, fileset, project)


def _count(tx: Tx, table: sa.Table, name: str) -> int:
    counted = sa.select(sa.func.count()).select_from(table).where(table.c.workspace == name)
    if table is fileset:  # those of jobs go with their jobs
        counted = counted.where(fileset.c.job_id.is_(None))
    row = tx.one(counted)
    return int(row[0]) if row else 0


def _noun(table: sa.Table, count: int) -> str:
    return table.name if count == 1 else f"{table.name}s"


def _insert(tx: Tx, name: str, description: str | None, now: int, actor: str) -> bool:
    params = {"name": name, "id": names.new_id("workspace", now), "now": now, "actor": actor}
    return tx.count(_INSERT, {**params, "description": description and text(description)}) > 0

"""Workspaces: the name spaces of jobs."""

from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.model import Conflict, NotFound
from nemo_jobs.store.records import text
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import job, job_count, workspace

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
    tx: Tx, sort: str = "created_at", page: int = 1, page_size: int = 100
) -> tuple[list[WorkspaceRecord], int]:
    """One page and how many there are in all."""
    row = tx.one(sa.select(sa.func.count()).select_from(workspace))
    total, skip = int(row[0]) if row else 0, (page - 1) * page_size
    if skip >= total:
        return [], total
    order = (_SORTS[sort], workspace.c.name)
    query = sa.select(workspace).order_by(*order).limit(page_size).offset(skip)
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
    """Delete a workspace without jobs; the record as it was."""
    before = get_workspace(tx, name)
    if name in DEFAULTS:
        raise Conflict(f"workspace {name!r} is always there and can't be deleted")
    if tx.one(sa.select(job.c.name).where(job.c.workspace == name).limit(1)) is not None:
        raise Conflict(f"workspace {name!r} still has jobs; delete them first")
    tx.count(sa.delete(job_count).where(job_count.c.workspace == name))
    tx.count(sa.delete(workspace).where(workspace.c.name == name))
    return before


def _insert(tx: Tx, name: str, description: str | None, now: int, actor: str) -> bool:
    params = {"name": name, "id": names.new_id("workspace", now), "now": now, "actor": actor}
    return tx.count(_INSERT, {**params, "description": description and text(description)}) > 0

"""Projects: names inside a workspace that jobs can be grouped under."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.model import Conflict, NotFound
from nemo_jobs.store.records import text
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import job, workspace
from nemo_jobs.store.tables_access import project


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    workspace: str
    name: str
    id: str
    description: str | None
    created_at: int
    created_by: str | None
    updated_at: int
    updated_by: str | None


_KEY = (project.c.workspace == sa.bindparam("in_workspace"), project.c.name == sa.bindparam("the_name"))
_BY_NAME = Statement(sa.select(project).where(*_KEY))
_LOCK = Statement(sa.select(project).where(*_KEY).with_for_update())
# Shared, so that creates don't wait for each other and a deletion waits for all of them.
_SHARE = Statement(sa.select(project.c.name).where(*_KEY).with_for_update(read=True, key_share=True))
_HAS_WORKSPACE = Statement(sa.select(workspace.c.name).where(workspace.c.name == sa.bindparam("the_name")))
_INSERT = Statement(
    sa.text(
        "INSERT INTO project (workspace, name, id, description, created_at, created_by, updated_at, "
        "updated_by) VALUES (:workspace, :name, :id, :description, :now, :actor, :now, :actor) "
        "ON CONFLICT (workspace, name) DO NOTHING"
    )
)
_UPDATE = Statement(
    sa.update(project)
    .where(*_KEY)
    .values(
        {name: sa.bindparam(f"new_{name}") for name in ("description", "updated_at", "updated_by")},
    )
)
_DELETE = Statement(sa.delete(project).where(*_KEY))
_JOBS = Statement(
    sa.select(sa.func.count())
    .select_from(job)
    .where(job.c.workspace == sa.bindparam("in_workspace"), job.c.project == sa.bindparam("the_name"))
)
_SORTS = {
    name: (sa.desc if name.startswith("-") else sa.asc)(project.c[name.removeprefix("-")])
    for name in ("name", "-name", "created_at", "-created_at", "updated_at", "-updated_at")
}


def hold(tx: Tx, workspace: str, name: str) -> bool:
    """Whether the project exists; if so, nobody deletes it before the transaction ends."""
    return tx.one(_SHARE, {"in_workspace": workspace, "the_name": name}) is not None


def is_there(tx: Tx, workspace: str, name: str) -> bool:
    return tx.one(_BY_NAME, {"in_workspace": workspace, "the_name": name}) is not None


def list_projects(
    tx: Tx, workspace: str, sort: str = "created_at", page: int = 1, page_size: int = 100
) -> tuple[list[ProjectRecord], int]:
    """One page and how many there are in all. Raises NotFound for an unknown workspace."""
    _check_workspace(tx, workspace)
    here = project.c.workspace == workspace
    row = tx.one(sa.select(sa.func.count()).select_from(project).where(here))
    total, skip = int(row[0]) if row else 0, (page - 1) * page_size
    if skip >= total:
        return [], total
    query = sa.select(project).where(here).order_by(_SORTS[sort], project.c.name)
    return [ProjectRecord(*found) for found in tx.run(query.limit(page_size).offset(skip))], total


def get_project(tx: Tx, workspace: str, name: str) -> ProjectRecord:
    """Raises NotFound."""
    return _found(tx, _BY_NAME, workspace, name)


def create_project(
    tx: Tx, workspace: str, name: str, description: str | None, now: int, actor: str
) -> ProjectRecord:
    """Raises NotFound for an unknown workspace and Conflict for a name that is taken."""
    _check_workspace(tx, workspace)
    given = {"workspace": workspace, "name": name, "description": description and text(description)}
    params = {**given, "id": names.new_id("project", now), "now": now, "actor": actor}
    if not tx.count(_INSERT, params):
        raise Conflict(f"project {name!r} exists already in workspace {workspace!r}; choose another name")
    return get_project(tx, workspace, name)


def update_project(
    tx: Tx, workspace: str, name: str, change: dict[str, Any], now: int, actor: str
) -> ProjectRecord:
    """Set what `change` names, which is at most `description`. Raises NotFound."""
    before = _found(tx, _LOCK, workspace, name)
    description = change.get("description", before.description)
    params = {
        "in_workspace": workspace,
        "the_name": name,
        "new_description": description and text(description),
        "new_updated_at": max(now, before.updated_at),
        "new_updated_by": actor,
    }
    tx.count(_UPDATE, params)
    return get_project(tx, workspace, name)


def delete_project(tx: Tx, workspace: str, name: str) -> ProjectRecord:
    """Delete a project without jobs; the record as it was. Raises NotFound, or Conflict with the
    number of its jobs."""
    before = _found(tx, _LOCK, workspace, name)
    key = {"in_workspace": workspace, "the_name": name}
    row = tx.one(_JOBS, key)
    if row and row[0]:
        noun = "job" if row[0] == 1 else "jobs"
        raise Conflict(
            f"project {name!r} in workspace {workspace!r} still has {row[0]} {noun}; delete them first"
        )
    tx.count(_DELETE, key)
    return before


def _found(tx: Tx, statement: Statement, workspace: str, name: str) -> ProjectRecord:
    row = tx.one(statement, {"in_workspace": workspace, "the_name": name})
    if row is None:
        raise NotFound(f"no project {name!r} in workspace {workspace!r}")
    return ProjectRecord(*row)


def _check_workspace(tx: Tx, name: str) -> None:
    if tx.one(_HAS_WORKSPACE, {"the_name": name}) is None:
        raise NotFound(f"no workspace {name!r}")

"""Workspaces, as far as jobs need them."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.domain.spec import Name, Text
from nemo_jobs.http.identity import caller, readable
from nemo_jobs.http.jobs import check_page_size
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, dumps, json_reply, page_reply, workspace_json
from nemo_jobs.store import workspaces as store

WORKSPACES = "/apis/entities/v2/workspaces"
WORKSPACE = WORKSPACES + "/{name}"


class WorkspaceListQuery(BaseModel):
    page: Annotated[int, Field(gt=0)] = 1
    page_size: Annotated[int, Field(gt=0)] = 100
    sort: Literal["name", "-name", "created_at", "-created_at", "updated_at", "-updated_at"] = "created_at"


class WorkspaceCreateQuery(BaseModel):
    wait_role_propagation: bool = True


class WorkspaceCreate(BaseModel):
    name: Name
    description: Text | None = None


class WorkspaceUpdate(BaseModel):
    description: Text | None = None


_CREATE = TypeAdapter(WorkspaceCreate)
_UPDATE = TypeAdapter(WorkspaceUpdate)


async def list_workspaces(api: Api, request: Request) -> Reply:
    query = request.query(WorkspaceListQuery)
    check_page_size(query.page_size)
    found, total = await api.parts.db.read(
        store.list_workspaces, query.sort, query.page, query.page_size, readable(request)
    )
    return page_reply(
        [dumps(workspace_json(workspace)) for workspace in found],
        page=query.page,
        page_size=query.page_size,
        total=total,
        sort=query.sort,
    )


async def get_workspace(api: Api, request: Request) -> Reply:
    return json_reply(
        workspace_json(await api.parts.db.read(store.get_workspace, request.path["name"], point=True))
    )


async def create_workspace(api: Api, request: Request) -> Reply:
    request.query(WorkspaceCreateQuery)
    body = await request.parsed(_CREATE)
    parts = api.parts
    made = await parts.db.write(
        store.create_workspace, body.name, body.description, parts.clock.now(), caller(request).actor
    )
    return json_reply(workspace_json(made), 201)


async def update_workspace(api: Api, request: Request) -> Reply:
    body = await request.parsed(_UPDATE)
    parts = api.parts
    changed = await parts.db.write(
        store.update_workspace,
        request.path["name"],
        body.description,
        parts.clock.now(),
        caller(request).actor,
    )
    return json_reply(workspace_json(changed))


async def delete_workspace(api: Api, request: Request) -> Reply:
    gone = await api.parts.db.write(store.delete_workspace, request.path["name"])
    return json_reply({"message": f"workspace {gone.name!r} is deleted", "id": gone.id})


OPERATIONS = (
    Operation(
        "GET", WORKSPACES, list_workspaces, "List workspaces", "WorkspacePage", query="WorkspaceListQuery"
    ),
    Operation(
        "POST",
        WORKSPACES,
        create_workspace,
        "Create a workspace",
        "Workspace",
        201,
        query="WorkspaceCreateQuery",
        body="WorkspaceCreate",
        errors=(409, 422),
    ),
    Operation("GET", WORKSPACE, get_workspace, "Get a workspace", "Workspace", errors=(404,)),
    Operation(
        "PUT",
        WORKSPACE,
        update_workspace,
        "Change a workspace's description",
        "Workspace",
        body="WorkspaceUpdate",
        errors=(404, 422),
        scope="admin",
    ),
    Operation(
        "DELETE",
        WORKSPACE,
        delete_workspace,
        "Delete an empty workspace",
        "Deleted",
        errors=(404, 409),
        scope="admin",
    ),
)

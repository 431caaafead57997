"""Projects: names inside a workspace that jobs can be grouped under."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.domain.model import Json
from nemo_jobs.domain.spec import Name, Text
from nemo_jobs.http.identity import caller
from nemo_jobs.http.jobs import check_page_size
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, dumps, json_reply, page_reply, time_text
from nemo_jobs.store import projects as store

PROJECTS = "/apis/entities/v2/workspaces/{workspace}/projects"
PROJECT = PROJECTS + "/{name}"


class ProjectListQuery(BaseModel):
    page: Annotated[int, Field(gt=0)] = 1
    page_size: Annotated[int, Field(gt=0)] = 100
    sort: Literal["name", "-name", "created_at", "-created_at", "updated_at", "-updated_at"] = "created_at"


class ProjectCreate(BaseModel):
    name: Name
    description: Text | None = None


class ProjectUpdate(BaseModel):
    description: Text | None = None


_CREATE = TypeAdapter(ProjectCreate)
_UPDATE = TypeAdapter(ProjectUpdate)


async def list_projects(api: Api, request: Request) -> Reply:
    query = request.query(ProjectListQuery)
    check_page_size(query.page_size)
    found, total = await api.parts.db.read(
        store.list_projects, request.path["workspace"], query.sort, query.page, query.page_size
    )
    return page_reply(
        [dumps(_shown(project)) for project in found],
        page=query.page,
        page_size=query.page_size,
        total=total,
        sort=query.sort,
    )


async def get_project(api: Api, request: Request) -> Reply:
    path = request.path
    return json_reply(
        _shown(await api.parts.db.read(store.get_project, path["workspace"], path["name"], point=True))
    )


async def create_project(api: Api, request: Request) -> Reply:
    body = await request.parsed(_CREATE)
    parts = api.parts
    made = await parts.db.write(
        store.create_project,
        request.path["workspace"],
        body.name,
        body.description,
        parts.clock.now(),
        caller(request).actor,
    )
    return json_reply(_shown(made), 201)


async def replace_project(api: Api, request: Request) -> Reply:
    """All that can be set is set; what is left out is empty afterwards."""
    body = await request.parsed(_UPDATE)
    return await _changed(api, request, {"description": body.description})


async def update_project(api: Api, request: Request) -> Reply:
    """What is left out stays."""
    body = await request.parsed(_UPDATE)
    return await _changed(api, request, body.model_dump(exclude_unset=True))


async def delete_project(api: Api, request: Request) -> Reply:
    path = request.path
    gone = await api.parts.db.write(store.delete_project, path["workspace"], path["name"])
    return json_reply({"message": f"project {gone.name!r} is deleted", "id": gone.id})


async def _changed(api: Api, request: Request, change: Json) -> Reply:
    path, parts = request.path, api.parts
    changed = await parts.db.write(
        store.update_project,
        path["workspace"],
        path["name"],
        change,
        parts.clock.now(),
        caller(request).actor,
    )
    return json_reply(_shown(changed))


def _shown(project: store.ProjectRecord) -> Json:
    return {
        "id": project.id,
        "name": project.name,
        "workspace": project.workspace,
        "description": project.description,
        "created_at": time_text(project.created_at),
        "updated_at": time_text(project.updated_at),
    }


_MISSING = (404, 422)
OPERATIONS = (
    Operation(
        "GET",
        PROJECTS,
        list_projects,
        "List projects",
        "ProjectPage",
        query="ProjectListQuery",
        errors=_MISSING,
    ),
    Operation(
        "POST",
        PROJECTS,
        create_project,
        "Create a project",
        "Project",
        201,
        body="ProjectCreate",
        errors=(404, 409, 422),
    ),
    Operation("GET", PROJECT, get_project, "Get a project", "Project", errors=(404,)),
    Operation(
        "PUT",
        PROJECT,
        replace_project,
        "Set a project's description",
        "Project",
        body="ProjectUpdate",
        errors=_MISSING,
    ),
    Operation(
        "PATCH",
        PROJECT,
        update_project,
        "Change a project's description",
        "Project",
        body="ProjectUpdate",
        errors=_MISSING,
    ),
    Operation(
        "DELETE", PROJECT, delete_project, "Delete a project without jobs", "Deleted", errors=(404, 409)
    ),
)

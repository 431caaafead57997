"""Filesets: named places for files, those of jobs included."""

from json.encoder import encode_basestring as quoted
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.domain.model import Invalid, Json
from nemo_jobs.domain.spec import JsonObject, Name, Text
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.identity import caller
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, dumps, page_reply, time_text
from nemo_jobs.store import filesets as store
from nemo_jobs.store import projects
from nemo_jobs.store.db import Tx
from nemo_jobs.store.filesets import FilesetRecord

FILESETS = "/apis/files/v2/workspaces/{workspace}/filesets"
FILESET = FILESETS + "/{name}"
MAX_PAGE_SIZE = 100
#: What clients of the family read of the place where the bytes are.
_STORAGE = {"read_chunk_size": 1024 * 1024, "write_buffer_size": 16 * 1024 * 1024}
_METADATA = {"dataset": None, "model": None, "environment": None}

Description = Annotated[Text, Field(max_length=255)]
Purpose = Literal["dataset", "environment", "generic", "model"]


class FilesetListQuery(BaseModel):
    page: Annotated[int, Field(gt=0)] = 1
    page_size: Annotated[int, Field(gt=0)] = 10
    sort: Literal["name", "-name", "created_at", "-created_at", "updated_at", "-updated_at"] = "-created_at"


class FilesetUpdate(BaseModel):
    description: Description | None = None
    project: Text | None = None
    purpose: Purpose | None = None
    metadata: JsonObject | None = None
    custom_fields: JsonObject | None = None


class FilesetCreate(FilesetUpdate):
    name: Name
    storage: JsonObject | None = None
    cache: Any = None


_CREATE = TypeAdapter(FilesetCreate)
_UPDATE = TypeAdapter(FilesetUpdate)


async def list_filesets(api: Api, request: Request) -> Reply:
    query = request.query(FilesetListQuery)
    if query.page_size > MAX_PAGE_SIZE:
        raise Refused(422, f"page_size is {query.page_size}; at most {MAX_PAGE_SIZE} are allowed")
    found, total = await api.parts.db.read(
        store.list_filesets, request.path["workspace"], query.sort, query.page, query.page_size
    )
    return page_reply(
        [fileset_text(record) for record in found],
        page=query.page,
        page_size=query.page_size,
        total=total,
        sort=query.sort,
    )


async def get_fileset(api: Api, request: Request) -> Reply:
    path = request.path
    return _reply(await api.parts.db.read(store.get_fileset, path["workspace"], path["name"], point=True))


async def create_fileset(api: Api, request: Request) -> Reply:
    body, parts = await request.parsed(_CREATE), api.parts
    kind = "local" if body.storage is None else body.storage.get("type", "local")
    if kind != "local":
        raise Invalid(f"storage of type {str(kind)[:80]!r} is not offered; leave storage out")
    made = await parts.db.write(
        _create, request.path["workspace"], body.name, _given(body), parts.clock.now(), caller(request).actor
    )
    return _reply(made)


async def update_fileset(api: Api, request: Request) -> Reply:
    body, path, parts = await request.parsed(_UPDATE), request.path, api.parts
    changed = await parts.db.write(
        _update, path["workspace"], path["name"], _given(body), parts.clock.now(), caller(request).actor
    )
    return _reply(changed)


async def delete_fileset(api: Api, request: Request) -> Reply:
    path, parts = request.path, api.parts
    gone = await parts.db.write(store.delete_fileset, path["workspace"], path["name"], parts.clock.now())
    return _reply(gone)


def _create(tx: Tx, workspace: str, name: str, given: Json, now: int, actor: str) -> FilesetRecord:
    store.check_workspace(tx, workspace)
    _check_project(tx, workspace, given)
    return store.create_fileset(tx, workspace, name, given, now, actor)


def _update(tx: Tx, workspace: str, name: str, given: Json, now: int, actor: str) -> FilesetRecord:
    _check_project(tx, workspace, given)
    return store.update_fileset(tx, workspace, name, given, now, actor)


def _check_project(tx: Tx, workspace: str, given: Json) -> None:
    project = given.get("project")
    if project is not None and not projects.hold(tx, workspace, project):
        raise Invalid(
            f"project {project!r} does not exist in workspace {workspace!r}; create it first or leave it out"
        )


def _given(body: FilesetUpdate) -> Json:
    """The fields that were sent; an empty text, as answers have it, is no value."""
    sent = body.model_dump(include=set(FilesetUpdate.model_fields), exclude_unset=True)
    if sent.get("purpose", "") is None:
        sent["purpose"] = "generic"
    return {key: None if value == "" else value for key, value in sent.items()}


def _reply(record: FilesetRecord) -> Reply:
    return Reply(fileset_text(record).encode())


def fileset_text(record: FilesetRecord) -> str:
    """A fileset as contract 14 shows it; the JSON columns are copied."""
    storage = dumps({"type": "local", "path": f"{record.workspace}/{record.name}", **_STORAGE})
    own = record.metadata[1:-1]
    # Of a key that stands twice the last one counts, for every reader of JSON.
    metadata = f"{dumps(_METADATA)[:-1]}{',' if own else ''}{own}}}"
    return (
        f'{{"id":{quoted(record.id)},"name":{quoted(record.name)},"workspace":{quoted(record.workspace)},'
        f'"description":{quoted(record.description or "")},"purpose":{quoted(record.purpose)},'
        f'"project":{quoted(record.project or "")},"storage":{storage},'
        f'"custom_fields":{record.custom_fields},"metadata":{metadata},'
        f'"created_at":"{time_text(record.created_at)}","updated_at":"{time_text(record.updated_at)}"}}'
    )


_KNOWN = (404, 422)
OPERATIONS = (
    Operation(
        "GET",
        FILESETS,
        list_filesets,
        "List filesets, those of jobs included",
        "FilesetPage",
        query="FilesetListQuery",
        errors=_KNOWN,
    ),
    Operation(
        "POST",
        FILESETS,
        create_fileset,
        "Create a fileset",
        "Fileset",
        body="FilesetCreate",
        errors=(404, 409, 422),
    ),
    Operation("GET", FILESET, get_fileset, "Get a fileset", "Fileset", errors=_KNOWN),
    Operation(
        "PATCH",
        FILESET,
        update_fileset,
        "Change what is said about a fileset",
        "Fileset",
        body="FilesetUpdate",
        errors=_KNOWN,
    ),
    Operation(
        "DELETE",
        FILESET,
        delete_fileset,
        "Delete a fileset with its files",
        "Fileset",
        errors=(404, 409, 422),
    ),
)

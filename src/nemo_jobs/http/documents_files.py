"""Models of what the routes of filesets and files answer, for the API document only."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, WithJsonSchema

from nemo_jobs.domain.spec import Json
from nemo_jobs.http.files import FileListQuery
from nemo_jobs.http.filesets import FilesetCreate, FilesetListQuery, FilesetUpdate, Purpose


class Storage(BaseModel):
    type: str
    path: str
    read_chunk_size: int
    write_buffer_size: int


class Fileset(BaseModel):
    id: str
    name: str
    workspace: str
    description: str
    purpose: Purpose
    project: str
    storage: Storage
    custom_fields: Json
    metadata: Json
    created_at: datetime
    updated_at: datetime


class Paging(BaseModel):
    total_results: int
    total_pages: int
    page_size: int
    page: int
    current_page_size: int


class FilesetPage(BaseModel):
    data: list[Fileset]
    sort: str
    pagination: Paging


class File(BaseModel):
    file_ref: str
    file_url: str
    path: str
    size: int
    cache_status: str | None


class FileList(BaseModel):
    data: list[File]


MODELS: dict[str, TypeAdapter[Any]] = {
    **{
        model.__name__: TypeAdapter(model)
        for model in (
            *(FilesetListQuery, FilesetCreate, FilesetUpdate, Fileset, FilesetPage),
            *(FileListQuery, File, FileList),
        )
    },
    "Bytes": TypeAdapter(Annotated[Any, WithJsonSchema({"type": "string", "format": "binary"})]),
}

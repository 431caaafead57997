"""Models of the API document: creating, projects, and what is done to many jobs at once."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from nemo_jobs.domain.spec import JobSpec, Json
from nemo_jobs.domain.states import State
from nemo_jobs.http.bulk import BulkRequest
from nemo_jobs.http.create import JobCreateQuery
from nemo_jobs.http.projects import ProjectCreate, ProjectListQuery, ProjectUpdate


class StepToBe(BaseModel):
    """Where a step would go and what would be sent to start it; else the problem with it."""

    name: str
    provider: str
    profile: str
    backend: str | None
    manifest: Json | None
    problem: str | None


class DryRun(BaseModel):
    """What a create with `dry_run=true` would do: the job as it would be, which has no id, and its
    steps. Nothing is stored."""

    name: str
    workspace: str
    project: str | None
    description: str | None
    source: str
    spec: Json
    platform_spec: JobSpec
    fileset: str
    output_location: str | None
    ownership: Json | None
    custom_fields: Json | None
    dry_run: bool
    steps: list[StepToBe]


class Project(BaseModel):
    id: str
    name: str
    workspace: str
    description: str | None
    created_at: datetime
    updated_at: datetime


class Pagination(BaseModel):
    total_results: int
    total_pages: int
    page_size: int
    page: int
    current_page_size: int


class ProjectPage(BaseModel):
    data: list[Project]
    sort: str
    pagination: Pagination


class BulkOutcome(BaseModel):
    """What became of a job; `gone`: it was deleted meanwhile. `status` is its state afterwards."""

    id: str
    name: str
    status: State
    outcome: Literal["done", "unchanged", "refused", "gone", "failed"]
    detail: str | None


class BulkAnswer(BaseModel):
    """`count` jobs match; `data` are those that this call took, and `next` is the cursor for the
    others, if there are any. With `dry_run` it says what would become of them."""

    action: Literal["cancel", "delete", "rerun"]
    dry_run: bool
    count: int
    done: int
    unchanged: int
    refused: int
    gone: int
    failed: int
    data: list[BulkOutcome]
    next: str | None


MODELS: dict[str, TypeAdapter[Any]] = {
    model.__name__: TypeAdapter(model)
    for model in (
        *(JobCreateQuery, DryRun, BulkRequest, BulkAnswer),
        *(Project, ProjectPage, ProjectListQuery, ProjectCreate, ProjectUpdate),
    )
}

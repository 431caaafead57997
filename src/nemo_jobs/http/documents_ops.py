"""Models of the API document: creating, projects, and what is done to many jobs at once."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, TypeAdapter

from nemo_jobs.domain.spec import JobSpec, Json
from nemo_jobs.http.create import JobCreateQuery


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


class _Pagination(BaseModel):
    total_results: int
    total_pages: int
    page_size: int
    page: int
    current_page_size: int


MODELS: dict[str, TypeAdapter[Any]] = {
    model.__name__: TypeAdapter(model) for model in (JobCreateQuery, DryRun, Project)
}

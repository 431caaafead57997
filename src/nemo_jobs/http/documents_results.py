"""Models of the API document: results."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.http.results import ResultCreate, ResultListQuery, ResultQuery


class Result(BaseModel):
    """What a job left behind. `step` and `original_name` are those of one that a step left in its
    directory of results; the latter is null where it is the name itself."""

    name: str
    job: str
    workspace: str
    project: str | None = None
    created_at: datetime = Field(default=...)
    updated_at: datetime = Field(default=...)
    artifact_url: str
    artifact_storage_type: Literal["fileset"]
    download_url: str | None = None
    attempt_id: str
    step: str | None
    original_name: str | None


class ResultList(BaseModel):
    data: list[Result]


MODELS: dict[str, TypeAdapter[Any]] = {
    model.__name__: TypeAdapter(model)
    for model in (Result, ResultList, ResultCreate, ResultListQuery, ResultQuery)
}

"""Models of what the API answers about attempts, for its document only."""

from datetime import datetime

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.domain.spec import JobControl, JobSpec, Json
from nemo_jobs.domain.states import State
from nemo_jobs.http.attempts import AttemptFilter, AttemptListQuery, DetailsQuery
from nemo_jobs.http.rerun import JobUpdate, RerunQuery


class AttemptReason(BaseModel):
    """Why an attempt is where it is: a word for programs, a sentence for people, since when."""

    code: str
    message: str
    since: datetime


class Attempt(BaseModel):
    id: str
    name: str
    job: str
    workspace: str
    seq: int
    spec: Json = Field(default_factory=dict)
    platform_spec: JobSpec
    status: State
    status_details: Json = Field(default_factory=dict)
    error_details: Json | None = None
    is_current: bool = False
    created_at: datetime
    updated_at: datetime
    reason: AttemptReason


class AttemptsFilter(AttemptFilter):
    """A filter of the list of attempts; one status stands for a list of one."""


MODELS = {
    model.__name__: TypeAdapter(model)
    for model in (Attempt, AttemptListQuery, AttemptsFilter, DetailsQuery, JobControl, JobUpdate, RerunQuery)
}

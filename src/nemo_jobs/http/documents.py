"""Models of what the API answers, for its document only; nothing is built through them.

Loaded when the document is asked for. Answers may carry more than is shown here.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, WithJsonSchema

from nemo_jobs.domain.spec import CreateJobRequest, JobControl, JobSpec, Json, StepSpec
from nemo_jobs.domain.states import State
from nemo_jobs.http import (
    documents_access,
    documents_attempts,
    documents_files,
    documents_ops,
    documents_otlp,
    documents_profiles,
    documents_results,
)
from nemo_jobs.http.jobs import JobListQuery
from nemo_jobs.http.logs import LogQuery
from nemo_jobs.http.steps import StatusUpdate, StepFilter, StepListQuery, TaskUpdate
from nemo_jobs.http.stream import StreamQuery
from nemo_jobs.http.workspaces import (
    WorkspaceCreate,
    WorkspaceCreateQuery,
    WorkspaceListQuery,
    WorkspaceUpdate,
)

WorkspaceName = Annotated[str, Field(pattern=r"^[\w\-\+.@:]+$")]


class Reason(BaseModel):
    """Why a job is where it is: a word for programs, a sentence for people, since when."""

    code: str
    message: str
    since: datetime


class Job(BaseModel):
    id: str
    attempt_id: str
    name: str
    workspace: str
    project: str | None = None
    description: str | None = None
    source: str
    spec: Json = Field(default_factory=dict)
    platform_spec: JobSpec
    fileset: str
    output_location: str | None = None
    status: State
    status_details: Json = Field(default_factory=dict)
    error_details: Json | None = None
    created_at: datetime = Field(default=...)
    updated_at: datetime = Field(default=...)
    ownership: Json | None = None
    custom_fields: Json | None = None
    control: JobControl | None = None
    reason: Reason


class TaskStatus(BaseModel):
    id: str
    name: str
    status: State
    status_details: Json
    error_details: Json | None
    error_stack: str | None
    created_at: datetime
    updated_at: datetime


class StepStatus(BaseModel):
    id: str
    name: str
    status: State
    status_details: Json
    error_details: Json | None
    tasks: list[TaskStatus]
    created_at: datetime
    updated_at: datetime


class JobStatus(BaseModel):
    id: str
    name: str
    status: State
    status_details: Json
    error_details: Json | None
    reason: Reason
    steps: list[StepStatus]
    created_at: datetime
    updated_at: datetime


class _Record(BaseModel):
    id: str
    entity_id: str
    parent: str | None
    workspace: WorkspaceName
    project: str | None = None
    name: str = ""
    status_details: Json = Field(default_factory=dict)
    error_details: Json | None = None
    created_at: datetime | None
    created_by: str | None
    updated_at: datetime | None
    updated_by: str | None
    db_version: int


class Step(_Record):
    attempt_id: str
    config: Json = Field(default_factory=dict)
    status: State = State.CREATED


class Task(_Record):
    step_id: str
    status: State = State.PENDING
    error_stack: str | None = None


class AuthContext(BaseModel):
    principal_id: str
    principal_account_id: str | None = None
    principal_email: str | None = None
    principal_groups: list[str] = Field(default_factory=list)
    principal_authz_aliases: list[str] = Field(default_factory=list)
    principal_on_behalf_of: str | None = None
    principal_on_behalf_of_groups: list[str] | None = None
    principal_on_behalf_of_email: str | None = None
    principal_on_behalf_of_account_id: str | None = None
    principal_on_behalf_of_authz_aliases: list[str] = Field(default_factory=list)


class StepInContext(BaseModel):
    id: str
    job: str
    attempt_id: str
    fileset: str
    artifact_base_path: str | None = None
    workspace: str
    name: str
    step_spec: StepSpec | None = None
    status: State = State.CREATED
    status_details: Json | None = None
    error_details: Json | None = None
    auth_context: AuthContext | None = None
    created_at: datetime = Field(default=...)
    updated_at: datetime = Field(default=...)


class TaskList(BaseModel):
    data: list[Task]


class LogEntry(BaseModel):
    timestamp: datetime
    job: str
    job_step: str
    job_task: str
    message: str


class LogPage(BaseModel):
    data: list[LogEntry]
    total: int
    next_page: str | None
    prev_page: str | None


class Pagination(BaseModel):
    total_results: int
    total_pages: int
    page_size: int
    page: int
    current_page_size: int


class _Page(BaseModel):
    sort: str | None = None
    filter: Json | None = None
    pagination: Pagination | None = None


class JobPage(_Page):
    data: list[Job]


class AttemptPage(_Page):
    data: list[documents_attempts.Attempt]


class StepPage(_Page):
    data: list[StepInContext]


class Workspace(BaseModel):
    id: str
    name: str
    description: str | None
    created_at: datetime
    created_by: str | None
    updated_at: datetime
    updated_by: str | None


class WorkspacePage(_Page):
    data: list[Workspace]


class Deleted(BaseModel):
    message: str
    id: str


class Live(BaseModel):
    status: Literal["live"] = "live"


class Ready(BaseModel):
    status: Literal["ready"] = "ready"


class NotReadyService(BaseModel):
    name: str
    message: str = ""


class ServiceStates(BaseModel):
    ready: list[str] = Field(default_factory=list)
    not_ready: list[NotReadyService] = Field(default_factory=list)


class ControllerStates(BaseModel):
    healthy: bool = True
    status: dict[str, bool] = Field(default_factory=dict)


class LeftOutProfile(BaseModel):
    provider: str
    profile: str
    reason: str


class ServiceStatus(BaseModel):
    status: Literal["healthy", "degraded", "unhealthy"]
    services: ServiceStates = Field(default_factory=ServiceStates)
    controllers: ControllerStates = Field(default_factory=ControllerStates)
    version: str = ""
    problems: list[str] = Field(default_factory=list)
    held_steps: dict[str, int] = Field(default_factory=dict)
    profiles_left_out: list[LeftOutProfile] = Field(default_factory=list)
    log_followers: int = 0


class ClusterInfo(BaseModel):
    platform_version: str
    revision: str


class Discovery(BaseModel):
    auth_enabled: bool
    oidc: Json | None


class ValidationProblem(BaseModel):
    type: str
    loc: list[str | int]
    msg: str
    input: Any = None
    ctx: Json = Field(default_factory=dict)


class ValidationProblems(BaseModel):
    """Of a request that does not fit its model. Other refusals carry a sentence as `detail`."""

    detail: list[ValidationProblem] | str = Field(default_factory=list)


class Problem(BaseModel):
    detail: str


class TextFilter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    eq: str | None = Field(None, alias="$eq")
    like: str | None = Field(None, alias="$like")
    any_of: list[str] | None = Field(None, alias="$in")
    none_of: list[str] | None = Field(None, alias="$nin")


class TimeFilter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    gte: datetime | None = Field(None, alias="$gte")
    lte: datetime | None = Field(None, alias="$lte")


class JobFilter(BaseModel):
    """The usual ones; operators nest, and the text form says the same."""

    model_config = ConfigDict(extra="forbid")

    workspace: str | None = None
    project: str | None = None
    name: TextFilter | str | None = None
    status: State | list[State] | None = None
    source: TextFilter | str | None = None
    created_at: TimeFilter | None = None
    updated_at: TimeFilter | None = None
    spec: Json | None = None
    labels: dict[str, TextFilter | str | None] | None = None


class StepsFilter(StepFilter):
    """A filter of the steps list; one status stands for a list of one."""


def _as_shown(schema: dict[str, Any]) -> Any:
    return Annotated[Any, WithJsonSchema(schema)]


#: Every name that an operation uses, as something pydantic makes a schema of.
MODELS: dict[str, TypeAdapter[Any]] = {
    **{
        model.__name__: TypeAdapter(model)
        for model in (
            *(CreateJobRequest, JobListQuery, LogQuery, StreamQuery, StepListQuery, StatusUpdate, TaskUpdate),
            *(
                WorkspaceCreate,
                WorkspaceCreateQuery,
                WorkspaceListQuery,
                WorkspaceUpdate,
                Workspace,
                WorkspacePage,
            ),
            AttemptPage,
            *(Job, JobPage, JobStatus, Step, StepPage, Task, TaskList, LogPage, Deleted, Live, Ready),
            *(ServiceStatus, ClusterInfo, Discovery, ValidationProblems, Problem, JobFilter, StepsFilter),
        )
    },
    **documents_access.MODELS,
    **documents_attempts.MODELS,
    **documents_files.MODELS,
    **documents_ops.MODELS,
    **documents_otlp.MODELS,
    **documents_profiles.MODELS,
    **documents_results.MODELS,
    "Object": TypeAdapter(dict[str, Any]),
    "Null": TypeAdapter(_as_shown({})),
    "EventStream": TypeAdapter(str),
}

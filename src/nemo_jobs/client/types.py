"""The JSON objects of the interface, as types. At run time they are plain dicts."""

from typing import Any, Literal, NotRequired, TypedDict

Json = dict[str, Any]
Status = Literal[
    "active",
    "cancelled",
    "cancelling",
    "completed",
    "created",
    "error",
    "paused",
    "pausing",
    "pending",
    "resuming",
]
ENDED = frozenset({"completed", "error", "cancelled"})


class Reason(TypedDict):
    """Why a job is where it is."""

    code: str
    message: str
    since: str


class JobControl(TypedDict):
    pause_ttl_seconds: int | None


class Job(TypedDict):
    id: str
    attempt_id: str
    name: str
    workspace: str
    project: str | None
    description: str | None
    source: str
    spec: Json
    platform_spec: Json
    fileset: str
    output_location: str | None
    status: Status
    status_details: Json
    error_details: Json | None
    reason: Reason | None
    created_at: str
    updated_at: str
    ownership: Json | None
    custom_fields: Json | None
    control: NotRequired[JobControl | None]


class JobPlan(TypedDict, total=False):
    """What a dry run tells: the job as it would be, and for each step its profile and what would
    be sent to start it."""

    dry_run: bool
    name: str
    workspace: str
    project: str | None
    description: str | None
    source: str
    spec: Json
    platform_spec: Json
    fileset: str
    output_location: str | None
    ownership: Json | None
    custom_fields: Json | None
    steps: list[Json]


class Bulk(TypedDict, total=False):
    """What became of each job of a bulk call. `count` is how many match, `next` where another
    call goes on if this one could not take them all."""

    action: str
    dry_run: bool
    count: int
    done: int
    unchanged: int
    refused: int
    gone: int
    failed: int
    data: list[Json]
    next: str | None


class Attempt(TypedDict):
    id: str
    name: str
    job: str
    workspace: str
    seq: int
    spec: NotRequired[Json]
    platform_spec: Json
    status: Status
    status_details: NotRequired[Json]
    error_details: NotRequired[Json | None]
    is_current: NotRequired[bool]
    created_at: str
    updated_at: str


class Step(TypedDict):
    id: str
    entity_id: str
    parent: str
    attempt_id: str
    name: str
    workspace: str
    project: str | None
    config: Json
    status: Status
    status_details: Json
    error_details: Json | None
    created_by: str | None
    created_at: str
    updated_by: str | None
    updated_at: str
    db_version: int


class StepWithContext(TypedDict):
    id: str
    job: str
    attempt_id: str
    fileset: str
    workspace: str
    name: str
    artifact_base_path: str | None
    step_spec: Json
    status: Status
    status_details: Json | None
    error_details: Json | None
    auth_context: Json | None
    created_at: str
    updated_at: str


class Task(TypedDict):
    id: str
    entity_id: str
    parent: str
    step_id: str
    name: str
    workspace: str
    project: str | None
    status: Status
    status_details: Json
    error_details: Json | None
    error_stack: str | None
    created_by: str | None
    created_at: str
    updated_by: str | None
    updated_at: str
    db_version: int


class TaskStatus(TypedDict):
    """A task as a leaf of the status tree."""

    id: str
    name: str
    created_at: str
    updated_at: str
    status: Status
    error_details: Json
    error_stack: str | None
    status_details: Json


class StepStatus(TypedDict):
    """A step of the status tree."""

    id: str
    name: str
    created_at: str
    updated_at: str
    status: Status
    error_details: Json
    status_details: Json
    tasks: list[TaskStatus]


class JobStatus(TypedDict):
    """The status tree of a job."""

    id: str
    name: str
    created_at: str
    updated_at: str
    status: Status
    error_details: Json | None
    status_details: Json
    steps: list[StepStatus]


class LogLine(TypedDict):
    timestamp: str
    job: str
    job_step: str
    job_task: str
    message: str


class LogPage(TypedDict):
    data: list[LogLine]
    total: int
    next_page: str | None
    prev_page: str | None


class ExecutionProfile(TypedDict):
    provider: str
    profile: str
    backend: str
    config: Json


class Workspace(TypedDict):
    id: str
    name: str
    description: str | None
    created_at: str
    created_by: str | None
    updated_at: str
    updated_by: str | None


class Pagination(TypedDict):
    total_results: int
    total_pages: int
    page_size: int
    page: int
    current_page_size: int


class _Page(TypedDict):
    sort: str
    filter: Json | None
    pagination: Pagination


class JobPage(_Page):
    data: list[Job]


class StepPage(_Page):
    data: list[StepWithContext]


class WorkspacePage(_Page):
    data: list[Workspace]


class TaskList(TypedDict):
    data: list[Task]


class AttemptPage(_Page):
    data: list[Attempt]


class Result(TypedDict):
    name: str
    job: str
    workspace: str
    project: str | None
    attempt_id: NotRequired[str | None]
    artifact_url: str
    artifact_storage_type: str
    download_url: str | None
    created_at: str
    updated_at: str


class ResultList(TypedDict):
    data: list[Result]


class Project(TypedDict):
    id: str
    name: str
    workspace: str
    description: str | None
    created_at: str
    updated_at: str


class ProjectPage(_Page):
    data: list[Project]


class Secret(TypedDict):
    """A secret without its value; `notes` are sentences for people about a value just set."""

    name: str
    workspace: str
    description: str | None
    created_at: str
    updated_at: str
    notes: NotRequired[list[str]]


class SecretPage(_Page):
    data: list[Secret]


class Fileset(TypedDict):
    id: str
    name: str
    workspace: str
    project: str | None
    description: str | None
    purpose: str
    storage: Json
    metadata: Json
    custom_fields: Json
    created_at: str
    updated_at: str


class FilesetPage(_Page):
    data: list[Fileset]


class File(TypedDict):
    """A file of a fileset; `size` in bytes."""

    file_ref: str
    file_url: str
    path: str
    size: int
    cache_status: NotRequired[str | None]


class FileList(TypedDict):
    data: list[File]


class Token(TypedDict):
    """A token as it is listed; `grants` maps workspaces (or `*`) to scopes."""

    id: str
    principal: str
    description: str | None
    grants: dict[str, list[str]]
    created_at: str
    created_by: str | None
    expires_at: str | None
    revoked_at: str | None


class NewToken(Token):
    """A token that was just made: only now is it shown itself."""

    token: str


class TokenPage(_Page):
    data: list[Token]

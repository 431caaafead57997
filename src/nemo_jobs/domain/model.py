"""The words that store, engine, backends and HTTP share: reasons, records and errors."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from nemo_jobs.domain.states import State

Json = dict[str, Any]


class Reason(StrEnum):
    """Why a step is where it is: one word for machines, next to a sentence for people."""

    # waiting
    QUEUED = "queued"  # waits for a free place on its profile
    STARTING = "starting"
    BACKEND_UNAVAILABLE = "backend_unavailable"
    SECRETS_UNAVAILABLE = "secrets_unavailable"
    HOST_UNREACHABLE = "host_unreachable"
    IMAGE_PULL = "image_pull"
    UNSCHEDULABLE = "unschedulable"
    WAITING_FOR_GPUS = "waiting_for_gpus"
    # working
    RUNNING = "running"
    STOPPING = "stopping"
    SUSPENDED = "suspended"  # paused, or about to be started again, by its engine or somebody there
    # ends
    FINISHED = "finished"
    EXIT_NONZERO = "exit_nonzero"
    SIGNAL = "signal"
    OOM = "oom"
    PROGRAM_NOT_FOUND = "program_not_found"
    REJECTED = "rejected"
    LOST = "lost"
    HOST_RESTARTED = "host_restarted"
    ENGINE_RESTARTED = "engine_restarted"  # the container engine ended the work with itself
    BEFORE_ACTIVE_TIMEOUT = "before_active_timeout"
    ACTIVE_TIMEOUT = "active_timeout"
    STALE = "stale"
    PROFILE_REMOVED = "profile_removed"
    SECRET_MISSING = "secret_missing"  # noqa: S105 - deleted since the job was created, or not readable
    CANCELLED_BY_USER = "cancelled_by_user"
    PAUSED_BY_USER = "paused_by_user"
    SERVICE_STOPPED = "service_stopped"  # the profile says on_shutdown: stop
    REPORTED = "reported"  # an outside writer set the state through the API
    KEPT_FROM_ATTEMPT = "kept_from_attempt"  # it completed in an earlier attempt and was not run again
    STORAGE_EXPIRED = "storage_expired"  # paused for longer than its storage is kept


class NemoJobsError(Exception):
    """Base of the errors that a caller can act on. `str()` is a sentence for people."""


class NotFound(NemoJobsError):
    """The thing named does not exist (HTTP 404)."""


class Conflict(NemoJobsError):
    """The request does not fit the present state (HTTP 409)."""


class Invalid(NemoJobsError):
    """The input is wrong (HTTP 422)."""


class Unavailable(NemoJobsError):
    """Something below is away; the same request may succeed later (HTTP 503)."""

    def __init__(self, message: str, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def run_key(step_id: str, generation: int) -> str:
    """The name of one run of a step, for ever."""
    return f"nj-{step_id.removeprefix('platform-job-step-')}-{generation}"


class JobRecord(NamedTuple):
    """A job with its current attempt. JSON columns stay text: the wire copies them as they are."""

    id: str
    workspace: str
    name: str
    attempt_id: str
    project: str | None
    description: str | None
    source: str
    spec: str
    platform_spec: str
    fileset: str
    output_location: str | None
    ownership: str | None
    custom_fields: str | None
    auth_context: str
    state: str
    reason: str
    message: str
    since: int
    status_details: str
    error_details: str | None
    created_at: int
    updated_at: int
    control: str | None = None


class StepRecord(NamedTuple):  # made and changed several times a job, where a dataclass costs 5 %
    """A step row with the parts of its job that the engine and the wire need.

    Times are microseconds since 1970 UTC. `spec` is the whole step of `platform_spec`.
    """

    id: str
    attempt_id: str
    job_id: str
    workspace: str
    job: str  # the job's name
    name: str
    ordinal: int
    steps_total: int
    provider: str
    profile: str
    spec: Json
    state: State
    reason: str
    message: str
    since: int
    status_details: Json
    error_details: Json | None
    generation: int
    handle: Json | None
    host: str | None
    due_at: int
    lease_token: str | None
    active_since: int | None
    active_used: int  # microseconds spent active before the last pause
    stop_reason: str | None
    log_cursor: Json | None
    db_version: int
    created_at: int
    updated_at: int
    fileset: str
    output_location: str | None
    attempt_seq: int
    auth_context: Json

    @property
    def key(self) -> str:
        """The name under which a backend knows this run of the step; never used for another."""
        return run_key(self.id, self.generation)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task row: one process, container or pod of a step."""

    id: str
    step_id: str
    workspace: str
    name: str
    rank: int
    state: State
    status_details: Json
    error_details: Json | None
    error_stack: str | None
    db_version: int
    created_by: str | None
    created_at: int
    updated_by: str | None
    updated_at: int
    reported_at: int | None  # the last sign of life that the task itself gave


class RecordFacts(NamedTuple):
    """What a log record of another program says besides its text. A severity of 0 is not told."""

    nanoseconds: int  # behind the microsecond of the line's time
    severity: int
    level: str
    attributes: Json


@dataclass(frozen=True, slots=True)
class LogLine:
    """One stored line. `seq` grows by one per line of an attempt, from 0."""

    seq: int
    at: int
    job: str
    step: str
    task: str
    stream: str  # "stdout" or "stderr"
    text: str
    facts: RecordFacts | None = None

"""What a backend is: the protocol, its data, and the two errors it may raise.

A backend starts work, looks at it, stops it and reads its output. It knows nothing of the
database, of job states or of HTTP, and keeps nothing that matters: everything needed to find a
workload again is in its `Handle`, which the caller stores.

Order of calls for one workload: `submit` (again after a crash: same key), then `observe` and
`logs` any number of times, `stop` zero or more times, `remove` at least once, at last.
Calls for different workloads may run concurrently; so may `observe`, `logs` and `stop` of one.
Every line of the docstrings below is a test of the conformance suite in `nemo_jobs.testing`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from nemo_jobs.backends.left import Left as Left
from nemo_jobs.backends.left import LeftFile as LeftFile
from nemo_jobs.backends.left import LeftItem as LeftItem
from nemo_jobs.backends.left import Leftover as Leftover

Json = dict[str, Any]


class Phase(StrEnum):
    """Where a workload is, in the backend's own terms."""

    WAITING = "waiting"  # accepted, not running yet
    RUNNING = "running"
    SUCCEEDED = "succeeded"  # every task ended with code 0
    FAILED = "failed"  # ended otherwise, by itself
    STOPPED = "stopped"  # ended because `stop` was called
    LOST = "lost"  # it is gone and how it ended can't be known


ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST})


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a backend can take work now; `message` says why not and what to do."""

    ok: bool
    message: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do, as data, so that a spec is refused before it is stored."""

    distributed: bool = False
    gpus: bool = False
    images: bool = False
    isolation: bool = False
    persistent_storage: bool = False
    resumes: bool = False  # paused work stays, and a plan that `resumes` it goes on with its files
    on_host: bool = False  # its work can be looked after from this host alone


@dataclass(frozen=True, slots=True)
class PlatformInfo:
    """What a task is told about the service: addresses and logging."""

    urls: Mapping[str, str]  # keys: base, files, secrets, jobs, auth, models
    log_level: str = "INFO"
    log_format: str = "plain"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of one step, complete: everything a backend needs to start it.

    `key` names this run for ever (`nj-…`, letters, digits and hyphens); `config` is the
    profile's config model of this backend; `spec` is the step of `platform_spec` with all
    defaults; `secret_env` holds resolved secret values and is never logged or stored. `earlier`
    are attempts whose shared storage this one takes over, the likeliest first; with `needs_storage`
    the work can't start without it. `devices` are the ids of the GPUs that are the step's until it
    has ended: these and no others. `resumes` is the run of the same step that was paused before.
    """

    key: str
    provider: str
    profile: str
    config: Any
    workspace: str
    job: str
    job_id: str
    attempt_id: str
    step: str
    step_id: str
    task: str  # task name, `task-<32 hex>`, derived from the key
    fileset: str
    output_location: str | None
    spec: Json
    platform: PlatformInfo
    principal: Json = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)
    earlier: "tuple[Earlier, ...]" = ()
    needs_storage: bool = False
    devices: tuple[str, ...] = ()
    resumes: "Handle | None" = None
    #: With which the task calls the service, while that asks for tokens; as secret as `secret_env`.
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Handle:
    """How a backend finds its workload again. Small JSON; opaque to everyone else."""

    backend: str
    key: str
    version: int
    data: Json

    def to_json(self) -> Json:
        return {"backend": self.backend, "key": self.key, "version": self.version, "data": self.data}

    @classmethod
    def from_json(cls, value: Json) -> "Handle":
        return cls(value["backend"], value["key"], value["version"], value["data"])


@dataclass(frozen=True, slots=True)
class Earlier:
    """An attempt of the same job that ran before, with the handle of the last work that it ran;
    `own`: on the plan's own profile. Without a handle nothing is known of work of it."""

    attempt_id: str
    handle: Handle | None = None
    own: bool = True


@dataclass(frozen=True, slots=True)
class TaskObservation:
    """One process, container or pod. Times are microseconds since 1970 UTC.

    `exit_code` follows the shell: 128+n for a signal n, with its name in `signal`.
    `details` are the backend's own facts for the task's status_details (pid, work dir, …).
    """

    rank: int
    name: str
    phase: Phase
    native_id: str = ""
    node: str = ""
    exit_code: int | None = None
    signal: str | None = None
    oom_killed: bool = False
    started_at: int | None = None
    ended_at: int | None = None
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    error_stack: str | None = None
    details: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """What is true about one workload now.

    `reason` is a value of `nemo_jobs.domain.model.Reason` or empty when the phase and the
    tasks' exit codes say enough; `message` is a sentence for people, or empty. RUNNING with the
    reason `suspended` and a message: it is there and does nothing, as long as the backend says so.
    """

    phase: Phase
    tasks: tuple[TaskObservation, ...] = ()
    reason: str = ""
    message: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A run of output bytes of one stream of one task, as written.

    Pieces may begin and end anywhere, also inside a line or a character. `cursor` is the
    position behind this piece *of the whole workload*: passing it to `logs` goes on from there.
    `truncated` says how many bytes the backend knows it could not deliver before this piece; -1:
    maybe some, and nobody knows how many. Such a piece may itself be empty.
    """

    rank: int
    task: str
    stream: str  # "stdout" or "stderr"
    at: int
    data: bytes
    cursor: Json
    truncated: int = 0


class BackendError(Exception):
    """Base of what a backend raises on purpose."""


class LeftChanged(BackendError):
    """A file isn't what was found any more: it was changed or removed meanwhile. The text says which."""


class Rejected(BackendError):
    """The same plan would fail again; nothing was started. `reason` as in `Observation`."""

    def __init__(self, message: str, reason: str = "rejected") -> None:
        super().__init__(message)
        self.reason = reason


class Unavailable(BackendError):
    """The backend can't be asked now. Either nothing was started or the next submit finds it."""

    def __init__(self, message: str, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Backend(Protocol):
    """A place where work runs. All methods but `render` and `capabilities` are coroutines."""

    name: str

    @property
    def capabilities(self) -> Capabilities: ...

    async def start(self) -> None:
        """Connect. Called once before anything else; raises `Unavailable` when it can't."""
        ...

    async def probe(self) -> Health:
        """Say whether work can be taken now. Cheap; never raises."""
        ...

    def render(self, plan: Plan) -> Json:
        """Exactly what `submit` would send, without secret values. Pure."""
        ...

    async def submit(self, plan: Plan) -> Handle:
        """Start the work once. Same key, same handle: never a second workload, also from
        another process after a crash between start and record. The storage that the steps of an
        earlier attempt shared is then that of this one. Raises `Rejected` or `Unavailable`."""
        ...

    async def observe(self, handles: Sequence[Handle]) -> dict[str, Observation]:
        """Look at many workloads at once, by key. An unknown one is LOST. Raises only
        `Unavailable`, and then nothing is known about any of them."""
        ...

    async def stop(self, handle: Handle, grace: float) -> None:
        """Ask everything of the workload to end: SIGTERM now, SIGKILL after `grace` seconds.

        Returns at once; the end shows up in `observe` when nothing of it is left. Twice, after
        the end, or on an unknown handle is fine."""
        ...

    async def remove(self, handle: Handle, *, wipe_storage: bool = False) -> None:
        """Free everything that carries the key, by force; with `wipe_storage` also the storage
        that the steps of the attempt share. Twice is fine."""
        ...

    def handles(self) -> AsyncIterator[Handle]:
        """Everything of ours that exists there, for orphans and after a lost database."""
        ...

    def logs(self, handle: Handle, cursor: Json | None) -> AsyncIterator[LogPiece]:
        """Output from `cursor` on (None: from the first byte), at least once and in order per
        task and stream, as soon as it is written; ends when the work has ended and all is read."""
        ...

    async def aclose(self) -> None:
        """Let go of connections. Work goes on running."""
        ...


@runtime_checkable
class Watches(Protocol):
    """A backend that can say when something may have changed."""

    def changes(self) -> AsyncIterator[str]:
        """Keys whose `observe` may have a new answer; hints only, may end at any time."""
        ...


@runtime_checkable
class Trims(Protocol):
    """A backend that can give back the space of output that has been stored."""

    async def trim(self, handle: Handle, cursor: Json) -> None:
        """Output before `cursor` will not be asked for again."""
        ...


@runtime_checkable
class Wipes(Protocol):
    """A backend that keeps output where others than the service could come to read it."""

    async def wipe_output(self, handle: Handle) -> None:
        """The work has ended and all of its output is stored: drop what is left of it. Twice, or
        on an unknown handle, is fine."""
        ...


@runtime_checkable
class Finds(Protocol):
    """A backend that several services may have used for one step, each out of sight of the others."""

    async def find(self, plan: Plan) -> Handle | None:
        """The work started under the plan's key, by whichever service; None when there is none.
        Starts nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Preparing:
    """Work can't be started yet: `message` says what is done for it meanwhile, and how far that is.

    `reason` is a value of `nemo_jobs.domain.model.Reason`. Ask again after `look_after` seconds at
    the latest; a hint of `Watches.changes` with the plan's key comes sooner.
    """

    message: str
    reason: str = "starting"
    look_after: float = 1.0


@runtime_checkable
class Prepares(Protocol):
    """A backend whose work needs something that may take long to get, such as an image."""

    async def prepare(self, plan: Plan) -> Preparing | None:
        """Begin to get what `submit` needs, or look how far it is; None when `submit` may follow.

        Returns at once. Many plans that need the same thing share one effort, which is given up
        when nobody has asked for it for a minute. Needs no devices. Raises `Rejected` when it can't
        be had, `Unavailable` when the backend can't be asked now."""
        ...

    def stage(self, key: str) -> str:
        """What `submit` is doing for this key just now, for people; empty when it is not running."""
        ...


@runtime_checkable
class Collects(Protocol):
    """A backend whose work can leave files as results."""

    async def left(self, handle: Handle, most_bytes: int) -> Left | None:
        """What ended work left; None when there is nothing, which is told at once. Items are whole:
        one that doesn't fit into what is left of `most_bytes` is named in the notes. Raises
        `Unavailable`, also when it takes too long."""
        ...

    def read_left(self, handle: Handle, file: LeftFile) -> AsyncIterator[bytes]:
        """The bytes of a file that `left` found, in pieces. Raises `LeftChanged`, also at the end,
        when they aren't those of one moment."""
        ...


@runtime_checkable
class Sweeps(Protocol):
    """A backend that can tell everything that it made, also what no handle leads to."""

    def belongings(self) -> AsyncIterator[Leftover]:
        """Everything there that carries our name, in use or not, storage of jobs left out. Raises
        `Unavailable`."""
        ...

    async def discard(self, item: Leftover) -> None:
        """Remove it by force. Twice is fine. Raises `Unavailable`, or `BackendError` when it can't
        be removed."""
        ...


@runtime_checkable
class Elsewhere(Protocol):
    """A backend whose work may run on another machine, with GPUs that this service shares out."""

    @property
    def machine(self) -> tuple[str, str]:
        """What names that machine for ever, and what people call it; known once it has started."""
        ...


@runtime_checkable
class Counts(Protocol):
    """A backend whose work runs on this host and goes on after the service."""

    def running(self) -> int:
        """How many workloads run now."""
        ...

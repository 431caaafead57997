"""What containers and volumes of ours are called, and the labels that say whose they are.

The name of a container is the key of its run, so an engine can't hold two for one run. A container that
is started again for a later run is renamed: its name then is that run's key and, behind a dot, the
engine's time right before that start. Labels never change, names do, so the name says what counts.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from nemo_jobs.backends.api import Plan
from nemo_jobs.domain.names import task_name

PREFIX = "nhx.nvidia.com/"
MANAGED_BY = PREFIX + "managed_by"
INSTANCE = PREFIX + "jobs_controller_instance_id"
BACKEND = PREFIX + "job_execution_backend"
PROFILE = PREFIX + "job_execution_profile"
WORKSPACE = PREFIX + "job_workspace_id"
JOB = PREFIX + "job_id"
ATTEMPT = PREFIX + "job_attempt_id"
STEP = PREFIX + "job_step_name"
STEP_ID = PREFIX + "job_step_id"
TASK = PREFIX + "job_task_id"
TYPE = PREFIX + "job_type"
USES_STORAGE = PREFIX + "uses_persistent_storage"
TOKEN_FILE = PREFIX + "workload_identity_token_file"
TOKEN_VOLUME = PREFIX + "workload_identity_volume"
#: The first run of a container, and of all that goes with it.
KEY = "nemo-jobs.key"
#: The service process that makes it, for others to know whether it still does.
CREATOR = "nemo-jobs.creator"
#: The volume of the job's storage, and the image that can wipe it.
STORAGE_VOLUME = "nemo-jobs.storage-volume"
STORAGE_IMAGE = "nemo-jobs.storage-image"
#: What people should know about the container, if anything.
NOTE = "nemo-jobs.note"
#: Where the container's program leaves results.
RESULTS = "nemo-jobs.results"

CONTROLLER = "jobs-controller"
OURS = {MANAGED_BY: CONTROLLER, BACKEND: "docker"}
#: Kinds of containers, in the label `TYPE`.
JOB_TYPE, CLEANUP_TYPE = "job", "storage-cleanup"

_RUN = re.compile(r"/?(nj-([0-9A-Za-z-]+)-[0-9]+)(?:\.([0-9a-z]+))?")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_ENCODED = {"@": "_at_", "+": "_plus_"}
_LONGEST_NAME = 200
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def instance_id(data_dir: str, given: str | None) -> str:
    """Whose containers these are: services with different data directories don't touch each other's."""
    return given or hashlib.sha256(f"nhx-data-dir:{data_dir}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Run:
    """The run that a container is there for now; `since` is the engine's time (microseconds) before
    the start that made it the container of this run, 0 for its first one."""

    key: str
    since: int = 0


def run_of(name: str, labels: Mapping[str, str]) -> Run:
    """Which run a container belongs to now. A name that somebody else gave it doesn't count."""
    first = labels.get(KEY, "")
    was, now = _RUN.fullmatch(first), _RUN.fullmatch(name)
    if was is None or now is None or was[2] != now[2]:
        return Run(first)
    return Run(now[1], int(now[3], 36) if now[3] else 0)


def name_of(run: Run) -> str:
    """The name of a container that is there for `run`."""
    if not run.since:
        return run.key
    digits, rest = "", run.since
    while rest:
        rest, digit = divmod(rest, 36)
        digits = _DIGITS[digit] + digits
    return f"{run.key}.{digits}"


def task_of(run: Run, labels: Mapping[str, str]) -> str:
    """The name of the run's task."""
    return labels.get(TASK, "") if run.key == labels.get(KEY) else task_name(run.key)


def ours(labels: Mapping[str, str]) -> bool:
    """Whether labels say that some service of this kind made it."""
    return all(labels.get(name) == value for name, value in OURS.items()) and KEY in labels


def container_labels(plan: Plan, owner: str, creator: str) -> dict[str, str]:
    """The labels of a task's container but for those of its storage and its token."""
    return {
        **OURS,
        INSTANCE: owner,
        PROFILE: plan.profile,
        WORKSPACE: plan.workspace,
        JOB: plan.job,
        ATTEMPT: plan.attempt_id,
        STEP: plan.step,
        STEP_ID: plan.step_id,
        TASK: plan.task,
        TYPE: JOB_TYPE,
        USES_STORAGE: "false",
        KEY: plan.key,
        CREATOR: creator,
    }


def volume_labels(plan: Plan, owner: str) -> dict[str, str]:
    """The labels of a volume that goes with one container."""
    return {**OURS, INSTANCE: owner, WORKSPACE: plan.workspace, JOB: plan.job, TASK: plan.task, KEY: plan.key}


def object_name(kind: str, workspace: str, job: str, last: str) -> str:
    """`<kind>-<workspace>-<job>-<last>` as engines take names; `last` makes it the only one."""
    room = (_LONGEST_NAME - len(kind) - len(last) - 3) // 2
    return "-".join((kind, _encoded(workspace)[:room], _encoded(job)[:room], last))


def _encoded(text: str) -> str:
    for character, word in _ENCODED.items():
        text = text.replace(character, word)
    return _NOT_IN_NAME.sub("_", text)


@dataclass(frozen=True, slots=True)
class TaskVolumes:
    """The names of the volumes that come and go with one container."""

    storage: str
    config: str
    token: str

    @property
    def all(self) -> tuple[str, ...]:
        return (self.storage, self.config, self.token)


def task_volumes(workspace: str, job: str, task: str) -> TaskVolumes:
    kinds = ("task-storage", "task-config", "task-workload-identity")
    return TaskVolumes(*(object_name(kind, workspace, job, task) for kind in kinds))

"""Who may use which route while authentication is on.

A route with a workspace in its path needs a scope there: read to look, write to change, unless
its operation says otherwise. One without needs it somewhere, or with a `*` behind the scope in
all workspaces; `none` needs no token, and with `any` one only shows more. What the token of a
task may do is listed here, route by route: everything else is closed to it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nemo_jobs.domain.access import Scope
from nemo_jobs.http.routes import Operation
from nemo_jobs.store.tokens import TaskOf

#: May a task use a route with these path values? Names and ids of jobs are known, secrets are not.
TaskRule = Callable[[TaskOf, Sequence[str]], bool]

OPEN, ANY = "none", "any"
_WORKSPACE = re.compile(r"/workspaces/\{(\w+)\}")
_PLACE = re.compile(r"\{[^}]*\}")
#: The routes whose workspace may be `-`, for all that the caller may read.
_WILD = ("/apis/jobs/v2/workspaces/{}/jobs", "/apis/jobs/v2/workspaces/{}/jobs/{}/steps")


@dataclass(frozen=True, slots=True)
class Rule:
    """`workspace` names the path value that is the workspace. Without one, `everywhere` says that
    the scope must hold in all of them. `scope` None: no token is needed; `asks`: one is looked at."""

    scope: Scope | None
    asks: bool
    workspace: str | None
    everywhere: bool
    wild: bool
    task: TaskRule | None
    secret: bool


def rule_of(operation: Operation) -> Rule:
    """The rule of an operation. Raises ValueError for a scope that is none."""
    if operation.scope in (OPEN, ANY):
        return Rule(None, operation.scope == ANY, None, False, False, None, False)
    found = _WORKSPACE.search(operation.path)
    looks = operation.method in ("GET", "HEAD")
    said = operation.scope or ("read" if looks else "write" if found else "admin*")
    bare = _PLACE.sub("{}", operation.path)
    return Rule(
        scope=Scope(said.removesuffix("*")),
        asks=True,
        workspace=found[1] if found else None,
        everywhere=said.endswith("*"),
        wild=looks and bare in _WILD,
        task=_TASK_RULES.get((operation.method, bare)),
        secret=bare == _SECRET,
    )


def _own_job(task: TaskOf, path: Sequence[str]) -> bool:
    return path[0] == task.workspace and path[1] in (task.job, task.job_id)


def _own_attempt(task: TaskOf, path: Sequence[str]) -> bool:
    return _own_job(task, path) and path[2] in (task.attempt_id, "current")


def _own_fileset(task: TaskOf, path: Sequence[str]) -> bool:
    """A fileset that was made for the job, whole; one that it only writes to, below its own part."""
    if path[:2] != [task.workspace, task.fileset]:
        return False
    return task.output_location is None or (len(path) > 2 and path[2].startswith(f"jobs/{task.job}/"))


def _knows_fileset(task: TaskOf, path: Sequence[str]) -> bool:
    return path[:2] == [task.workspace, task.fileset]


def _own_workspace(task: TaskOf, path: Sequence[str]) -> bool:
    return path[0] == task.workspace


_JOB = "/apis/jobs/v2/workspaces/{}/jobs/{}"
_ATTEMPT = _JOB + "/attempts/{}"
_FILESET = "/apis/files/v2/workspaces/{}/filesets/{}"
_SECRET = "/apis/secrets/v2/workspaces/{}/secrets/{}/access"  # noqa: S105 - a path
_TASK_RULES: Mapping[tuple[str, str], TaskRule] = {
    ("GET", _JOB): _own_job,
    ("GET", _JOB + "/status"): _own_job,
    ("PATCH", _JOB + "/status-details"): _own_job,
    ("GET", _JOB + "/results"): _own_job,
    ("GET", _JOB + "/results/{}"): _own_job,
    ("GET", _JOB + "/results/{}/download"): _own_job,
    ("POST", _JOB + "/results/{}"): _own_job,
    ("GET", _JOB + "/steps/{}"): _own_job,
    ("PATCH", _JOB + "/steps/{}/status"): _own_job,
    ("GET", _JOB + "/steps/{}/tasks"): _own_job,
    ("GET", _JOB + "/steps/{}/tasks/{}"): _own_job,
    ("PUT", _JOB + "/steps/{}/tasks/{}"): _own_job,
    ("GET", _ATTEMPT): _own_attempt,
    ("PATCH", _ATTEMPT + "/status-details"): _own_attempt,
    ("GET", _ATTEMPT + "/steps/{}"): _own_attempt,
    ("PATCH", _ATTEMPT + "/steps/{}/status"): _own_attempt,
    ("GET", _ATTEMPT + "/steps/{}/tasks"): _own_attempt,
    ("GET", _ATTEMPT + "/steps/{}/tasks/{}"): _own_attempt,
    ("PUT", _ATTEMPT + "/steps/{}/tasks/{}"): _own_attempt,
    ("GET", _FILESET): _knows_fileset,
    ("GET", _FILESET + "/files"): _own_fileset,
    ("GET", _FILESET + "/-/{}"): _own_fileset,
    ("HEAD", _FILESET + "/-/{}"): _own_fileset,
    ("PUT", _FILESET + "/-/{}"): _own_fileset,
    ("DELETE", _FILESET + "/-/{}"): _own_fileset,
    ("POST", _FILESET + "/otlp/v1/logs"): _knows_fileset,
    # Which secrets those are is looked up when one is asked for: see `access`.
    ("GET", _SECRET): lambda task, path: True,
}

"""From a plan to what the keeper is asked to start: paths, program, environment. Looks, but
changes nothing."""

import functools
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from nemo_jobs.backends.api import Json, Plan, Rejected
from nemo_jobs.backends.environment import TaskPaths, check_strings, subprocess_environment
from nemo_jobs.backends.keeper_files import CONFIG_NAME, RESULTS_NAME


class SubprocessSettings(Protocol):
    """What is used of the profile's config."""

    @property
    def working_directory(self) -> str: ...

    @property
    def graceful_shutdown_timeout_seconds(self) -> float: ...

    @property
    def env(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories of one task on the host."""

    root: str
    attempt: str
    task: str

    @property
    def paths(self) -> TaskPaths:
        return TaskPaths(
            home=self.task,
            persistent=f"{self.attempt}/job-storage",
            ephemeral=f"{self.task}/scratch",
            config_dir=f"{self.task}/config",
            config_file=f"{self.task}/config/{CONFIG_NAME}",
            results=f"{self.task}/{RESULTS_NAME}",
        )


def layout(plan: Plan) -> Layout:
    """`<working directory>/{ws}/{job}/<attempt id>/{step}/{task}`; no name leads out of it."""
    settings: SubprocessSettings = plan.config
    root = _absolute(settings.working_directory)
    parts = (plan.workspace, plan.job, plan.attempt_id, plan.step, plan.task)
    for part in parts:
        if not part or part in (".", "..", ".keepers") or "/" in part or "\0" in part:
            raise Rejected(f"{part!r} can't be the name of a directory")
    attempt = "/".join((root, *parts[:3]))
    return Layout(root, attempt, "/".join((attempt, *parts[3:])))


@functools.lru_cache(maxsize=64)
def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def start_request(plan: Plan, inherited: Mapping[str, str]) -> Json:
    """Everything that the keeper needs. Raises `Rejected`, naming the program if it is missing."""
    settings: SubprocessSettings = plan.config
    command = list(plan.spec["executor"]["command"])
    place = layout(plan)
    env = subprocess_environment(plan, place.paths, settings.env, inherited)
    check_strings(command, env)
    program = find_program(command[0], env)
    if command[0] in ("python", "python3"):
        command[0] = program  # an interpreter finds its environment by the name it is called by
    return {
        "key": plan.key,
        "task": plan.task,
        "root": place.root,
        "dir": place.task,
        "grace": settings.graceful_shutdown_timeout_seconds,
        "argv": command,
        "program": program,
        "env": env,
        "config": _as_text(plan.spec.get("config") or {}),
    }


def find_program(name: str, env: Mapping[str, str]) -> str:
    """The file to execute: `python` of the virtual environment or of the service, then that
    environment's `bin`, then the task's PATH. A name with a slash stays as it is."""
    home = env.get("VIRTUAL_ENV", "")
    if "/" in name:
        if os.path.isabs(name):
            _check_program(name, name)
        return name  # a relative one is looked for in the task's directory, at the start
    if not name:
        raise Rejected("the first word of the command is empty", "program_not_found")
    own = home or (sys.prefix if sys.prefix != sys.base_prefix else "")
    if name in ("python", "python3"):
        candidate = os.path.join(home, "bin", name) if home else sys.executable
        return candidate if _runs(candidate) else sys.executable
    places = (*([os.path.join(own, "bin")] if own else []), *env.get("PATH", os.defpath).split(os.pathsep))
    found = _look_up(name, places, int(time.monotonic()))
    if found is not None:
        return found
    for candidate in filter(os.path.exists, _candidates(name, places)):
        _check_program(name, candidate)
    raise Rejected(f"the program {name!r} was not found in {os.pathsep.join(places)}", "program_not_found")


@functools.lru_cache(maxsize=256)
def _look_up(name: str, places: tuple[str, ...], second: int) -> str | None:
    """The first that can run. A burst of jobs asks again and again: within one `second` once."""
    for candidate in _candidates(name, places):
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    return None


def _candidates(name: str, places: tuple[str, ...]) -> list[str]:
    return [f"{place}/{name}" for place in places if place.startswith("/")]


def _runs(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _check_program(name: str, path: str) -> None:
    if _runs(path):
        return
    if os.path.isdir(path):
        problem = "is a directory"
    elif os.path.exists(path):
        problem = "is not executable"
    else:
        problem = "was not found"
    where = "" if name == path else f" ({path})"
    raise Rejected(f"the program {name!r}{where} {problem}", "program_not_found")


def _as_text(config: Json) -> str:
    text = json.dumps(config, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair: legal in JSON text only as an escape
        return json.dumps(config)
    return text

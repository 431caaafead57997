"""The variables of a task, in their order of precedence. Pure: what is inherited is passed in."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

from nemo_jobs.backends.api import Json, Plan, PlatformInfo, Rejected

#: All that a host process inherits from the service.
INHERITED = ("PATH", "VIRTUAL_ENV", "NEMO_AGENTS_WHEEL")
#: The variable by whose value every process of a task can be recognised.
MARKER = "NEMO_JOB_TASK"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1", "::"})  # noqa: S104
#: The host of a URL whose connection is a Unix socket.
LOCAL = "http://localhost"
_URLS = {
    "NHX_FILES_URL": "files",
    "NHX_SECRETS_URL": "secrets",
    "NHX_JOBS_URL": "jobs",
    "NHX_AUTH_URL": "auth",
    "NHX_MODELS_URL": "models",
    "NHX_BASE_URL": "base",
}


@dataclass(frozen=True, slots=True)
class TaskPaths:
    """Where a task finds its files."""

    home: str  # the directory of the task
    persistent: str
    ephemeral: str
    config_dir: str
    config_file: str
    results: str  # what is left here becomes results of the job


def subprocess_environment(
    plan: Plan, paths: TaskPaths, profile_env: Mapping[str, str], inherited: Mapping[str, str]
) -> dict[str, str]:
    """The complete environment of a host process: nothing else of the service reaches it.

    Later ones win: what is inherited and the defaults, the profile's, the job's, the step's own,
    then real directories (a step that was written for containers names mount paths there), the
    platform's addresses and logging, and at last the GPUs that are the step's.
    """
    env = {"HOME": paths.home, "TMPDIR": paths.home, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    env |= {name: inherited[name] for name in INHERITED if name in inherited}
    env |= profile_env
    env |= job_variables(plan)
    env |= launcher_variables(plan, loopback="localhost")
    env |= secret_variables(plan)
    if plan.principal:
        env["NHX_PRINCIPAL"] = json.dumps(plan.principal, separators=(",", ":"), ensure_ascii=False)
    env |= step_variables(plan.spec)
    env |= path_variables(paths)
    env |= platform_variables(plan.platform, loopback="localhost")
    env |= device_variables(plan)
    return env


def device_variables(plan: Plan) -> dict[str, str]:
    """Which GPUs are the step's; nothing for one that asked for none, which sees what the host shows."""
    if not plan.devices:
        return {}
    ids = ",".join(plan.devices)
    # Numbers are the driver's; by itself CUDA counts the fastest one first.
    return {"CUDA_VISIBLE_DEVICES": ids, "NVIDIA_VISIBLE_DEVICES": ids, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def job_variables(plan: Plan) -> dict[str, str]:
    """Who the task is. The same on every backend but for the task's name."""
    return {
        "NEMO_JOB_ID": plan.job,
        "NEMO_JOB_ATTEMPT_ID": plan.attempt_id,
        "NEMO_JOB_STEP": plan.step,
        "NEMO_JOB_WORKSPACE": plan.workspace,
        "NEMO_JOB_FILESET": plan.fileset,
        MARKER: plan.task,
        "NEMO_JOB_SECRETS": secret_references(plan.spec, plan.workspace),
    }


def launcher_variables(plan: Plan, *, loopback: str | None) -> dict[str, str]:
    """Where a launcher, or a program that exports logs by itself, sends its records.

    On the host the service collects what a task prints: a launcher that a step starts there prints
    its lines and sends them too, so they are in the log twice, as they always were.
    """
    base = plan.platform.urls.get("files")
    if not base:
        return {}
    path = f"/apis/files/v2/workspaces/{plan.workspace}/filesets/{plan.fileset}/otlp/v1/logs"
    if plan.output_location:
        path += "?artifact_base_path=" + quote(f"jobs/{plan.job}", safe="/")
    if base.startswith("unix://"):
        env = {"TRANSPORT": "uds", "SOCKET_PATH": base.removeprefix("unix://"), "ENDPOINT": LOCAL + path}
    else:
        url = base if loopback is None else with_loopback(base, loopback)
        env = {"TRANSPORT": "tcp", "ENDPOINT": url.rstrip("/") + path}
    return {f"NHX_JOB_LAUNCHER_OTLP_LOGS_{name}": value for name, value in env.items()}


def secret_references(spec: Json, workspace: str) -> str:
    """`VAR=workspace/secret,…` for the variables of the step that come from secrets."""
    pairs = []
    for variable in _variables(spec):
        if (source := variable.get("from_secret")) is not None:
            name = source["name"]
            pairs.append(f"{variable['name']}={name if '/' in name else f'{workspace}/{name}'}")
    return ",".join(pairs)


def secret_variables(plan: Plan) -> dict[str, str]:
    wanted = {v["name"] for v in _variables(plan.spec) if v.get("from_secret") is not None}
    return {name: value for name, value in plan.secret_env.items() if name in wanted}


def step_variables(spec: Json) -> dict[str, str]:
    return {v["name"]: v["value"] for v in _variables(spec) if v.get("value") is not None}


def path_variables(paths: TaskPaths) -> dict[str, str]:
    return {
        "NEMO_JOB_EPHEMERAL_TASK_STORAGE_PATH": paths.ephemeral,
        "NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH": paths.persistent,
        "NEMO_JOB_STEP_CONFIG_STORAGE_PATH": paths.config_dir,
        "NEMO_JOB_STEP_CONFIG_FILE_PATH": paths.config_file,
        "NEMO_JOB_RESULTS_PATH": paths.results,
    }


def platform_variables(platform: PlatformInfo, *, loopback: str | None) -> dict[str, str]:
    """Addresses and logging; loopback hosts become `loopback` if it is given."""
    urls = {name: platform.urls[key] for name, key in _URLS.items() if platform.urls.get(key)}
    if loopback is not None:
        urls = {name: with_loopback(url, loopback) for name, url in urls.items()}
    return urls | {
        "LOG_FORMAT": platform.log_format,
        "LOG_LEVEL": platform.log_level,
        "NHX_CONFIG_WARNINGS_DISABLED": "1",
    }


@functools.lru_cache(maxsize=64)
def with_loopback(url: str, address: str) -> str:
    """`url` with its host replaced by `address` when it is this machine's own."""
    parts = urlsplit(url)
    if parts.hostname not in _LOOPBACK:
        return url
    host = f"[{address}]" if ":" in address else address
    port = "" if parts.port is None else f":{parts.port}"
    return urlunsplit(parts._replace(netloc=host + port))


def check_strings(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Refuse what no operating system can pass to a program, saying which word it is."""
    everything = "".join(command) + "".join(env) + "".join(env.values())
    if not _problem(everything) and "" not in env and not any("=" in name for name in env):
        return
    for position, word in enumerate(command):
        if problem := _problem(word):
            raise Rejected(f"word {position} of the command {problem}")
    for name, value in env.items():
        if not name or "=" in name or _problem(name):
            raise Rejected(f"{name!r} can't be the name of an environment variable")
        if problem := _problem(value):
            raise Rejected(f"the value of the variable {name} {problem}")


def _problem(text: str) -> str:
    if "\0" in text:
        return "contains a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains half a surrogate pair, which is no text"
    return ""


def _variables(spec: Json) -> list[Json]:
    return spec.get("environment") or []

"""From a plan to the body of the call that creates its container. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from nemo_jobs.backends import environment
from nemo_jobs.backends.api import Json, Plan, PlatformInfo, Rejected
from nemo_jobs.backends.docker import labels, quantities

PERSISTENT_VARIABLE = "NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH"
EPHEMERAL_VARIABLE = "NEMO_JOB_EPHEMERAL_TASK_STORAGE_PATH"
TOKEN_VARIABLE = "NHX_WORKLOAD_IDENTITY_TOKEN_FILE"  # noqa: S105 - a name
SCRATCH, CONFIG_DIR = "/var/run/scratch/task", "/var/run/scratch/config"
#: In the task's own storage, where one who clears that doesn't see it. A volume more costs a start as
#: much as all else that is added to the engine's own work.
RESULTS_NAME = ".results"
CONFIG_NAME = "job_step_config.json"
TOKEN_DIR = "/var/run/secrets/nemo-helix/workload"  # noqa: S105 - a path
TOKEN_NAME = "token"  # noqa: S105 - a name
LAUNCHER = "/jobs-launcher"
#: What a container on its own network calls the host of the engine.
HOST_NAME = "host.docker.internal"
#: What stands for the value of a secret where a body is shown.
HIDDEN = "***"
#: Labels that the engine writes beside each line of output, for those who collect its files.
_LOG_LABELS = (labels.JOB, labels.TASK)


class Mounted(Protocol):
    """One more volume of a profile."""

    @property
    def volume_name(self) -> str: ...
    @property
    def mount_path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def options(self) -> Json | None: ...
    @property
    def allow_create_volume(self) -> bool: ...


class Storage(Protocol):
    @property
    def volume_name(self) -> str: ...
    @property
    def volume_permissions_image(self) -> str: ...
    @property
    def additional_volume_mounts(self) -> Sequence[Mounted]: ...


class Networking(Protocol):
    @property
    def job_container_network(self) -> str: ...


class DockerSettings(Protocol):
    """What is used of a profile's config."""

    @property
    def storage(self) -> Storage: ...
    @property
    def networking(self) -> Networking: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def default_task_image(self) -> str | None: ...
    @property
    def launcher_tool_path(self) -> str: ...
    @property
    def log_max_bytes(self) -> int: ...
    @property
    def log_max_files(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Site:
    """What a body depends on besides the plan: whose it is, and the engine it is for."""

    owner: str
    creator: str = ""
    fallback_image: str = ""
    loopback: str | None = None  # what is configured, or the service's own name inside Docker
    reaches_host: bool = False  # a container can reach this service under HOST_NAME
    cpus: int = 0  # of the engine's host; 0: not known


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image says about how it runs."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""

    @classmethod
    def of(cls, image: Json) -> "ImageFacts":
        config = image.get("Config") or {}
        entrypoint, command = config.get("Entrypoint") or (), config.get("Cmd") or ()
        return cls(tuple(entrypoint), tuple(command), config.get("User") or "")


def image_of(plan: Plan, site: Site) -> str:
    """The image: of the step, else of the profile, else of the platform."""
    settings: DockerSettings = plan.config
    return (
        plan.spec["executor"]["container"].get("image") or settings.default_task_image or site.fallback_image
    )


def storage_path(plan: Plan) -> str | None:
    """Where the step wants the storage of its job; None when it doesn't ask for it."""
    return _path_variable(plan, PERSISTENT_VARIABLE)


def ephemeral_path(plan: Plan) -> str:
    """Where the task's own storage is in its container."""
    return _path_variable(plan, EPHEMERAL_VARIABLE) or SCRATCH


def results_path(plan: Plan) -> str:
    """Where what the task leaves becomes results of its job."""
    return f"{ephemeral_path(plan).rstrip('/')}/{RESULTS_NAME}"


def container_body(
    plan: Plan, site: Site, *, job_storage: Json | None = None, launched: ImageFacts | None = None
) -> Json:
    """What the engine is asked to create. `job_storage` is the mount of the job's storage if the step
    asks for it; `launched`: the launcher runs the program, and the image says this about it.

    Raises Rejected for what no engine could do.
    """
    container = plan.spec["executor"]["container"]
    words = _words(container, launched)
    env = container_environment(plan, site, with_launcher=launched is not None)
    environment.check_strings([*words.get("Entrypoint", ()), *words.get("Cmd", ())], env)
    return {
        "Image": image_of(plan, site),
        **words,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": _labels(plan, site, with_storage=job_storage is not None),
        "StopSignal": "SIGTERM",
        "HostConfig": _host_config(plan, site, job_storage),
    }


def masked(body: Json, plan: Plan) -> Json:
    """The body without the values of secrets."""
    secret = {*plan.secret_env, *(v["name"] for v in _variables(plan) if v.get("from_secret") is not None)}
    env = [
        f"{name}={HIDDEN}" if name in secret else f"{name}={value}"
        for name, _, value in (pair.partition("=") for pair in body["Env"])
    ]
    return {**body, "Env": env}


def container_environment(plan: Plan, site: Site, *, with_launcher: bool = False) -> dict[str, str]:
    """The variables of a task, later ones win: the profile's, the job's, the step's own, the platform's."""
    settings: DockerSettings = plan.config
    loopback = loopback_of(settings.networking.job_container_network, site)
    env = {"PYTHONUNBUFFERED": "1", **settings.env, **environment.job_variables(plan)}
    env[EPHEMERAL_VARIABLE] = SCRATCH
    env["NEMO_JOB_STEP_CONFIG_STORAGE_PATH"] = CONFIG_DIR
    env["NEMO_JOB_STEP_CONFIG_FILE_PATH"] = f"{CONFIG_DIR}/{CONFIG_NAME}"
    if not with_launcher:  # what the program prints is read from the engine: sent too, it were there twice
        env |= _log_endpoint(plan, loopback)
    if plan.token:
        env[TOKEN_VARIABLE] = f"{TOKEN_DIR}/{TOKEN_NAME}"
    elif plan.principal:
        env["NHX_PRINCIPAL"] = json.dumps(plan.principal, separators=(",", ":"), ensure_ascii=False)
    env |= environment.secret_variables(plan)
    env |= environment.step_variables(plan.spec)
    env["NEMO_JOB_RESULTS_PATH"] = results_path(plan)
    env |= environment.platform_variables(_reachable(plan.platform), loopback=loopback)
    # An image may ask for all devices, and a step too: what counts is what it was given.
    env.pop("NVIDIA_VISIBLE_DEVICES", None)
    if not plan.devices:
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    return env


def loopback_of(network: str, site: Site) -> str | None:
    """What takes the place of this machine's own names in addresses; None: they are right as they are."""
    if site.loopback is not None:
        return site.loopback
    return HOST_NAME if site.reaches_host and _separate(network) else None


def _separate(network: str) -> bool:
    """Whether containers on that network have addresses of their own."""
    return network not in ("host", "none") and not network.startswith("container:")


def _reachable(platform: PlatformInfo) -> PlatformInfo:
    """Without the addresses that lead to a file of this host."""
    urls = {name: url for name, url in platform.urls.items() if not url.startswith("unix://")}
    return replace(platform, urls=urls)


def _log_endpoint(plan: Plan, loopback: str | None) -> dict[str, str]:
    name = "NHX_JOB_LAUNCHER_OTLP_LOGS_ENDPOINT"
    reachable = replace(plan, platform=_reachable(plan.platform))
    found = environment.launcher_variables(reachable, loopback=loopback)
    return {name: found[name]} if name in found else {}


def _words(container: Json, launched: ImageFacts | None) -> Json:
    """Entrypoint and command; what isn't there comes from the image."""
    entrypoint, command = list(container.get("entrypoint") or ()), list(container.get("command") or ())
    if launched is not None:
        if not entrypoint:
            entrypoint, command = list(launched.entrypoint), command or list(launched.command)
        return {"Entrypoint": [LAUNCHER, "run", "--", *entrypoint], "Cmd": command}
    given = {"Entrypoint": entrypoint, "Cmd": command}
    return {name: words for name, words in given.items() if words}


def _labels(plan: Plan, site: Site, *, with_storage: bool) -> dict[str, str]:
    found = labels.container_labels(plan, site.owner, site.creator)
    settings: DockerSettings = plan.config
    found[labels.RESULTS] = results_path(plan)
    if with_storage:
        found[labels.USES_STORAGE] = "true"
    if settings.storage.volume_name:
        found[labels.STORAGE_VOLUME] = settings.storage.volume_name
        found[labels.STORAGE_IMAGE] = settings.storage.volume_permissions_image
    if plan.token:
        found[labels.TOKEN_FILE] = f"{TOKEN_DIR}/{TOKEN_NAME}"
        found[labels.TOKEN_VOLUME] = labels.task_volumes(plan.workspace, plan.job, plan.task).token
    return found


def _host_config(plan: Plan, site: Site, job_storage: Json | None) -> Json:
    settings: DockerSettings = plan.config
    network = settings.networking.job_container_network
    files = {"max-size": str(settings.log_max_bytes), "max-file": str(settings.log_max_files)}
    host: Json = {
        "Init": True,
        "NetworkMode": network,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {**files, "labels": ",".join(_LOG_LABELS)}},
        "Mounts": _mounts(plan, site, job_storage),
        **_limits(plan, site),
    }
    if loopback_of(network, site) == HOST_NAME and site.reaches_host:
        host["ExtraHosts"] = [f"{HOST_NAME}:host-gateway"]
    if plan.devices:
        request = {"Driver": "nvidia", "DeviceIDs": list(plan.devices), "Capabilities": [["gpu"]]}
        host["DeviceRequests"] = [request]
    return host


def _limits(plan: Plan, site: Site) -> Json:
    resources = plan.spec["executor"].get("resources") or {}
    limits = resources.get("limits") or {}
    found: Json = {}
    if (memory := limits.get("memory")) is not None:
        found["Memory"] = found["MemorySwap"] = quantities.bytes_of(memory, "resources.limits.memory")
    if (cpu := limits.get("cpu")) is not None:
        asked = quantities.nano_cpus(cpu, "resources.limits.cpu")
        # More than there are is no limit, and engines refuse it.
        found["NanoCpus"] = min(asked, site.cpus * 10**9) if site.cpus else asked
    shm = quantities.shm_of(resources.get("shm_size"), len(plan.devices))
    if shm is not None:
        found["ShmSize"] = shm
    return found


def _mounts(plan: Plan, site: Site, job_storage: Json | None) -> list[Json]:
    settings: DockerSettings = plan.config
    names = labels.task_volumes(plan.workspace, plan.job, plan.task)
    own = {"Labels": labels.volume_labels(plan, site.owner), "NoCopy": True}
    pairs = [
        (names.storage, ephemeral_path(plan)),
        (names.config, CONFIG_DIR),
    ]
    found = [_volume(name, path, own) for name, path in pairs]
    if plan.token:
        found.append({**_volume(names.token, TOKEN_DIR, own), "ReadOnly": True})
    if job_storage is not None:
        found.append(job_storage)
    return found + [_additional(mount) for mount in settings.storage.additional_volume_mounts]


def _volume(name: str, path: str, options: Json) -> Json:
    return {"Type": "volume", "Source": name, "Target": path, "VolumeOptions": options}


def _additional(mount: Mounted) -> Json:
    if mount.kind == "tmpfs":
        found: Json = {"Type": "tmpfs", "Target": mount.mount_path}
        return {**found, "TmpfsOptions": mount.options} if mount.options else found
    found = {"Type": "volume", "Source": mount.volume_name, "Target": mount.mount_path}
    return {**found, "VolumeOptions": mount.options} if mount.options else found


def _path_variable(plan: Plan, name: str) -> str | None:
    """The path that the step gives with this variable; the last one counts, as in its environment."""
    given = [variable for variable in _variables(plan) if variable["name"] == name]
    if not given:
        return None
    path = given[-1].get("value")
    if path is None:
        raise Rejected(f"{name} must be given as a path, not from a secret")
    if not path.startswith("/") or not path.strip("/") or ".." in path.split("/") or "\0" in path:
        raise Rejected(f"{name} must be an absolute path below / without '..', not {path[:200]!r}")
    return str(path)


def _variables(plan: Plan) -> list[Json]:
    return plan.spec.get("environment") or []

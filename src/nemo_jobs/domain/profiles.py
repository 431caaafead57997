"""Execution profiles: what is configured, what is built in, and how the two are merged."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from nemo_jobs.domain.profile_base import Section, empty_if_none
from nemo_jobs.domain.profile_configs import (
    DockerConfig,
    E2EConfig,
    KubernetesJobConfig,
    OpenShellConfig,
    ProfileConfig,
    SubprocessConfig,
    VolcanoJobConfig,
)

Json = dict[str, Any]
Key = tuple[str, str]

#: Which providers a backend can serve.
PROVIDERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "docker": ("cpu", "gpu"),
        "kubernetes_job": ("cpu", "gpu", "gpu_distributed"),
        "volcano_job": ("gpu_distributed",),
        "subprocess": ("subprocess",),
        "openshell": ("cpu",),
        "e2e": ("cpu", "gpu"),
    }
)
KUBERNETES = frozenset({"kubernetes_job", "volcano_job"})
#: Backends whose profiles older clients can read.
LISTED = frozenset(PROVIDERS) - {"openshell"}
#: Backends that run one step on several nodes.
MULTI_NODE = frozenset({"volcano_job"})

_EmptyIfNone = BeforeValidator(empty_if_none)


class ExecutorProfile(Section):
    """One entry of `jobs.executors`."""

    provider: str = Field(
        default="cpu",
        description="kind of executor that steps name; for backend subprocess it is `subprocess`",
    )
    profile: Annotated[str, Field(min_length=1)] = Field(
        default="default", description="name that steps use; unique with the provider"
    )
    backend: str = Field(description="where its steps run, and so which keys `config` has")
    config: ProfileConfig = Field(
        description="keys below; not required for subprocess and e2e; empty: defaults"
    )

    @model_validator(mode="after")
    def _backend_serves_provider(self) -> "ExecutorProfile":
        if self.provider not in PROVIDERS[self.backend]:
            raise PydanticCustomError(
                "provider_backend",
                "backend '{backend}' serves {allowed}, not '{provider}' (profile '{profile}')",
                {
                    "backend": self.backend,
                    "provider": self.provider,
                    "profile": self.profile,
                    "allowed": ", ".join(PROVIDERS[self.backend]),
                    "places": [["provider"]],
                },
            )
        return self


class DockerProfile(ExecutorProfile):
    backend: Literal["docker"]
    config: Annotated[DockerConfig, _EmptyIfNone]


class KubernetesJobProfile(ExecutorProfile):
    backend: Literal["kubernetes_job"]
    config: Annotated[KubernetesJobConfig, _EmptyIfNone]


class VolcanoJobProfile(ExecutorProfile):
    backend: Literal["volcano_job"]
    config: Annotated[VolcanoJobConfig, _EmptyIfNone]


class OpenShellProfile(ExecutorProfile):
    backend: Literal["openshell"]
    config: Annotated[OpenShellConfig, _EmptyIfNone]


class SubprocessProfile(ExecutorProfile):
    provider: str = Field(default="subprocess", description="kind of executor that steps name")
    backend: Literal["subprocess"]
    config: SubprocessConfig = Field(default_factory=SubprocessConfig)


class E2EProfile(ExecutorProfile):
    backend: Literal["e2e"]
    config: E2EConfig = Field(default_factory=E2EConfig)


AnyProfile = Annotated[
    DockerProfile
    | KubernetesJobProfile
    | VolcanoJobProfile
    | OpenShellProfile
    | SubprocessProfile
    | E2EProfile,
    Field(discriminator="backend"),
]


class ExecutorDefaults(Section):
    """`jobs.executor_defaults`: configs of the built-in profiles."""

    docker: DockerConfig = Field(default_factory=DockerConfig)
    kubernetes_job: KubernetesJobConfig = Field(default_factory=KubernetesJobConfig)
    volcano_job: VolcanoJobConfig = Field(default_factory=VolcanoJobConfig)
    subprocess: SubprocessConfig = Field(default_factory=SubprocessConfig)


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile that steps can name. `unavailable` says why a step on it is refused."""

    provider: str
    profile: str
    backend: str
    config: ProfileConfig
    unavailable: str | None = None

    @property
    def key(self) -> Key:
        return (self.provider, self.profile)

    @property
    def multi_node(self) -> bool:
        return self.backend in MULTI_NODE

    @property
    def persistent_storage(self) -> bool:
        """Whether steps of a job can share files on it."""
        if isinstance(self.config, DockerConfig):
            return bool(self.config.storage.volume_name)
        if isinstance(self.config, KubernetesJobConfig):
            return bool(self.config.storage.pvc_name)
        return not isinstance(self.config, OpenShellConfig)

    def to_wire(self) -> Json:
        """The item of the list of execution profiles."""
        config = self.config.model_dump(mode="json")
        return {"provider": self.provider, "profile": self.profile, "backend": self.backend, "config": config}


@dataclass(slots=True)
class ProfileSet:
    """All profiles in force. `left_out` says of each other configured or built-in one why it is not;
    those that are `expected` come when their engine does, by `become`."""

    profiles: Mapping[Key, Profile]
    left_out: Mapping[Key, str] = field(default_factory=lambda: MappingProxyType({}))
    expected: frozenset[Key] = frozenset()
    #: Profiles that the configuration file names with provider subprocess.
    explicit_subprocess: frozenset[str] = frozenset()
    #: Docker is asked to keep its GPUs from jobs.
    no_gpus: bool = False

    def __iter__(self) -> Iterator[Profile]:
        return iter(self.profiles.values())

    def __len__(self) -> int:
        return len(self.profiles)

    def become(self, other: "ProfileSet") -> None:
        """Hold what `other` holds from now on, for everybody who looks here."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    def get(self, provider: str, profile: str) -> Profile | None:
        return self.profiles.get((provider, profile))

    def default_for(self, backend: str, provider: str, profile: str) -> Profile:
        """The pair with the default config of `backend`: for work that was started on a profile
        that is not configured any more, and still has to be looked after."""
        return Profile(provider, profile, backend, getattr(ExecutorDefaults(), backend))

    def listed(self) -> list[Profile]:
        """What the list of execution profiles shows: forms that every client can read."""
        return [profile for profile in self if profile.backend in LISTED]

    def known(self) -> str:
        """All pairs, for messages."""
        return ", ".join(f"{provider}/{profile}" for provider, profile in sorted(self.profiles)) or "none"


class PlatformChoice(Protocol):
    """What of the platform section decides about profiles."""

    @property
    def runtime(self) -> str: ...
    @property
    def reserved_gpu_device_ids(self) -> str: ...


class JobsChoice(Protocol):
    """What of the jobs section decides about profiles."""

    @property
    def executors(self) -> Sequence[ExecutorProfile]: ...
    @property
    def executor_defaults(self) -> ExecutorDefaults: ...
    @property
    def enable_subprocess_executor(self) -> bool | None: ...


class HostChoice(Protocol):
    """What of the machine decides about profiles."""

    @property
    def job_container_network(self) -> str | None: ...
    @property
    def docker_stop_timeout(self) -> int: ...


class Choice(Protocol):
    """The settings, as far as profiles depend on them."""

    @property
    def platform(self) -> PlatformChoice: ...
    @property
    def jobs(self) -> JobsChoice: ...
    @property
    def host(self) -> HostChoice: ...


def resolve_profiles(
    settings: Choice,
    *,
    docker: bool,
    available: Collection[str] = frozenset({"subprocess"}),
    no_docker: str = "no Docker engine answers",
) -> ProfileSet:
    """The profiles in force: the built-in ones, with the configured ones merged over them.

    `docker` says whether a Docker engine answers, `no_docker` why not, `available` which backends
    this program has.
    """
    platform, jobs = settings.platform, settings.jobs
    runtime = "none" if platform.runtime == "docker" and not docker else platform.runtime
    merged = {profile.key: profile for profile in _built_in(runtime, jobs, docker)}
    expected = _expected(platform.runtime, jobs) if not docker else frozenset()
    left_out: dict[Key, str] = dict.fromkeys(expected, no_docker)
    for entry in jobs.executors:
        own = Profile(entry.provider, entry.profile, entry.backend, entry.config)
        reason = _skipped(entry.backend, runtime, docker)
        if reason:
            left_out.setdefault(own.key, reason)
        else:
            merged[own.key] = _merge(merged.get(own.key), own)
    profiles = _in_force(merged, settings.host, available, left_out)
    return ProfileSet(
        profiles=MappingProxyType(profiles),
        left_out=MappingProxyType({key: why for key, why in left_out.items() if key not in profiles}),
        expected=frozenset(expected - profiles.keys()) if "docker" in available else frozenset(),
        explicit_subprocess=frozenset(
            entry.profile for entry in jobs.executors if entry.provider == "subprocess"
        ),
        no_gpus=docker
        and platform.runtime != "kubernetes"
        and platform.reserved_gpu_device_ids in ("", "none"),
    )


def _in_force(
    merged: Mapping[Key, Profile], host: HostChoice, available: Collection[str], left_out: dict[Key, str]
) -> dict[Key, Profile]:
    """Those of the profiles that this program can run or has to name; `left_out` gets the others."""
    profiles: dict[Key, Profile] = {}
    for key, profile in merged.items():
        if profile.backend in available:
            profiles[key] = _with_defaults_of_host(profile, host)
        elif profile.backend in KUBERNETES:
            text = f"backend {profile.backend} is not part of this version"
            profiles[key] = replace(profile, unavailable=text)
        else:
            left_out[key] = f"backend {profile.backend} is not part of this version"
    return profiles


def _built_in(runtime: str, jobs: JobsChoice, docker: bool) -> Iterator[Profile]:
    defaults = jobs.executor_defaults
    if runtime == "docker" and docker:
        for provider in ("cpu", "gpu"):
            yield Profile(provider, "default", "docker", defaults.docker)
    if runtime == "kubernetes":
        for provider, name in (("cpu", "default"), ("gpu", "default"), ("cpu", "gpu"), ("gpu", "gpu")):
            yield Profile(provider, name, "kubernetes_job", defaults.kubernetes_job)
        yield Profile("gpu_distributed", "default", "volcano_job", defaults.volcano_job)
    wanted = jobs.enable_subprocess_executor
    if wanted or (wanted is None and runtime != "kubernetes"):
        yield Profile("subprocess", "default", "subprocess", defaults.subprocess)


def _expected(runtime: str, jobs: JobsChoice) -> frozenset[Key]:
    """The profiles that a Docker engine brings along."""
    built_in = [("cpu", "default"), ("gpu", "default")] if runtime == "docker" else []
    own = {(entry.provider, entry.profile): entry.backend for entry in jobs.executors}
    found = [key for key in built_in if own.get(key, "docker") == "docker"]
    return frozenset([*found, *(key for key, backend in own.items() if backend == "docker")])


def _skipped(backend: str, runtime: str, docker: bool) -> str:
    if backend in KUBERNETES and runtime == "none":
        return "runtime is none, so there is no Kubernetes"
    return "no Docker engine answers" if backend == "docker" and not docker else ""


def _merge(default: Profile | None, own: Profile) -> Profile:
    """The own profile, over the config of the default of the same kind."""
    if default is None or default.backend != own.backend or type(default.config) is not type(own.config):
        return own
    written = {key: getattr(own.config, key) for key in own.config.model_fields_set}
    return replace(own, config=default.config.model_copy(update=written))


def _with_defaults_of_host(profile: Profile, host: HostChoice) -> Profile:
    """The host's default network and stop timeout, where the profile names none."""
    config = profile.config
    if not isinstance(config, DockerConfig):
        return profile
    changes: Json = {}
    if config.stop_timeout_seconds is None:
        changes["stop_timeout_seconds"] = host.docker_stop_timeout
    network = host.job_container_network
    if network is not None and "job_container_network" not in config.networking.model_fields_set:
        changes["networking"] = config.networking.model_copy(update={"job_container_network": network})
    return replace(profile, config=config.model_copy(update=changes))


__all__ = [
    "PROVIDERS",
    "AnyProfile",
    "DockerConfig",
    "E2EConfig",
    "ExecutorDefaults",
    "ExecutorProfile",
    "KubernetesJobConfig",
    "OpenShellConfig",
    "Profile",
    "ProfileConfig",
    "ProfileSet",
    "SubprocessConfig",
    "VolcanoJobConfig",
    "resolve_profiles",
]

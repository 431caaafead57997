"""The settings of an execution profile, one model per backend."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from nemo_jobs.domain.profile_base import CommonConfig, Json, Limit, Seconds, Section, Whole
from nemo_jobs.domain.spec import ResourceAmounts, Resources


def _volume_name(name: str) -> str:
    """Engines take a path in its place for a folder of the host."""
    if not _VOLUME.fullmatch(name):
        raise PydanticCustomError(
            "volume_name",
            "volume_name must be the name of a volume, of letters, digits, '_', '.' and '-', not {name}",
            {"name": ascii(name[:80])},
        )
    return name


def _kubernetes_texts(value: Any) -> Any:
    """Refuse numbers and truth values where Kubernetes takes text alone.

    All leaves of tolerations and affinities are text but for two counts.
    """
    wrong = list(_not_texts(value, []))
    if wrong:
        raise PydanticCustomError("string_type", "must be text", {"places": wrong})
    return value


def _not_texts(value: Any, below: list[str | int]) -> Iterator[list[str | int]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("tolerationSeconds", "weight"):
                yield from _not_texts(item, [*below, key])
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_texts(False if item is None else item, [*below, index])
    elif value is not None and not isinstance(value, str):
        yield below


_VOLUME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]*")
#: A volume of the engine; empty for none.
VolumeName = Annotated[str, AfterValidator(lambda name: _volume_name(name) if name else name)]
KubernetesTexts = Annotated[Json, AfterValidator(_kubernetes_texts)]


class ProfileAmounts(ResourceAmounts):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProfileResources(Resources):
    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: ProfileAmounts = Field(default_factory=ProfileAmounts)
    limits: ProfileAmounts = Field(default_factory=ProfileAmounts)


class SubprocessConfig(CommonConfig):
    cleanup_completed_jobs_immediately: bool = Field(
        default=False, description="remove directories of successful steps at once"
    )
    graceful_shutdown_timeout_seconds: Seconds = Field(
        default=10, description="seconds between SIGTERM and SIGKILL"
    )
    working_directory: Annotated[str, Field(min_length=1)] = Field(
        default="/tmp/nhx-subprocess-jobs",  # noqa: S108 the backend refuses a folder that is not its own
        description="where tasks run; ours with mode 0700, or the profile is refused",
    )
    on_shutdown: Literal["keep", "stop"] = Field(
        default="keep", description="whether processes outlive the service and are adopted by the next one"
    )
    max_concurrent: Annotated[Whole, Field(ge=1, le=100_000)] | None = Field(
        default=None,
        description="steps that run at once, the others wait in order of age; null: 8 per core, at least 32",
    )
    results_max_bytes: Annotated[Whole, Field(ge=0)] = Field(
        default=100 << 30,
        description="bytes a step may leave in `NEMO_JOB_RESULTS_PATH`; what is beyond is left out, and told",
    )

    def places(self, cores: int) -> int:
        """How many steps may run at once on a host with `cores` cores."""
        return max(32, 8 * cores) if self.max_concurrent is None else self.max_concurrent


#: Containers of one profile at once, where it names no limit.
DOCKER_PLACES = 64


class DockerVolumeMount(Section):
    volume_name: str = Field(description="name of the volume")
    mount_path: str = Field(description="where it appears in the task")
    kind: Literal["volume", "tmpfs"] = Field(default="volume", description="kind of mount")
    options: Json | None = Field(default=None, description="volume options, as the engine takes them")
    allow_create_volume: bool = Field(default=False, description="make the volume if it does not exist")

    @model_validator(mode="after")
    def _no_folder_of_the_host(self) -> "DockerVolumeMount":
        if self.kind == "volume":
            _volume_name(self.volume_name)
        return self


class DockerStorage(Section):
    volume_name: VolumeName = Field(
        default="nemo-jobs-storage", description='volume for persistent job storage; `""`: none'
    )
    volume_permissions_image: str = Field(
        default="docker.io/library/busybox:stable", description="image of utility containers"
    )
    additional_volume_mounts: list[DockerVolumeMount] = Field(
        default_factory=list, description="more volumes for each task"
    )


class DockerNetworking(Section):
    job_container_network: str = Field(
        default="host",
        description="network of the task; the default follows `NEMO_JOBS_DEFAULT_DOCKER_NETWORK`",
    )


class DockerConfig(CommonConfig):
    storage: DockerStorage = Field(default_factory=DockerStorage)
    networking: DockerNetworking = Field(default_factory=DockerNetworking)
    stop_timeout_seconds: Annotated[Whole, Field(ge=0, le=86_400)] | None = Field(
        default=None,
        description="seconds between SIGTERM and SIGKILL; null: `NEMO_JOBS_DEFAULT_DOCKER_STOP_TIMEOUT`",
    )
    max_concurrent: Annotated[Whole, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="steps that run at once, the others wait in order of age; null: 64"
    )
    results_max_bytes: Annotated[Whole, Field(ge=0)] = Field(
        default=100 << 30,
        description="bytes a step may leave in `NEMO_JOB_RESULTS_PATH`; what is beyond is left out, and told",
    )
    log_max_bytes: Annotated[Whole, Field(ge=1 << 16, le=2**50)] = Field(
        default=256 << 20, description="bytes of one log file of the engine; a new one begins then"
    )
    log_max_files: Annotated[Whole, Field(ge=2, le=1000)] = Field(
        default=4,
        description="log files kept of a container; what is not read until they are full is lost",
    )

    def places(self, cores: int) -> int:
        """How many steps may run at once; the engine's host may be another than this one."""
        return DOCKER_PLACES if self.max_concurrent is None else self.max_concurrent


class ImagePullSecret(Section):
    name: str = Field(description="name of the secret")


class ObjectMetadata(Section):
    labels: dict[str, str] = Field(
        default_factory=dict, description="labels; they win over the service's own"
    )
    annotations: dict[str, str] = Field(default_factory=dict, description="annotations")


class PersistentVolumeClaim(Section):
    claim_name: str = Field(description="name of the claim")
    read_only: bool = Field(default=False, description="mount it read-only")


class EmptyDirVolume(Section):
    medium: str | None = Field(default=None, description="`Memory`, or null for the node's disk")
    size_limit: str | None = Field(default=None, description="upper limit, such as 2Gi")


class KeyToPath(Section):
    key: str = Field(description="key inside the secret or config map")
    path: str = Field(description="file it becomes")
    mode: Whole | None = Field(default=None, description="file mode as a decimal number")


class SecretVolume(Section):
    secret_name: str = Field(description="name of the secret")
    default_mode: Whole | None = Field(default=None, description="file mode as a decimal number")
    optional: bool | None = Field(default=None, description="start without it too")
    items: list[KeyToPath] = Field(default_factory=list, description="only these keys")


class ConfigMapVolume(Section):
    name: str = Field(description="name of the config map")
    default_mode: Whole | None = Field(default=None, description="file mode as a decimal number")
    optional: bool | None = Field(default=None, description="start without it too")
    items: list[KeyToPath] = Field(default_factory=list, description="only these keys")


class KubernetesVolume(Section):
    name: str = Field(description="name that mounts refer to")
    persistent_volume_claim: PersistentVolumeClaim | None = None
    empty_dir: EmptyDirVolume | None = None
    secret: SecretVolume | None = None
    config_map: ConfigMapVolume | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_dir_takes_nothing(cls, data: Any) -> Any:
        if isinstance(data, dict) and "empty_dir" in data and data["empty_dir"] is None:
            return {**data, "empty_dir": {}}
        return data

    @model_validator(mode="after")
    def _one_source(self) -> "KubernetesVolume":
        sources = ("persistent_volume_claim", "empty_dir", "secret", "config_map")
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"needs exactly one of {', '.join(sources)}; given: {', '.join(given) or 'none'}"
            )
        return self


class KubernetesVolumeMount(Section):
    name: str = Field(description="name of the volume")
    mount_path: str = Field(description="where it appears in the task")
    sub_path: str | None = Field(default=None, description="folder inside the volume")
    read_only: bool = Field(default=False, description="mount it read-only")


class KubernetesStorage(Section):
    pvc_name: str = Field(default="", description='existing claim for persistent job storage; `""`: none')
    volume_permissions_image: str = Field(
        default="docker.io/library/busybox:stable", description="image that prepares and wipes it"
    )
    additional_volumes: list[KubernetesVolume] = Field(default_factory=list, description="more volumes")
    additional_volume_mounts: list[KubernetesVolumeMount] = Field(
        default_factory=list, description="where they appear in each task"
    )


class WorkloadIdentity(Section):
    token_expiration_seconds: Annotated[Whole, Field(ge=600)] = Field(
        default=600, description="life of the projected token"
    )
    token_audience: str | None = Field(default=None, description="its audience; null: the platform's")


class KubernetesJobConfig(CommonConfig):
    ttl_seconds_image_pull: Seconds = Field(
        default=600, description="end a step whose image pull has failed for that long; 0: never"
    )
    namespace: str | None = Field(default=None, description="namespace; null: `POD_NAMESPACE`")
    service_account_name: str = Field(default="default", description="service account of the pods")
    tolerations: list[KubernetesTexts] = Field(default_factory=list, description="pod tolerations")
    node_selector: dict[str, str] = Field(default_factory=dict, description="labels a node must have")
    affinity: KubernetesTexts = Field(default_factory=dict, description="pod affinity")
    resources: ProfileResources = Field(default_factory=ProfileResources)
    pod_security_context: Json = Field(default_factory=dict, description="pod security context")
    image_pull_secrets: list[ImagePullSecret] = Field(
        default_factory=list, description="behind those of the platform, without repeats"
    )
    job_metadata: ObjectMetadata = Field(default_factory=ObjectMetadata)
    pod_metadata: ObjectMetadata = Field(default_factory=ObjectMetadata)
    storage: KubernetesStorage = Field(default_factory=KubernetesStorage)
    num_gpus: Annotated[Whole, Field(ge=0)] = Field(
        default=1, description="GPUs of steps that give no number"
    )
    scheduler_name: str = Field(default="", description='pod scheduler; `""`: the cluster\'s own')
    launcher_image: str = Field(
        default="nvcr.io/nvidia/nemo-microservices/jobs-launcher:latest",
        description="image of the launcher; it is added only where a profile sets this key",
    )
    workload_identity: WorkloadIdentity = Field(default_factory=WorkloadIdentity)


class VolcanoJobConfig(KubernetesJobConfig):
    scheduler_name: str = Field(default="volcano", description="pod scheduler")
    queue: str = Field(default="default", description="queue of the jobs")
    max_retry: Annotated[Whole, Field(ge=0)] = Field(default=0, description="restarts by Volcano")
    plugins: dict[str, list[str]] = Field(default_factory=dict, description="plugin to list of arguments")
    enable_multi_node_networking: bool = Field(
        default=True, description="let the nodes' pods reach each other"
    )


class OpenShellTls(Section):
    ca_cert_path: str | None = Field(default=None, description="certificate authority")
    client_cert_path: str | None = Field(default=None, description="client certificate")
    client_key_path: str | None = Field(default=None, description="its key")

    @model_validator(mode="after")
    def _pair(self) -> "OpenShellTls":
        if (self.client_cert_path is None) != (self.client_key_path is None):
            raise ValueError("client_cert_path and client_key_path are needed together")
        return self


class OpenShellEgress(Section):
    host: str = Field(default="host.docker.internal", description="host of the platform")
    port: Annotated[Whole, Field(ge=1, le=65535)] = Field(default=8080, description="its port")
    protocol: Literal["rest", "websocket", "graphql", "sql", ""] = Field(
        default="rest", description="protocol"
    )
    tls: Literal["", "skip"] = Field(default="", description="`skip`: no TLS inspection")
    access: Literal["full", "read-only", "read-write"] = Field(default="full", description="what is allowed")
    binaries: list[str] = Field(default_factory=list, description="programs that may use it; none: all")


class OpenShellConfig(CommonConfig):
    gateway_endpoint: str = Field(
        default="http://127.0.0.1:17670", description="gRPC endpoint; http: plaintext"
    )
    workspace: str = Field(default="default", description="workspace at the gateway")
    insecure: bool | None = Field(default=None, description="skip certificate checks")
    tls: OpenShellTls | None = Field(default=None)
    request_timeout_seconds: Limit = Field(default=120, description="limit of one call")
    policy_path: str | None = Field(default=None, description="policy file")
    egress_proxy: str | None = Field(default=None, description="proxy for outgoing connections")
    image: str | None = Field(default=None, description="sandbox image; null: `nhx-tasks`")
    default_entrypoint: list[str] | None = Field(
        default=None, description="entrypoint of steps without one; null: `/app/.venv/bin/nemo-helix`"
    )
    platform_egress: OpenShellEgress = Field(default_factory=OpenShellEgress)


class E2EConfig(CommonConfig):
    """Nothing is executed; for tests of clients."""


ProfileConfig = (
    SubprocessConfig | DockerConfig | KubernetesJobConfig | VolcanoJobConfig | OpenShellConfig | E2EConfig
)

"""The settings as typed data: every key of the configuration file, with defaults and meaning."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_core import PydanticCustomError

from nemo_jobs.config_auth import Auth
from nemo_jobs.config_docker import PlatformDocker
from nemo_jobs.domain.profile_base import Limit, Seconds, Section, Whole, empty_if_none
from nemo_jobs.domain.profile_configs import ImagePullSecret
from nemo_jobs.domain.profiles import AnyProfile, ExecutorDefaults

DEFAULT_BASE_URL = "http://localhost:8080"
#: Services of the family whose address a variable `NHX_<SERVICE>_URL` may give to tasks.
ADDRESSED_SERVICES = ("platform", "base", "auth", "files", "jobs", "models", "secrets", "entities")

_URL = re.compile(r"(https?|unix|http\+unix)://\S+")
_DATABASE_URL = re.compile(r"postgresql://\S+|sqlite:////\S+")
_STORAGE_URL = re.compile(r"(file:///|s3://|gs://|az://|abfss?://|memory://)[^\s@?#]*|abfss?://[^\s:?#]+")


def _url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise PydanticCustomError("url", "must be a URL that begins with http://, https:// or unix://")
    return text.rstrip("/")


def _database_url(text: str) -> str:
    if not _DATABASE_URL.fullmatch(text):
        hint = "must be postgresql://user@host:port/name, or left out for SQLite in the data directory"
        raise PydanticCustomError("url", hint)
    return text


def _storage_url(text: str) -> str:
    if not _STORAGE_URL.fullmatch(text):
        hint = (
            "must be s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory, "
            "without a password, or left out for the data directory"
        )
        raise PydanticCustomError("url", hint)
    return text.rstrip("/") if text.count("/") > 3 else text


def _level(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


Url = Annotated[str, AfterValidator(_url)]


class Platform(Section):
    """Section `platform`: where work runs and how tasks reach the service."""

    runtime: Literal["docker", "kubernetes", "none"] = Field(
        default="docker", description="where jobs run; `docker` without an answering engine becomes `none`"
    )
    base_url: Url = Field(
        default=DEFAULT_BASE_URL, description="address for tasks; not written: the one that is listened on"
    )
    advertised_base_url: Url | None = Field(default=None, description="address for clients, if it differs")
    service_discovery: dict[str, Url] = Field(
        default_factory=dict,
        description="service to address for tasks; `platform` or `base` replace `base_url`",
    )
    loopback_address: str | None = Field(
        default=None, description="host that stands for loopback addresses in tasks"
    )
    docker: PlatformDocker = Field(default_factory=PlatformDocker)
    image_registry: str = Field(default="my-registry", description="registry of the fallback task image")
    image_tag: str = Field(default="local", description="tag of the fallback task image")
    image_pull_secrets: list[ImagePullSecret] = Field(default_factory=list, description="added to each pod")
    sandbox_cluster_capable: bool = Field(default=False, description="give pods the sandbox variables")
    sandbox_server_domain: str | None = Field(default=None, description="sandbox server")
    sandbox_server_protocol: str | None = Field(default=None, description="its protocol")
    sandbox_api_key_secret: str | None = Field(default=None, description="secret with its key")
    sandbox_api_key_secret_key: str = Field(default="api-key", description="entry of that secret")
    ngc_api_key_secret: str = Field(default="system/ngc-api-key", description="not used by jobs")
    ngc_api_key_env_var: str = Field(default="NGC_API_KEY", description="not used by jobs")
    seed_on_startup: Any = Field(default=None, description="not used by jobs")
    redirect_root_to_studio: bool = Field(default=True, description="not used by jobs")

    @property
    def reserved_gpu_device_ids(self) -> str:
        return self.docker.reserved_gpu_device_ids

    @property
    def given_base_url(self) -> str | None:
        """The address for tasks, if somebody configured one."""
        return self.base_url if "base_url" in self.model_fields_set else None


class JobStorage(Section):
    """Section `jobs.storage`: how long the storage that a job's steps share outlives its work."""

    paused_storage_ttl_seconds: Seconds = Field(
        default=604_800,
        description="after a pause, if the job sets no time of its own; then the job is cancelled",
    )
    maximum_pause_ttl_seconds: Seconds = Field(
        default=2_592_000, description="the longest time after a pause, whoever set it"
    )
    failed_storage_ttl_seconds: Seconds = Field(
        default=14_400,
        description="after a failure; the profile's `ttl_seconds_after_finished` counts where it is longer",
    )


class Jobs(Section):
    """Section `jobs`."""

    executors: list[AnyProfile] = Field(default_factory=list, description="own profiles")
    executor_defaults: ExecutorDefaults = Field(
        default_factory=ExecutorDefaults,
        description="`config` of built-in profiles, below docker, kubernetes_job, volcano_job, subprocess",
    )
    reconcile_interval_seconds: Limit = Field(
        default=2, description="upper bound between two looks at a running step"
    )
    schedule_interval_seconds: Limit = Field(
        default=5, description="upper bound between two looks at a waiting step"
    )
    enable_subprocess_executor: bool | None = Field(
        default=None,
        description="whether `subprocess/default` is built in; null: unless the runtime is `kubernetes`",
    )
    include_job_logs_in_diagnostics: bool = Field(
        default=False, description="add up to 20 log lines to debug diagnostics of failing steps"
    )
    storage: Annotated[JobStorage, BeforeValidator(empty_if_none)] = Field(default_factory=JobStorage)
    retention_days: Annotated[Whole, Field(ge=1, le=36_500)] | None = Field(
        default=None, description="delete jobs with their logs this long after their end; null: never"
    )
    log_limit_bytes: Annotated[Whole, Field(ge=1, le=2**50)] = Field(
        default=2**30,
        description="log kept of one attempt of a job; what comes after is dropped, with a marker line",
    )


class Service(Section):
    """Section `service`: the listener and its own log."""

    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_level)
    ] = Field(default="INFO", description="handed to tasks as `LOG_LEVEL`")
    log_format: Literal["plain", "json"] = Field(
        default="plain", description="handed to tasks as `LOG_FORMAT`"
    )
    scheme: Literal["http", "https"] = Field(default="http", description="scheme of the service's address")
    host: Annotated[str, Field(min_length=1)] = Field(default="127.0.0.1", description="address to listen on")
    port: Annotated[Whole, Field(ge=0, le=65535)] = Field(default=8080, description="port; 0: a free one")
    cors_origins: list[str] = Field(
        default_factory=list, description="origins besides loopback whose pages may call the service"
    )
    allowed_hosts: list[str] = Field(
        default_factory=list, description="names besides loopback that the `Host` header may carry"
    )


class Database(Section):
    """Section `database`."""

    url: Annotated[str, AfterValidator(_database_url)] | None = Field(
        default=None, description="`postgresql://user@host:port/name`; null: SQLite in the data directory"
    )


class FilesStorage(Section):
    url: Annotated[str, AfterValidator(_storage_url)] | None = Field(
        default=None,
        description="where the bytes of files are: `s3://bucket/prefix` (any S3-compatible store), `gs://`, "
        "`az://`, `file:///directory`; null: in the data directory",
    )
    options: dict[str, str] = Field(
        default_factory=dict,
        description="options of the bucket, such as `region` or `endpoint`; give secrets in the store's own "
        "variables (`AWS_ACCESS_KEY_ID` …)",
    )


class Files(Section):
    """Section `files`: filesets and results."""

    storage: FilesStorage = Field(default_factory=FilesStorage)
    max_upload_bytes: Annotated[Whole, Field(ge=1, le=2**50)] = Field(
        default=2**44, description="the largest file that is taken, in bytes"
    )


class Host(BaseModel):
    """What this machine's environment says, outside any section."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image_registry: str | None = Field(default=None, description="registry to log in to at start (Docker)")
    image_registry_user: str | None = Field(default=None, description="user of that login")
    image_registry_password: SecretStr | None = Field(default=None, description="password of that login")
    job_container_network: str | None = Field(
        default=None, description="network of tasks whose profile names none (Docker); unset: `host`"
    )
    docker_stop_timeout: Annotated[int, Field(ge=0, le=86_400)] = Field(
        default=30, description="seconds between SIGTERM and SIGKILL (Docker)"
    )
    docker_owner_id: str | None = Field(default=None, description="owner label of containers (Docker)")
    pod_namespace: str | None = Field(
        default=None, description="namespace of profiles that name none (Kubernetes)"
    )


class Settings(Section):
    """Everything that is configured."""

    platform: Annotated[Platform, BeforeValidator(empty_if_none)] = Field(default_factory=Platform)
    jobs: Annotated[Jobs, BeforeValidator(empty_if_none)] = Field(default_factory=Jobs)
    service: Annotated[Service, BeforeValidator(empty_if_none)] = Field(default_factory=Service)
    database: Annotated[Database, BeforeValidator(empty_if_none)] = Field(default_factory=Database)
    files: Annotated[Files, BeforeValidator(empty_if_none)] = Field(default_factory=Files)
    auth: Annotated[Auth, BeforeValidator(empty_if_none)] = Field(default_factory=Auth)
    host: Host = Field(default_factory=Host)

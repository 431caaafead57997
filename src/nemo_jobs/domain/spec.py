"""What a user asks for: the body of a create request, down to one step's executor.

Unknown keys are ignored, as on every request body. `JobSpec.model_dump(mode="json")` is the
`platform_spec` that is stored and shown, with every default.
"""

import math
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nemo_jobs.domain.labels import check_labels
from nemo_jobs.domain.names import (
    FILESET_PREFIX,
    JOB_NAME_LIMIT,
    NAME_LIMIT,
    NAME_PATTERN,
    NAME_RULE,
    is_name,
)

Json = dict[str, Any]
Item = TypeVar("Item")
#: A list of which only the first wrong item is told: a body of megabytes can hold millions.
Many = Annotated[list[Item], Field(fail_fast=True)]

PERSISTENT_STORAGE_VARIABLE = "NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH"

_SHM_SIZE = re.compile(r"[+-]?([0-9]+|[0-9]*[.][0-9]+)([eE][+-]?[0-9]+)?(Gi?|Mi?)")


def _check_name(text: str) -> str:
    if not is_name(text):
        raise PydanticCustomError(
            "string_pattern_mismatch",
            "not a valid name; a name has {rule}",
            {"pattern": NAME_PATTERN, "rule": NAME_RULE},
        )
    return text


def _check_text(text: str) -> str:
    """No character that neither a process nor a database can hold."""
    if "\0" in text:
        raise PydanticCustomError("string_nul", "must not contain a NUL character")
    return text


def _check_json(value: Any) -> Any:
    """Refuse what is not JSON for every reader: NUL in text, numbers that are not finite."""
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("finite_number", "numbers must be finite")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key)
            _check_json(item)
    elif isinstance(value, list):
        for item in value:
            _check_json(item)
    return value


def _check_shm_size(text: str) -> str:
    trimmed = text.strip()
    if not _SHM_SIZE.fullmatch(trimmed):
        raise PydanticCustomError("shm_size", "must be a number followed by Mi, Gi, M or G, such as 8Gi")
    return trimmed


Text = Annotated[str, AfterValidator(_check_text)]
Name = Annotated[
    str, AfterValidator(_check_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})
]
JobName = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "maxLength": NAME_LIMIT, "pattern": NAME_PATTERN}),
]
JsonObject = Annotated[Json, AfterValidator(_check_json)]
ShmSize = Annotated[str, AfterValidator(_check_shm_size)]


class Wire(BaseModel):
    """Base of request parts: frozen, unknown keys ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ResourceAmounts(Wire):
    cpu: Text | None = Field(default=None, description="processors, such as 2 or 500m")
    memory: Text | None = Field(default=None, description="memory, such as 4Gi")


class Resources(Wire):
    requests: ResourceAmounts = Field(default_factory=ResourceAmounts)
    limits: ResourceAmounts = Field(default_factory=ResourceAmounts)
    num_nodes: Annotated[int, Field(ge=1)] = Field(default=1, description="nodes that run the step together")
    num_gpus: int | None = Field(default=None, description="GPUs of each node")
    shm_size: ShmSize | None = Field(default=None, description="shared memory, such as 8Gi")


class Container(Wire):
    image: Annotated[Text, Field(min_length=1)] | None = None
    entrypoint: Many[Text] = Field(default_factory=list)
    command: Many[Text] = Field(default_factory=list)


class CpuExecutor(Wire):
    provider: Literal["cpu"] = "cpu"
    profile: Text = "default"
    container: Container
    resources: Resources = Field(default_factory=Resources)


class GpuExecutor(Wire):
    provider: Literal["gpu"] = "gpu"
    profile: Text = "default"
    container: Container
    resources: Resources = Field(default_factory=Resources)


class DistributedGpuExecutor(Wire):
    provider: Literal["gpu_distributed"] = "gpu_distributed"
    profile: Text = "default"
    container: Container
    resources: Resources = Field(default_factory=Resources)


class ProcessResources(Wire):
    """What a host process asks for beyond what every process has."""

    num_gpus: Annotated[int, Field(ge=0, le=1024)] | None = Field(
        default=None, description="GPUs of the host, which no other work gets meanwhile"
    )


class SubprocessExecutor(Wire):
    provider: Literal["subprocess"] = "subprocess"
    profile: Text = "default"
    command: Many[Text]
    resources: ProcessResources | None = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _command_given(self) -> "SubprocessExecutor":
        if not self.command:
            raise ValueError("command must hold at least the program to run")
        return self


Executor = Annotated[
    CpuExecutor | GpuExecutor | DistributedGpuExecutor | SubprocessExecutor, Field(discriminator="provider")
]


class SecretReference(Wire):
    """`secret` of the job's own workspace, or `workspace/secret`."""

    name: Text


class EnvironmentVariable(Wire):
    name: Text
    value: Text | None = None
    from_secret: SecretReference | None = None

    @field_validator("name")
    @classmethod
    def _can_be_a_variable(cls, name: str) -> str:
        if not name or "=" in name:
            raise ValueError("a variable's name must not be empty and must not contain '='")
        return name

    @model_validator(mode="after")
    def _one_source(self) -> "EnvironmentVariable":
        if (self.value is None) == (self.from_secret is None):
            raise ValueError(f"variable {self.name!r} needs exactly one of value and from_secret")
        return self


class Lifecycle(Wire):
    staleness_timeout_seconds: int = 0
    timeout_seconds: Annotated[int, Field(gt=0, le=2**31 - 1)] | None = Field(
        default=None, exclude_if=lambda value: value is None
    )


def _empty_object_is_empty_list(value: Any) -> Any:
    return [] if value == {} else value


class StepSpec(Wire):
    name: Name
    environment: Annotated[Many[EnvironmentVariable], BeforeValidator(_empty_object_is_empty_list)] | None = (
        None
    )
    executor: Executor
    config: JsonObject = Field(default_factory=dict)
    lifecycle: Lifecycle = Field(default_factory=Lifecycle)


class JobSecret(Wire):
    """Accepted for older clients, without effect; the value is dropped at once."""

    name: Text
    value: str | None = None
    ref_id: Text | None = None

    @field_validator("value", mode="before")
    @classmethod
    def _drop(cls, _value: Any) -> None:
        return None


class JobSpec(Wire):
    """`platform_spec`: the steps, which run one after the other."""

    steps: Many[StepSpec]
    secrets: Many[JobSecret] | None = None

    @model_validator(mode="after")
    def _named_steps(self) -> "JobSpec":
        if not self.steps:
            raise ValueError("steps must hold at least one step")
        seen: set[str] = set()
        for step in self.steps:
            if step.name in seen:
                raise ValueError(f"step name {step.name!r} is used twice; step names must be unique")
            seen.add(step.name)
        return self


class JobControl(Wire):
    """What may be changed while a job lives; what is null or left out stays as it is."""

    pause_ttl_seconds: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        default=None, description="how long the storage of the paused job is kept"
    )


class CreateJobRequest(Wire):
    """The body of a create request. `name` None: the service makes one."""

    # Before `name`, whose limit depends on it.
    output_location: Text | None = None
    name: JobName | None = None
    description: Text | None = None
    project: Text | None = None
    spec: JsonObject
    platform_spec: JobSpec
    source: Text
    ownership: JsonObject | None = None
    custom_fields: JsonObject | None = None
    control: JobControl | None = None

    _labels = field_validator("custom_fields")(check_labels)

    @field_validator("output_location")
    @classmethod
    def _names_a_fileset(cls, value: str | None) -> str | None:
        if value is None:
            return None
        trimmed = value.strip()
        if not trimmed:
            raise ValueError("output_location must name a fileset, or be left out")
        if "#" in trimmed or "/" in trimmed:
            raise ValueError("output_location names a fileset of the same workspace, without '#' and '/'")
        if not is_name(trimmed):
            raise ValueError(f"output_location is not a valid fileset name; a name has {NAME_RULE}")
        return trimmed

    @field_validator("name")
    @classmethod
    def _leaves_room_for_the_fileset(cls, name: str | None, info: ValidationInfo) -> str | None:
        own_fileset = info.data.get("output_location", "unknown") is None
        if name is not None and own_fileset and len(name) > JOB_NAME_LIMIT:
            raise ValueError(
                f"a job name has at most {JOB_NAME_LIMIT} characters without output_location, because its "
                f"fileset is named {FILESET_PREFIX}<name>; this one has {len(name)}"
            )
        return name

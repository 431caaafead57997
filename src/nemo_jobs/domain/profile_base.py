"""What the settings of all execution profiles are made of: the base of sections, and common keys.

Unknown keys are refused. `model_fields_set` says what somebody wrote, which merging with the
defaults and the launcher's rule depend on.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from nemo_jobs.domain.variables import is_reserved_variable

Json = dict[str, Any]


def _no_bool(value: Any) -> Any:
    """Python takes true for 1; nobody who writes `port: yes` means that."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "must be a whole number")
    return value


def _profile_variable(name: str) -> str:
    if is_reserved_variable(name):
        raise PydanticCustomError(
            "reserved_variable", "is reserved: the service sets it itself for each task"
        )
    if not name or "=" in name or "\0" in name:
        raise PydanticCustomError("bad_variable", "can't be the name of an environment variable")
    return name


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("bad_variable", "must not contain a NUL character")
    return text


def empty_if_none(value: Any) -> Any:
    """A section with nothing below it is an empty section."""
    return {} if value is None else value


Whole = Annotated[int, BeforeValidator(_no_bool)]
#: Seconds, up to what Kubernetes can hold.
Seconds = Annotated[Whole, Field(ge=0, le=2**31 - 1)]
Limit = Annotated[Whole, Field(ge=1, le=2**31 - 1)]
VariableName = Annotated[str, AfterValidator(_profile_variable)]
Variables = dict[VariableName, Annotated[str, AfterValidator(_no_nul)]]


class Section(BaseModel):
    """Base of everything that a configuration file may hold: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _empty_is_unset(cls, data: Any) -> Any:
        """Structured keys with nothing behind them count as not written."""
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        return {
            key: value
            for key, value in data.items()
            if value is not None or key not in fields or fields[key].default_factory is None
        }


class CommonConfig(Section):
    """What every profile has; the whole configuration of backend e2e."""

    ttl_seconds_before_active: Limit = Field(
        default=1800, description="how long a step may wait to run after it was scheduled"
    )
    ttl_seconds_active: Limit = Field(
        default=86400, description="how long a step may run, pauses not counted"
    )
    ttl_seconds_after_finished: Seconds = Field(
        default=3600, description="how long containers, Jobs and work directories are kept after the end"
    )
    cleanup_completed_jobs_immediately: bool = Field(
        default=True, description="remove those of successful steps at once"
    )
    launcher_tool_path: str = Field(
        default="/tools/jobs-launcher",
        description="launcher program: on Docker beside the service, on Kubernetes inside `launcher_image`",
    )
    default_task_image: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="image of steps that name none"
    )
    env: Variables = Field(
        default_factory=dict,
        description="variables for each task, of lowest precedence; reserved names are refused",
    )

"""Section `platform.docker`: which Docker engine runs containers, and what of it jobs may use."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from nemo_jobs.domain.profile_base import Section, Whole, empty_if_none

_PART = r"[^\s/@:?#]+"
_HOST = re.compile(
    rf"unix:///\S+|tcp://({_PART}|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?/?"
    rf"|ssh://({_PART}@)?({_PART}|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?(/\S*)?"
)
_DEVICE = re.compile(r"[0-9]{1,4}|GPU-[0-9A-Za-z-]{1,64}|MIG-[0-9A-Za-z/-]{1,80}")


def _engine_address(text: str) -> str:
    # With a dash in front, ssh would take the host for an option.
    if not _HOST.fullmatch(text) or re.match(r"ssh://([^/@]*@)?-", text):
        raise PydanticCustomError(
            "docker_host",
            "must be unix:///path/to/socket, tcp://host:port or ssh://user@host, without a password",
        )
    return text


def _gpu_ids_are_text(value: Any) -> Any:
    if isinstance(value, list):
        raise PydanticCustomError("gpu_ids", 'must be text, never a list: "all", "none" or ids such as "0,2"')
    return value


def _gpu_ids(text: str) -> str:
    parts = [part.strip() for part in text.split(",")]
    if text.strip() in ("", "all", "none"):
        return text.strip()
    if not all(_DEVICE.fullmatch(part) for part in parts):
        raise PydanticCustomError(
            "gpu_ids",
            'must be "all", "none", whole numbers such as "0,2", or ids such as GPU-… and MIG-…',
        )
    if len(set(parts)) < len(parts):
        raise PydanticCustomError("gpu_ids", "must name each GPU once")
    return ",".join(parts)


class DockerTls(Section):
    """Files for a `tcp://` engine that asks for certificates."""

    ca_cert_path: str | None = Field(default=None, description="certificate authority of the engine")
    client_cert_path: str | None = Field(default=None, description="client certificate")
    client_key_path: str | None = Field(default=None, description="its key")

    @model_validator(mode="after")
    def _pair(self) -> "DockerTls":
        if (self.client_cert_path is None) != (self.client_key_path is None):
            raise ValueError("client_cert_path and client_key_path are needed together")
        return self


class PlatformDocker(Section):
    reserved_gpu_device_ids: Annotated[str, BeforeValidator(_gpu_ids_are_text), AfterValidator(_gpu_ids)] = (
        Field(
            default="all",
            description='GPUs that jobs may use, as text: `"all"`, `"none"`, `"0,2"`, or ids of devices',
        )
    )
    gpu_device_count: Annotated[Whole, Field(ge=0, le=1024)] | None = Field(
        default=None, description="how many GPUs the engine's host has, where this service can't ask it"
    )
    host: Annotated[str, AfterValidator(_engine_address)] | None = Field(
        default=None,
        description="the engine: `unix:///…`, `tcp://…` or `ssh://…`; null: `DOCKER_HOST`, then the Docker "
        "context in use, then `unix:///var/run/docker.sock`",
    )
    tls: Annotated[DockerTls, BeforeValidator(empty_if_none)] = Field(default_factory=DockerTls)
    max_concurrent_pulls: Annotated[Whole, Field(ge=1, le=100)] = Field(
        default=3, description="images that the engine pulls at once"
    )
    minimum_free_bytes: Annotated[Whole, Field(ge=0, le=2**50)] = Field(
        default=1 << 30, description="no image is pulled with less than this free on the engine's disk"
    )

"""Models of execution profiles as they are listed, for the API document only."""

from typing import Literal

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.domain.profiles import (
    DockerConfig,
    E2EConfig,
    KubernetesJobConfig,
    SubprocessConfig,
    VolcanoJobConfig,
)


class ProfileHealth(BaseModel):
    """Whether work can be started on a profile now; `message` says why not."""

    ok: bool
    message: str = ""


class _Profile(BaseModel):
    provider: str = "cpu"
    profile: str = "default"
    health: ProfileHealth | None = None


class DockerProfile(_Profile):
    backend: Literal["docker"] = "docker"
    config: DockerConfig


class KubernetesJobProfile(_Profile):
    backend: Literal["kubernetes_job"] = "kubernetes_job"
    config: KubernetesJobConfig


class VolcanoJobProfile(_Profile):
    backend: Literal["volcano_job"] = "volcano_job"
    config: VolcanoJobConfig


class SubprocessProfile(_Profile):
    provider: Literal["subprocess"] = "subprocess"
    backend: Literal["subprocess"] = "subprocess"
    config: SubprocessConfig = Field(default_factory=SubprocessConfig)


class E2EProfile(_Profile):
    backend: Literal["e2e"] = "e2e"
    config: E2EConfig = Field(default_factory=E2EConfig)


AnyProfile = DockerProfile | KubernetesJobProfile | VolcanoJobProfile | SubprocessProfile | E2EProfile

MODELS = {"ProfileList": TypeAdapter(list[AnyProfile])}

"""Models of execution profiles, and of what backends still have, for the API document only."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.domain.profiles import (
    DockerConfig,
    E2EConfig,
    KubernetesJobConfig,
    SubprocessConfig,
    VolcanoJobConfig,
)
from nemo_jobs.http.sweep import SweepRequest


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


class Ownerless(BaseModel):
    """Something that no record stands for; `run` names the run that it was made for."""

    backend: str
    kind: str
    name: str
    run: str | None
    made_at: datetime | None
    state: Literal["found", "removed", "kept", "failed"]
    message: str


class Swept(BaseModel):
    """`unavailable` says which backends could not be asked, and why."""

    dry_run: bool
    data: list[Ownerless]
    unavailable: list[str]


MODELS: dict[str, TypeAdapter[Any]] = {
    "ProfileList": TypeAdapter(list[AnyProfile]),
    "SweepRequest": TypeAdapter(SweepRequest),
    "Swept": TypeAdapter(Swept),
}

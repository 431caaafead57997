"""Models of what the routes of GPUs answer, for the API document only."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from nemo_jobs.http.gpus import ReservationCreate


class GpuStepHolder(BaseModel):
    """A step; without names where the caller may not read its workspace."""

    kind: Literal["step"]
    workspace: str | None
    job: str | None
    step: str | None


class GpuReservationHolder(BaseModel):
    kind: Literal["reservation"]
    name: str


class Gpu(BaseModel):
    """A device, or a part of one. What is not known is null."""

    id: str
    host: str
    pool: str
    model: str | None
    uuid: str | None
    health: Literal["ok", "unusable"]
    problem: str | None
    holder: GpuStepHolder | GpuReservationHolder | None
    since: datetime | None
    use_percent: int | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None


class GpuPool(BaseModel):
    """The GPUs of one host. `source` says how it is known which there are: `driver`, `count`, `named`
    or `nobody`; `serving` whether a service gives them out now."""

    pool: str
    host: str
    source: str
    notes: list[str]
    serving: bool
    looked_at: datetime | None
    total: int
    free: int
    unusable: int
    waiting: int


class GpuReservation(BaseModel):
    name: str
    pool: str
    host: str
    count: int
    state: Literal["held", "waiting"]
    devices: list[str]
    asked_at: datetime
    since: datetime | None
    created_by: str


class GpuWaiting(BaseModel):
    """Who wants GPUs and has none, in the order in which they are served."""

    holder: GpuStepHolder | GpuReservationHolder
    host: str
    pool: str
    count: int
    asked_at: datetime
    ahead: int
    message: str


class Gpus(BaseModel):
    data: list[Gpu]
    pools: list[GpuPool]
    reservations: list[GpuReservation]
    waiting: list[GpuWaiting]


MODELS: dict[str, TypeAdapter[Any]] = {
    model.__name__: TypeAdapter(model) for model in (Gpus, GpuReservation, ReservationCreate)
}

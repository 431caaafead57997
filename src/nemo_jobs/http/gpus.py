"""The GPUs that are shared out: what there is, who has it, who waits, and reservations."""

import json
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.domain.gpus import Standing, too_many_text, waiting_text, wanted
from nemo_jobs.domain.model import Invalid, Json
from nemo_jobs.domain.spec import JobSpec, Name, StepSpec, Text
from nemo_jobs.http.identity import caller, readable
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, json_reply, no_content, time_text
from nemo_jobs.store import gpu_reservations as store
from nemo_jobs.store.gpu_rows import DeviceRow
from nemo_jobs.store.gpu_rows import Request as Waiting
from nemo_jobs.store.gpu_waiting import largest, unusable

GPUS = "/apis/jobs/v2/gpus"
RESERVATIONS = GPUS + "/reservations"
ONE = RESERVATIONS + "/{name}"
MOST_GPUS = 1024

#: Whose steps may be named; None: everybody's.
Readable = frozenset[str] | None


class ReservationCreate(BaseModel):
    """GPUs for work that is no job. Without `wait` they are there at once or the answer is 409; `pool`
    names one of several by its key or its host."""

    name: Name
    count: Annotated[int, Field(ge=1, le=MOST_GPUS)]
    pool: Annotated[Text, Field(min_length=1, max_length=256)] | None = None
    wait: bool = False


_CREATE = TypeAdapter(ReservationCreate)


async def get_gpus(api: Api, request: Request) -> Reply:
    parts = api.parts
    views = await parts.db.read(store.overview, parts.clock.now())
    may_read = readable(request)
    return json_reply(
        {
            "data": [_device(view, row, may_read) for view in views for row in view.devices],
            "pools": [_pool(view) for view in views],
            "reservations": [_reservation(one) for view in views for one in view.reservations],
            "waiting": [
                _waiting(view, asking, at, may_read) for view in views for asking, at in view.waiting
            ],
        }
    )


async def reserve_gpus(api: Api, request: Request) -> Reply:
    body = await request.parsed(_CREATE)
    asked = store.Asked(body.name, body.count, caller(request).actor, body.pool, body.wait)
    made = await api.parts.db.write(store.reserve, asked, api.parts.clock.now())
    return json_reply(_reservation(made), 201)


async def get_gpu_reservation(api: Api, request: Request) -> Reply:
    found = await api.parts.db.read(store.reservation, request.path["name"])
    return json_reply(_reservation(found))


async def release_gpus(api: Api, request: Request) -> Reply:
    await api.parts.db.write(store.release, request.path["name"])
    return no_content()


async def check_gpus(api: Api, spec: JobSpec) -> None:
    """Raises Invalid for a step that asks for more GPUs than there are, as far as that is known, or for
    a GPU container with none."""
    parts = api.parts
    for step in spec.steps:
        number = wanted(_executor(step))
        profile = parts.profiles.get(step.executor.provider, step.executor.profile)
        if not number and step.executor.provider == "gpu" and profile and profile.backend == "docker":
            raise Invalid(f"step '{step.name}' asks for no GPU; ask for at least 1, or use provider cpu")
        if not number or profile is None or profile.backend not in ("docker", "subprocess"):
            continue
        best = await parts.db.read(largest, profile.provider, profile.profile, parts.clock.now())
        if best is not None and number > best.total:
            text = too_many_text(number, best.total, best.host_name, best.note)
            raise Invalid(f"step '{step.name}' {text}")


def _executor(step: StepSpec) -> Json:
    resources = getattr(step.executor, "resources", None)
    number = getattr(resources, "num_gpus", None)
    return {"provider": step.executor.provider, "resources": {"num_gpus": number}}


def _pool(view: store.PoolView) -> Json:
    inside = [row for row in view.devices if row.in_pool]
    return {
        "pool": view.pool,
        "host": view.host_name,
        "source": view.source,
        "notes": list(view.notes),
        "serving": view.serving,
        "looked_at": time_text(view.looked_at) if view.looked_at else None,
        "total": len(inside),
        "free": sum(1 for row in inside if row.usable and row.holder is None),
        "unusable": sum(1 for row in inside if not row.usable),
        "waiting": view.waiting_total,
    }


def _device(view: store.PoolView, row: DeviceRow, may_read: Readable) -> Json:
    problem = unusable(row) if row.in_pool else "it is not one of the pool any more"
    return {
        "id": row.id,
        "host": view.host_name,
        "pool": row.pool,
        "model": row.model or None,
        "uuid": row.uuid or None,
        "health": "ok" if not problem else "unusable",
        "problem": problem or None,
        "holder": None if row.holder is None else _who(row.about, may_read),
        "since": None if row.since is None else time_text(row.since),
        "use_percent": row.use_percent,
        "memory_used_bytes": row.memory_used,
        "memory_total_bytes": row.memory_total,
    }


def _reservation(one: store.Reservation) -> Json:
    return {
        "name": one.name,
        "pool": one.pool,
        "host": one.host_name,
        "count": one.count,
        "state": "held" if one.devices else "waiting",
        "devices": list(one.devices),
        "asked_at": time_text(one.asked_at),
        "since": None if one.since is None else time_text(one.since),
        "created_by": one.by,
    }


def _waiting(view: store.PoolView, asking: Waiting, at: Standing, may_read: Readable) -> Json:
    who = _who(asking.about, may_read)
    # Holders are named above; here they would have to be hidden again.
    standing = Standing(at.wants, at.free, at.total, at.ahead, at.ahead_wants)
    return {
        "holder": who,
        "host": view.host_name,
        "pool": view.pool,
        "count": at.wants,
        "asked_at": time_text(asking.asked_at),
        "ahead": at.ahead,
        "message": waiting_text(standing, None),
    }


def _who(about: str | None, may_read: Readable) -> Json:
    """Who that is, as far as the caller may know."""
    told = json.loads(about or "{}")
    if "job" not in told:
        return {"kind": "reservation", "name": told.get("name", "")}
    if may_read is not None and told["workspace"] not in may_read:
        return {"kind": "step", "workspace": None, "job": None, "step": None}
    return {"kind": "step", **{name: told[name] for name in ("workspace", "job", "step")}}


OPERATIONS = (
    Operation("GET", GPUS, get_gpus, "GPUs, who has them, and who waits for some", "Gpus"),
    Operation(
        "POST",
        RESERVATIONS,
        reserve_gpus,
        "Reserve GPUs for work that is no job",
        "GpuReservation",
        201,
        body="ReservationCreate",
        errors=(403, 404, 409, 422),
    ),
    Operation(
        "GET",
        ONE,
        get_gpu_reservation,
        "A reservation of GPUs",
        "GpuReservation",
        errors=(404,),
    ),
    Operation(
        "DELETE", ONE, release_gpus, "Give back the GPUs of a reservation", None, 204, errors=(403, 404)
    ),
)

"""Who has which devices of a GPU pool, and who waits for some, as it is stored."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from nemo_jobs.domain.model import Json, StepRecord
from nemo_jobs.store.sql import Row, Statement, Tx, listed
from nemo_jobs.store.tables import job, step
from nemo_jobs.store.tables_gpus import gpu_device, gpu_pool, gpu_request, gpu_server

#: Requests for devices that one look considers, the oldest ones.
MOST_IN_QUEUE = 1000
#: More than any request asks for.
MOST_DEVICES = 2**31 - 1
#: With this the holder that is a reservation begins; behind it comes its name.
RESERVATION = "reservation/"


class DeviceRow(NamedTuple):
    """A device as it is stored; the names are those of the table's columns."""

    pool: str
    id: str
    position: int
    uuid: str
    driver_index: str
    model: str
    in_pool: int
    trouble: str
    used_by: str
    missing_since: int | None
    use_percent: int | None
    memory_used: int | None
    memory_total: int | None
    holder: str | None
    token: str | None
    since: int | None
    about: str | None
    fresh: int

    @property
    def usable(self) -> bool:
        """Whether it could be given out if nobody had it."""
        return bool(self.in_pool) and not self.trouble and not self.used_by

    @property
    def reserved(self) -> bool:
        return self.holder is not None and self.holder.startswith(RESERVATION)


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody who wants devices and has none. `step` is a row of the queue of waiting steps; without
    it this is a reservation, or a step at work."""

    holder: str
    count: int
    asked_at: int
    told: str = "{}"
    token: str | None = None  # of the service that looks after the step at work
    step: Row | None = None

    @property
    def about(self) -> str:
        """Who that is, for people, as JSON."""
        if (row := self.step) is None:
            return self.told
        return _about(row[8], row[9], row[10], row[3], row[4])


_POOL: sa.BindParameter[str] = sa.bindparam("in_pool_of")
#: Spelled like the condition of the partial index, which is used only then.
WANTING = sa.text("step.state IN ('created', 'resuming') AND step.gpus > 0")

_LOCK = Statement(sa.select(gpu_pool.c.pool).where(gpu_pool.c.pool == _POOL).with_for_update())
_DEVICES = Statement(
    sa.select(*gpu_device.c[DeviceRow._fields])
    .where(gpu_device.c.pool == _POOL)
    .order_by(gpu_device.c.position, gpu_device.c.id)
)
_SERVERS = Statement(
    sa.select(gpu_server.c.profiles, gpu_server.c.host).where(
        gpu_server.c.pool == _POOL, gpu_server.c.until > sa.bindparam("now")
    )
)
_REQUESTS = Statement(
    sa.select(
        *(gpu_request.c.holder, gpu_request.c.count, gpu_request.c.asked_at),
        *(gpu_request.c.about, gpu_request.c.token),
    )
    .where(gpu_request.c.pool == _POOL)
    .order_by(gpu_request.c.asked_at, gpu_request.c.holder)
    .limit(MOST_IN_QUEUE)
)
_STEPS = Statement(
    lambda dialect: (
        sa.select(
            *(step.c.id, step.c.gpus, step.c.created_at, step.c.provider, step.c.profile, step.c.host),
            *(step.c.lease_until, step.c.due_at, step.c.workspace, job.c.name, step.c.name),
            *(step.c.reason, step.c.message),
        )
        .join(job, step.c.job_id == job.c.id)
        .where(
            WANTING,
            (step.c.provider + "/" + step.c.profile).in_(listed(dialect, "profiles")),
            sa.or_(step.c.host.is_(None), step.c.host.in_(listed(dialect, "hosts"))),
            sa.or_(
                step.c.gpus <= sa.bindparam("at_most", type_=sa.Integer),
                step.c.id.in_(listed(dialect, "having")),
            ),
        )
        .order_by(step.c.created_at, step.c.id)
        .limit(MOST_IN_QUEUE)
    )
)


def lock(tx: Tx, pool: str) -> bool:
    """Keep others from changing who has what in the pool; False when it isn't known."""
    return tx.one(_LOCK, {"in_pool_of": pool}) is not None


def devices(tx: Tx, pool: str) -> list[DeviceRow]:
    """All devices of the pool, and those that left it and are still held, in their order."""
    return [DeviceRow(*row) for row in tx.run(_DEVICES, {"in_pool_of": pool})]


def held(tx: Tx, pool: str, holder: str) -> tuple[str, ...]:
    """The devices that this holder has."""
    return tuple(row.id for row in devices(tx, pool) if row.holder == holder)


def queue(
    tx: Tx, pool: str, now: int, at_most: int = MOST_DEVICES, having: Iterable[str] = ()
) -> list[Request]:
    """Who wants devices of the pool, oldest first; of the steps that wait for their start those that
    want no more than `at_most`, and all that are among `having`."""
    requests = {row[0]: Request(*row) for row in tx.run(_REQUESTS, {"in_pool_of": pool})}
    servers = tx.run(_SERVERS, {"in_pool_of": pool, "now": now})
    if servers:
        profiles = sorted({name for row in servers for name in json.loads(row[0])})
        hosts = sorted({row[1] for row in servers})
        lists = {"profiles": profiles, "hosts": hosts, "having": list(having)}
        texts = {name: json.dumps(value) for name, value in lists.items()}
        for row in tx.run(_STEPS, {**texts, "at_most": at_most}):
            requests.setdefault(row[0], Request(row[0], row[1], row[2], step=row))
    return sorted(requests.values(), key=lambda one: (one.asked_at, one.holder))


def possible(found: list[DeviceRow]) -> int:
    """How many devices could be given out if all steps gave back theirs. Reservations have no end
    that is known."""
    return sum(1 for row in found if row.usable and not row.reserved)


def about_step(of: StepRecord) -> str:
    """Who a step is, for people, as JSON."""
    return _about(of.workspace, of.job, of.name, of.provider, of.profile)


def _about(workspace: str, job: str, name: str, provider: str, profile: str) -> str:
    about: Json = {"workspace": workspace, "job": job, "step": name}
    return json.dumps({**about, "provider": provider, "profile": profile})


def holders(found: list[DeviceRow]) -> Iterator[tuple[str, list[DeviceRow]]]:
    """Each holder with its devices, the one that has them longest first."""
    by: dict[str, list[DeviceRow]] = {}
    for row in found:
        if row.holder is not None:
            by.setdefault(row.holder, []).append(row)
    yield from sorted(by.items(), key=lambda item: (item[1][0].since or 0, item[0]))

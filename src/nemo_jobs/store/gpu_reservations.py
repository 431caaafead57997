"""GPUs for work that is no job: reservations, in the same queue and the same rows; and the overview."""

import json
from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain.gpus import Standing, waiting_text
from nemo_jobs.domain.model import Conflict, Invalid, NotFound
from nemo_jobs.store import gpus
from nemo_jobs.store.gpu_rows import RESERVATION, DeviceRow, Request, devices, held, lock
from nemo_jobs.store.gpu_waiting import standings
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables_gpus import gpu_pool, gpu_request, gpu_server

#: Reservations of one pool, at most.
MOST = 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """A reservation to be made; with `wait` it may wait for its turn. `pool` names one of several by
    its key or its host's name."""

    name: str
    count: int
    by: str
    pool: str | None = None
    wait: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation as it is; without devices it waits."""

    pool: str
    host_name: str
    name: str
    count: int
    asked_at: int
    by: str
    devices: tuple[str, ...] = ()
    since: int | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool with all in it, for people. `serving`: somebody starts work on it now. `waiting` are
    those who have no devices, with where they stand, the oldest first."""

    pool: str
    host_name: str
    source: str
    notes: tuple[str, ...]
    looked_at: int
    serving: bool
    devices: tuple[DeviceRow, ...]
    reservations: tuple[Reservation, ...]
    waiting: tuple[tuple[Request, Standing], ...]
    waiting_total: int


_POOL: sa.BindParameter[str] = sa.bindparam("in_pool_of")
_POOLS = Statement(
    sa.select(
        *(gpu_pool.c.pool, gpu_pool.c.host_name, gpu_pool.c.source, gpu_pool.c.notes, gpu_pool.c.looked_at),
        sa.select(sa.func.max(gpu_server.c.until))
        .where(gpu_server.c.pool == gpu_pool.c.pool)
        .scalar_subquery(),
    ).order_by(gpu_pool.c.host_name, gpu_pool.c.pool)
)
_RESERVATIONS = Statement(
    sa.select(
        *(gpu_request.c.pool, gpu_request.c.holder, gpu_request.c.count),
        *(gpu_request.c.asked_at, gpu_request.c.about),
    )
    .where(gpu_request.c.holder.startswith(RESERVATION))
    .order_by(gpu_request.c.asked_at, gpu_request.c.holder)
)


def reserve(tx: Tx, asked: Asked, now: int) -> Reservation:
    """Take devices for work that is no job, or with `wait` a place in the queue. Raises Invalid for
    what can't be had, NotFound for an unknown pool, Conflict for a name that is taken and when it
    isn't its turn."""
    pool, host_name = _pool(tx, asked.pool, now)
    lock(tx, pool)
    there = tx.run(_RESERVATIONS)
    if any(row[1] == RESERVATION + asked.name for row in there):
        raise Conflict(
            f"there is a reservation {asked.name!r} already; release it first or choose another name"
        )
    if len(there) >= MOST:
        raise Conflict(f"there are {len(there)} reservations, more are not kept; release some")
    total = sum(row.in_pool for row in devices(tx, pool))
    if asked.count > total:
        raise Invalid(f"count is {asked.count}, but the pool of {host_name} has {total} GPUs")
    about = json.dumps({"name": asked.name, "by": asked.by})
    holder = RESERVATION + asked.name
    new = {"count": asked.count, "asked_at": now, "about": about, "token": None}
    tx.count(gpus.ASK, {"in_pool_of": pool, "the_holder": holder, **new})
    gpus.serve(tx, pool, now, None)
    has = held(tx, pool, holder)
    if not has and not asked.wait:
        at = next(at for asking, at in standings(tx, pool, now) if asking.holder == holder)
        raise Conflict(
            f"not reserved: it {waiting_text(at, None)}; ask with wait to get a place in the queue"
        )
    return Reservation(
        *(pool, host_name, asked.name, asked.count, now, asked.by, has),
        since=now if has else None,
    )


def release(tx: Tx, name: str) -> None:
    """Give back what a reservation has, or its place in the queue. Raises NotFound."""
    holder = RESERVATION + name
    if not any(row[1] == holder for row in tx.run(_RESERVATIONS)):
        raise NotFound(f"no reservation {name!r}")
    gpus.free(tx, holder)


def reservation(tx: Tx, name: str) -> Reservation:
    """Raises NotFound."""
    for view in overview(tx, 0, most_waiting=0):
        for found in view.reservations:
            if found.name == name:
                return found
    raise NotFound(f"no reservation {name!r}")


def overview(tx: Tx, now: int, most_waiting: int = 100) -> list[PoolView]:
    """All pools. Only the first `most_waiting` of those that wait are listed."""
    return [_view(tx, row, now, most_waiting) for row in tx.run(_POOLS)]


def _view(tx: Tx, row: tuple[str, str, str, str, int, int | None], now: int, most_waiting: int) -> PoolView:
    pool, host_name, source, notes, looked_at, until = row
    found = devices(tx, pool)
    waiting = list(standings(tx, pool, now)) if most_waiting else []
    return PoolView(
        pool=pool,
        host_name=host_name,
        source=source,
        notes=tuple(json.loads(notes)),
        looked_at=looked_at,
        serving=(until or 0) > now,
        devices=tuple(found),
        reservations=tuple(_reservations(tx, pool, host_name, found)),
        waiting=tuple(waiting[:most_waiting]),
        waiting_total=len(waiting),
    )


def _reservations(tx: Tx, pool: str, host_name: str, found: list[DeviceRow]) -> list[Reservation]:
    made = []
    for of_pool, holder, count, asked_at, about in tx.run(_RESERVATIONS):
        if of_pool == pool:
            has = [row for row in found if row.holder == holder]
            by = str(json.loads(about).get("by", ""))
            made.append(
                Reservation(
                    *(pool, host_name, holder.removeprefix(RESERVATION), count, asked_at, by),
                    devices=tuple(row.id for row in has),
                    since=has[0].since if has else None,
                )
            )
    return made


def _pool(tx: Tx, named: str | None, now: int) -> tuple[str, str]:
    found = [(row[0], row[1], (row[5] or 0) > now) for row in tx.run(_POOLS)]
    if named is not None:
        matching = [one for one in found if named in one[:2]]
        if not matching:
            raise NotFound(f"no GPU pool {named!r}; there are: {_names(found)}")
    else:
        matching = [one for one in found if one[2]] or found
        if not matching:
            raise Conflict("there is no GPU pool: no service that runs jobs has looked for GPUs yet")
    if len(matching) > 1:
        raise Invalid(f"there is more than one GPU pool; name one with pool: {_names(matching)}")
    return matching[0][0], matching[0][1]


def _names(found: list[tuple[str, str, bool]]) -> str:
    return ", ".join(f"{key} ({host_name})" for key, host_name, _ in found) or "none"

"""What is told to who waits for GPUs, and whether anybody could ever have as many."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import sqlalchemy as sa

from nemo_jobs.domain.gpus import Holder, Standing, too_many_text, waiting_details, waiting_text
from nemo_jobs.domain.model import Reason
from nemo_jobs.domain.retention import DEFAULT, Retention
from nemo_jobs.domain.states import State
from nemo_jobs.store.driver import off_loop
from nemo_jobs.store.gpu_rows import RESERVATION, DeviceRow, Request, devices, holders, queue
from nemo_jobs.store.moves import Located, Move, move
from nemo_jobs.store.records import steps_joined
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import job, step
from nemo_jobs.store.tables_gpus import gpu_device, gpu_pool, gpu_server

#: Steps that are told where they stand, the oldest ones.
MOST_TOLD = 100


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest pool that serves a profile: how many devices it has, given out or not."""

    total: int
    host_name: str
    note: str = ""


_SERVED = Statement(
    sa.select(gpu_server.c.pool, gpu_server.c.profiles, gpu_pool.c.host_name, gpu_pool.c.notes)
    .join(gpu_pool, gpu_pool.c.pool == gpu_server.c.pool)
    .where(gpu_server.c.until > sa.bindparam("now"), gpu_pool.c.looked_at > sa.literal_column("0"))
)
_TOTALS = Statement(
    sa.select(gpu_device.c.pool, sa.func.count())
    .where(gpu_device.c.in_pool == sa.literal_column("1"))
    .group_by(gpu_device.c.pool)
)
_WAITING_STEP = Statement(
    steps_joined()
    .where(step.c.id == sa.bindparam("step_id"), sa.text("step.state IN ('created', 'resuming', 'pending')"))
    .with_for_update(of=[job, step], skip_locked=True)
)


def largest(tx: Tx, provider: str, profile: str, now: int) -> Largest | None:
    """The largest pool that serves the profile; None when none does, or nobody has looked yet."""
    totals = {pool: int(count) for pool, count in tx.run(_TOTALS)}
    name = f"{provider}/{profile}"
    found = [
        Largest(totals.get(pool, 0), host_name, "; ".join(json.loads(notes)))
        for pool, profiles, host_name, notes in tx.run(_SERVED, {"now": now})
        if name in json.loads(profiles)
    ]
    return max(found, key=lambda one: one.total, default=None)


def standings(tx: Tx, pool: str, now: int) -> Iterator[tuple[Request, Standing]]:
    """Who waits for devices of the pool, and where each stands."""
    found = devices(tx, pool)
    having = {row.holder for row in found}
    at = Standing(
        wants=0,
        free=sum(1 for row in found if row.usable and row.holder is None),
        total=sum(row.in_pool for row in found),
        unusable=tuple(f"{row.id}: {why}" for row in found if (why := unusable(row))),
        holders=tuple(_holder(rows) for _, rows in holders(found)),
    )
    for asking in queue(tx, pool, now):
        if asking.holder not in having:
            yield asking, replace(at, wants=asking.count)
            at = replace(at, ahead=at.ahead + 1, ahead_wants=at.ahead_wants + asking.count)


def unusable(row: DeviceRow) -> str:
    """Why a device of the pool isn't given out; empty when it may be."""
    if not row.in_pool or row.usable:
        return ""
    return row.trouble or f"used by {row.used_by}, which is none of this service's"


def anybody(tx: Tx, pool: str, now: int) -> bool:
    """Whether steps wait for devices of the pool."""
    return any(not _is_reservation(asking) for asking in queue(tx, pool, now))


@off_loop
def tell_waiting(tx: Tx, pool: str, now: int, retention: Retention = DEFAULT) -> int:
    """Write to the oldest steps that wait for devices of the pool where they stand, and end those
    that want more than there are anywhere. How many were changed."""
    changed = 0
    told = [(asking, at) for asking, at in standings(tx, pool, now) if not _is_reservation(asking)]
    for asking, at in told[:MOST_TOLD]:
        about = json.loads(asking.about)
        best = largest(tx, about["provider"], about["profile"], now) if at.wants > at.total else None
        if best is not None and at.wants > best.total:
            changed += _end(tx, asking, best, retention, now)
        else:
            changed += _tell(tx, asking, at, about["workspace"], now)
    return changed


def _is_reservation(asking: Request) -> bool:
    return asking.holder.startswith(RESERVATION)


def _tell(tx: Tx, asking: Request, at: Standing, workspace: str, now: int) -> bool:
    text, reason = waiting_text(at, workspace), Reason.WAITING_FOR_GPUS
    if asking.step is not None and (asking.step[11], asking.step[12]) == (reason, text):
        return False
    found = _locked(tx, asking)
    if found is None or (found.step.reason, found.step.message) == (reason, text):
        return False
    details = {"gpus": waiting_details(at, workspace)}
    move(tx, found, Move(reason=reason, message=text, status_details=details), now)
    return True


def _end(tx: Tx, asking: Request, best: Largest, retention: Retention, now: int) -> bool:
    found = _locked(tx, asking)
    if found is None or (asking.step is not None and _is_held(found, now)):
        return False
    text = f"{found.step.name} {too_many_text(asking.count, best.total, best.host_name, best.note)}"
    error = {"message": text, "reason": Reason.UNSCHEDULABLE.value}
    # Nothing of it runs: it has no devices.
    change = Move(
        (State.ERROR,), Reason.UNSCHEDULABLE, text, error_details=error, retention=retention, ended=True
    )
    move(tx, found, change, now)
    tx.wake("work", asking.holder)
    return True


def _is_held(found: Located, now: int) -> bool:
    return found.step.lease_token is not None and (found.lease_until or 0) > now


def _locked(tx: Tx, asking: Request) -> Located | None:
    row = tx.one(_WAITING_STEP, {"step_id": asking.holder})
    return None if row is None else Located.of(row)


def _holder(rows: list[DeviceRow]) -> Holder:
    about = json.loads(rows[0].about or "{}")
    name = holder_name(about)
    return Holder(name, len(rows), rows[0].since or 0, str(about.get("workspace", "")))


def holder_name(about: dict[str, str]) -> str:
    """Who has devices, for people."""
    if "job" in about:
        return f"{about['workspace']}/{about['job']}/{about['step']}"
    return f"reservation {about.get('name', '')}"

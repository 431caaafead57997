"""Taking the devices of a GPU pool and giving them back, exactly.

Whoever changes who has a device holds the lock on the pool's row, always taken after those of jobs
and steps; while it is held, steps that others have locked are passed over, never waited for. A step
is claimed in the transaction that takes its devices. They are given back only when its work is
proven to be over: a crash, a lost lease or a lost engine leaves them with the step.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from nemo_jobs.domain.gpus import Turn, turn
from nemo_jobs.domain.model import Json, StepRecord, run_key
from nemo_jobs.domain.names import STEP_ID
from nemo_jobs.store.gpu_rows import (
    RESERVATION,
    WANTING,
    Request,
    about_step,
    devices,
    held,
    lock,
    possible,
    queue,
)
from nemo_jobs.store.records import step_record, steps_joined
from nemo_jobs.store.sql import Statement, Tx, listed
from nemo_jobs.store.tables import job, removal, step
from nemo_jobs.store.tables_gpus import gpu_device, gpu_request

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """Who claims steps together with their devices: up to `places` of each profile, until `until`;
    those of the profiles in `bind` belong to `host` from then on."""

    owner: str
    token: str
    host: str
    until: int
    places: Mapping[Key, int]
    bind: frozenset[Key] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Claimed:
    """Steps that were claimed with their devices, and the profiles for which others have devices there
    and no place."""

    steps: list[StepRecord]
    no_place: frozenset[Key] = frozenset()


_POOL: sa.BindParameter[str] = sa.bindparam("in_pool_of")
_HOLDER: sa.BindParameter[str] = sa.bindparam("the_holder")
_PLAIN = sa.text("state IN ('created', 'resuming') AND gpus = 0")
_NOW, _HOST = sa.bindparam("now", type_=sa.BigInteger), sa.bindparam("host", type_=sa.Text)
_FREE_LEASE = sa.or_(step.c.lease_token.is_(None), step.c.lease_until <= _NOW)


def _take_step(bind: bool) -> Statement:
    chosen = (
        sa.select(step.c.id)
        .where(
            step.c.id == sa.bindparam("step_id"),
            WANTING,
            _FREE_LEASE,
            step.c.due_at <= _NOW,
            sa.or_(step.c.host.is_(None), step.c.host == _HOST),
        )
        .with_for_update(skip_locked=True)
    )
    lease: dict[str, sa.BindParameter[Any]] = {
        "lease_owner": sa.bindparam("owner"),
        "lease_token": sa.bindparam("token"),
        "lease_until": sa.bindparam("until"),
    }
    if bind:
        lease["host"] = _HOST
    return Statement(sa.update(step).where(step.c.id.in_(chosen)).values(lease).returning(step.c.id))


_TAKE_STEP, _TAKE_STEP_BIND = _take_step(False), _take_step(True)
_OLDER_WITHOUT = Statement(
    sa.select(step.c.id)
    .where(
        step.c.provider == sa.bindparam("in_provider"),
        step.c.profile == sa.bindparam("in_profile"),
        _PLAIN,
        _FREE_LEASE,
        step.c.due_at <= _NOW,
        sa.or_(step.c.host.is_(None), step.c.host == _HOST),
        step.c.created_at < sa.bindparam("before"),
    )
    .order_by(step.c.created_at)
    .limit(sa.bindparam("n", type_=sa.Integer))
)
_GIVE = Statement(
    sa.update(gpu_device)
    .where(
        gpu_device.c.pool == _POOL, gpu_device.c.id == sa.bindparam("device"), gpu_device.c.holder.is_(None)
    )
    .values(
        holder=_HOLDER,
        token=sa.bindparam("by"),
        since=sa.bindparam("at"),
        about=sa.bindparam("whom"),
        fresh=0,
    )
)
_POOLS_OF = Statement(
    sa.union(
        sa.select(gpu_device.c.pool).where(gpu_device.c.holder == _HOLDER),
        sa.select(gpu_request.c.pool).where(gpu_request.c.holder == _HOLDER),
    )
)
_HELD_BY = Statement(
    sa.select(gpu_device.c.id).where(gpu_device.c.holder == _HOLDER).order_by(gpu_device.c.position)
)
_FREED = (
    sa.update(gpu_device)
    .where(gpu_device.c.pool == _POOL, gpu_device.c.holder == _HOLDER)
    .values(holder=None, token=None, since=None, about=None, fresh=1)
)
_FREE = Statement(_FREED)
_FREE_TAKEN = Statement(_FREED.where(gpu_device.c.token == sa.bindparam("by")))
_UNASK = Statement(sa.delete(gpu_request).where(gpu_request.c.pool == _POOL, gpu_request.c.holder == _HOLDER))
ASK = Statement(
    sa.text(
        "INSERT INTO gpu_request (pool, holder, count, asked_at, about, token) "
        "VALUES (:in_pool_of, :the_holder, :count, :asked_at, :about, :token) "
        "ON CONFLICT (pool, holder) DO UPDATE SET token = excluded.token"
    )
)
_HELD_STEP = Statement(
    steps_joined()
    .where(step.c.id == sa.bindparam("step_id"), step.c.lease_token == sa.bindparam("token"))
    .with_for_update(of=[job, step])
)
_BY_IDS = Statement(lambda dialect: steps_joined().where(step.c.id.in_(listed(dialect, "ids"))))
_STATE_OF = Statement(sa.select(step.c.state, step.c.generation).where(step.c.id == sa.bindparam("step_id")))
_OTHER_REMOVALS = Statement(sa.select(removal.c.key).where(removal.c.key.startswith(sa.bindparam("prefix"))))


def claim(tx: Tx, pool: str, by: Claim, now: int) -> Claimed:
    """Serve the queue of the pool in order of age: claim steps together with their devices. Durable,
    always: work must never run on devices that the database forgot to be taken."""
    if not lock(tx, pool):
        return Claimed([])
    taken: list[str] = []
    places, no_place = dict(by.places), set()

    def take(asking: Request) -> bool:
        row = asking.step
        assert row is not None  # noqa: S101 - a request without one is served by `serve` itself
        if (row[6] or 0) > now or row[7] > now:
            return False
        key = (row[3], row[4])
        if key not in places:
            return False
        if places[key] <= 0 or not _may_have_place(tx, by, key, places[key], row[2], now):
            no_place.add(key)
            return False
        params = {"step_id": row[0], "host": by.host, "now": now}
        lease = {"owner": by.owner, "token": by.token, "until": by.until}
        if tx.one(_TAKE_STEP_BIND if key in by.bind else _TAKE_STEP, {**params, **lease}) is None:
            return False
        places[key] -= 1
        taken.append(row[0])
        return True

    serve(tx, pool, now, by.token, take)
    rows = tx.run(_BY_IDS, {"ids": json.dumps(taken)}) if taken else []
    steps = sorted(map(step_record, rows), key=lambda record: (record.created_at, record.id))
    return Claimed(steps, frozenset(no_place))


def _may_have_place(tx: Tx, by: Claim, key: Key, free: int, created_at: int, now: int) -> bool:
    """Whether a place is left for it by the older steps that want no devices."""
    params = {"in_provider": key[0], "in_profile": key[1], "host": by.host, "now": now}
    return len(tx.run(_OLDER_WITHOUT, {**params, "before": created_at, "n": free})) < free


def serve(
    tx: Tx, pool: str, now: int, token: str | None, take: Callable[[Request], bool] | None = None
) -> None:
    """Give out what is free, in order of age. `take` claims a waiting step for the service of `token`;
    for one that it can't have now, the devices that are there for it are kept. The caller holds the
    lock."""
    found = devices(tx, pool)
    having = {row.holder for row in found if row.holder is not None}
    free = [row.id for row in found if row.usable and row.holder is None]
    most, blocked = possible(found), False
    for asking in queue(tx, pool, now, most, having):
        if asking.holder in having:
            if asking.step is not None and take is not None:
                take(asking)
            continue
        if blocked:
            continue
        match turn(asking.count, len(free), most):
            case Turn.WAITS:
                blocked = True
            case Turn.SERVED:
                chosen, free = free[: asking.count], free[asking.count :]
                if asking.step is None or (take is not None and take(asking)):
                    _give(tx, pool, asking, chosen, token, now)
                    most -= len(chosen) if asking.holder.startswith(RESERVATION) else 0


def _give(tx: Tx, pool: str, to: Request, chosen: list[str], token: str | None, now: int) -> None:
    taker = token if to.step is not None else to.token
    whom = {"in_pool_of": pool, "the_holder": to.holder, "by": taker, "at": now, "whom": to.about}
    for id in chosen:
        if tx.count(_GIVE, {**whom, "device": id}) != 1:
            raise RuntimeError(f"GPU {id} of {pool} was taken twice")  # undoes the transaction
    if to.step is None and not to.holder.startswith(RESERVATION):
        tx.count(_UNASK, {"in_pool_of": pool, "the_holder": to.holder})
        tx.wake("work", to.holder)


def shown(tx: Tx, of: StepRecord) -> Json:
    """What the details of a step that runs say about its devices."""
    return {"gpus": {"devices": [row[0] for row in tx.run(_HELD_BY, {"the_holder": of.id})]}}


def take_devices(tx: Tx, pool: str, token: str, step_id: str, now: int) -> tuple[str, ...] | None:
    """The devices of a held step that is about to start: those that it has, or as many as its spec
    asks for when it is its turn. None: not yet, or the lease is gone. It stays in the queue until
    its turn comes, which wakes ("work", step id), or until it ends. Must be durable."""
    row = tx.one(_HELD_STEP, {"step_id": step_id, "token": token})
    if row is None:
        return None
    record = step_record(row)
    if record.state not in _MAY_START or not lock(tx, pool):
        return None
    if has := held(tx, pool, step_id):
        return has
    about = about_step(record)
    asked = {"count": _gpus(tx, step_id), "asked_at": record.created_at, "about": about, "token": token}
    tx.count(ASK, {"in_pool_of": pool, "the_holder": step_id, **asked})
    serve(tx, pool, now, token)
    return held(tx, pool, step_id) or None


def release_devices(tx: Tx, token: str, step_id: str) -> bool:
    """Give back the devices of a held step that were taken under this token and that nothing uses, and
    leave the queue; False when the lease is gone, and then nothing is given back. Devices that another
    service took stay: it may have started the step before it lost it."""
    if tx.one(_HELD_STEP, {"step_id": step_id, "token": token}) is None:
        return False
    free(tx, step_id, token)
    return True


def free(tx: Tx, holder: str, token: str | None = None) -> None:
    """Give back what the holder has, or what of it was taken under `token`, and take it out of all
    queues. Its work is proven to be over."""
    pools = sorted(row[0] for row in tx.run(_POOLS_OF, {"the_holder": holder}))
    for pool in pools:
        lock(tx, pool)
        whose = {"in_pool_of": pool, "the_holder": holder}
        tx.count(*((_FREE, whose) if token is None else (_FREE_TAKEN, {**whose, "by": token})))
        tx.count(_UNASK, {"in_pool_of": pool, "the_holder": holder})
    if pools:
        tx.wake("gpus")


def leave_queue(tx: Tx, holder: str) -> None:
    """Wait for devices no longer; what it has, it keeps."""
    for pool in sorted(row[0] for row in tx.run(_POOLS_OF, {"the_holder": holder})):
        lock(tx, pool)
        if tx.count(_UNASK, {"in_pool_of": pool, "the_holder": holder}):
            tx.wake("gpus")


_RUN = re.compile(r"nj-(.+)-(\d+)")


def removed(tx: Tx, key: str) -> None:
    """The workload `key` is gone from its backend: give back what its step still has, unless another
    run of that step may have it."""
    match = _RUN.fullmatch(key)
    if match is None:
        return
    step_id = f"{STEP_ID}-{match[1]}"
    row = tx.one(_STATE_OF, {"step_id": step_id})
    if row is not None:
        over = row[0] in _OVER and run_key(step_id, row[1]) == key
    else:  # deleted; each of its runs has a removal of its own
        over = not tx.run(_OTHER_REMOVALS, {"prefix": f"nj-{match[1]}-"})
    if over:
        free(tx, step_id)


_MAY_START = frozenset({"created", "resuming", "pending"})
_OVER = frozenset({"completed", "error", "cancelled", "paused"})


def _gpus(tx: Tx, step_id: str) -> int:
    row = tx.one(_COUNT_OF, {"step_id": step_id})
    return int(row[0]) if row else 0


_COUNT_OF = Statement(sa.select(step.c.gpus).where(step.c.id == sa.bindparam("step_id")))

"""What GPUs a pool has, kept up to date by one of the services that work on it; and devices that a
step still holds although nobody looks after its work any more."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain.gpus import Device, Reserved, Source, Stock, iso, means
from nemo_jobs.store.gpu_rows import RESERVATION, DeviceRow, devices, lock
from nemo_jobs.store.gpus import free
from nemo_jobs.store.sql import Statement, Tx, insert_into
from nemo_jobs.store.tables import step
from nemo_jobs.store.tables_gpus import gpu_device, gpu_pool, gpu_request, gpu_server

#: How long a device that is gone still counts as one of the pool, in microseconds: drivers are
#: loaded late after a start of the host, and reloaded.
MISSED_FOR = 600_000_000
_FORGET_SERVERS = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Server:
    """A service that starts work of these profiles, `provider/profile`, on a pool's devices.
    `chosen` is what of the host's devices it is to share out; all of this is believed `until` then."""

    owner: str
    token: str
    host: str
    host_name: str
    profiles: tuple[str, ...]
    chosen: str
    until: int


@dataclass(frozen=True, slots=True)
class Doubt:
    """A step that holds devices although it is over or waits for its start with nobody looking after
    it: only its backend knows whether work of it goes on. `elsewhere`: a service that lives may just
    be starting it."""

    step_id: str
    provider: str
    profile: str
    elsewhere: bool


_POOL: sa.BindParameter[str] = sa.bindparam("in_pool_of")
_ADD_POOL = Statement(
    sa.text(
        "INSERT INTO gpu_pool (pool, host_name, source, notes, looked_at) "
        "VALUES (:in_pool_of, :host_name, 'nobody', '[]', 0) ON CONFLICT (pool) DO NOTHING"
    )
)
_SET_POOL = Statement(
    sa.update(gpu_pool)
    .where(gpu_pool.c.pool == _POOL)
    .values({name: sa.bindparam(name) for name in ("host_name", "source", "notes", "looked_at")})
)
_ATTEND = Statement(
    sa.text(
        "INSERT INTO gpu_server (pool, owner, token, host, profiles, chosen, started_at, until) "
        "VALUES (:in_pool_of, :owner, :token, :host, :profiles, :chosen, :now, :until) "
        "ON CONFLICT (pool, owner) DO UPDATE SET "
        "started_at = CASE WHEN gpu_server.token = excluded.token "
        "THEN gpu_server.started_at ELSE excluded.started_at END, "
        "token = excluded.token, host = excluded.host, profiles = excluded.profiles, "
        "chosen = excluded.chosen, until = excluded.until"
    )
)
_FORGET = Statement(
    sa.delete(gpu_server).where(gpu_server.c.pool == _POOL, gpu_server.c.until < sa.bindparam("before"))
)
_LEAVE = Statement(
    sa.update(gpu_server)
    .where(gpu_server.c.owner == sa.bindparam("the_owner"), gpu_server.c.token == sa.bindparam("the_token"))
    .values(until=0)
)
_SERVING = Statement(
    sa.select(gpu_server.c.owner, gpu_server.c.token, gpu_server.c.chosen)
    .where(gpu_server.c.pool == _POOL, gpu_server.c.until > sa.bindparam("now"))
    .order_by(gpu_server.c.started_at, gpu_server.c.owner)
)
_DROP = Statement(sa.delete(gpu_device).where(gpu_device.c.pool == _POOL))
_INSERT = Statement(lambda dialect: insert_into(gpu_device, dialect))
_STALE = Statement(
    sa.select(gpu_pool.c.pool).where(
        gpu_pool.c.looked_at < sa.bindparam("before"),
        ~sa.exists().where(
            gpu_server.c.pool == gpu_pool.c.pool, gpu_server.c.until >= sa.bindparam("before")
        ),
        ~sa.exists().where(gpu_device.c.pool == gpu_pool.c.pool, gpu_device.c.holder.is_not(None)),
        ~sa.exists().where(gpu_request.c.pool == gpu_pool.c.pool),
    )
)
_DROP_ALL = [
    Statement(sa.delete(table).where(table.c.pool == _POOL)) for table in (gpu_device, gpu_server, gpu_pool)
]
_DOUBTS = Statement(
    sa.select(gpu_device.c.holder, gpu_device.c.token, gpu_device.c.about)
    .distinct()
    .outerjoin(step, step.c.id == gpu_device.c.holder)
    .where(
        gpu_device.c.pool == _POOL,
        gpu_device.c.holder.is_not(None),
        sa.or_(
            step.c.id.is_(None),
            sa.text("step.state IN ('completed', 'error', 'cancelled', 'paused')"),
            sa.and_(
                sa.text("step.state IN ('created', 'resuming')"),
                sa.or_(step.c.lease_token.is_(None), step.c.lease_until <= sa.bindparam("now")),
            ),
        ),
    )
)


def purge(tx: Tx, now: int) -> int:
    """Forget the pools of hosts that no service has looked at for a day and of which nothing is held
    or wanted; how many."""
    stale = [row[0] for row in tx.run(_STALE, {"before": now - _FORGET_SERVERS})]
    for pool in stale:
        lock(tx, pool)
        for statement in _DROP_ALL:
            tx.count(statement, {"in_pool_of": pool})
    return len(stale)


def attend(
    tx: Tx, pool: str, server: Server, stock: Stock, reserved: Reserved, now: int
) -> tuple[bool, list[str]]:
    """Say that `server` works on the pool, and bring the pool's devices up to date if it is the one
    that does that: the one that began first. Whether it is, and on which devices others than that
    one insist."""
    tx.count(_ADD_POOL, {"in_pool_of": pool, "host_name": server.host_name})
    lock(tx, pool)
    said = {"owner": server.owner, "token": server.token, "host": server.host, "chosen": server.chosen}
    profiles = json.dumps(server.profiles)
    tx.count(_ATTEND, {**said, "in_pool_of": pool, "profiles": profiles, "now": now, "until": server.until})
    tx.count(_FORGET, {"in_pool_of": pool, "before": now - _FORGET_SERVERS})
    serving = tx.run(_SERVING, {"in_pool_of": pool, "now": now})
    leads = not serving or serving[0][0] == server.owner
    if leads:
        _restock(tx, pool, server.host_name, stock, reserved, now)
    return leads, sorted({row[2] for row in serving if row[2] != server.chosen})


def leave(tx: Tx, owner: str, token: str) -> None:
    """This service starts no more work on any pool."""
    tx.count(_LEAVE, {"the_owner": owner, "the_token": token})


def doubts(tx: Tx, pool: str, token: str, now: int) -> list[Doubt]:
    """Steps of which it isn't known whether they still need their devices, for the service of `token`."""
    rows = tx.run(_DOUBTS, {"in_pool_of": pool, "now": now})
    if not rows:
        return []
    living = {row[1] for row in tx.run(_SERVING, {"in_pool_of": pool, "now": now})} - {token}
    found = []
    for holder, taker, about in rows:
        if not holder.startswith(RESERVATION):
            who = json.loads(about or "{}")
            provider, profile = str(who.get("provider", "")), str(who.get("profile", ""))
            found.append(Doubt(holder, provider, profile, taker in living))
    return found


def settle(tx: Tx, pool: str, step_ids: Sequence[str], now: int) -> list[str]:
    """Nothing of these steps runs: give back what they hold, unless somebody looks after them now.
    Those that gave something back."""
    lock(tx, pool)
    rows = tx.run(_DOUBTS, {"in_pool_of": pool, "now": now})
    over = {row[0] for row in rows} & set(step_ids)
    for step_id in sorted(over):
        free(tx, step_id)
    return sorted(over)


def _restock(tx: Tx, pool: str, host_name: str, stock: Stock, reserved: Reserved, now: int) -> None:
    before = devices(tx, pool)
    after = merged(pool, before, stock, reserved, now)
    if after != before:
        tx.count(_DROP, {"in_pool_of": pool})
        tx.many(_INSERT, [row._asdict() for row in after])
    usable = {row.id for row in after if row.usable} - {row.id for row in before if row.usable}
    if usable:
        tx.wake("gpus")
    said = {"host_name": host_name, "source": stock.source.value, "looked_at": stock.at or now}
    tx.count(_SET_POOL, {**said, "in_pool_of": pool, "notes": json.dumps(stock.notes)})


def merged(
    pool: str, before: Sequence[DeviceRow], stock: Stock, reserved: Reserved, now: int
) -> list[DeviceRow]:
    """The rows of the pool as they are to be. A device stays with who holds it whatever its number is
    now, and what is held stays there until it is given back."""
    left = list(before)
    matched = _matched(left, stock.devices)
    after = [
        _present(pool, row, device, position)
        for position, (device, row) in enumerate(zip(stock.devices, matched, strict=True))
    ]
    taken = {row.id for row in after}
    for row in left:
        kept = _absent(row, stock, reserved, now)
        if kept is not None:
            kept = kept._replace(id=_name_of_its_own(kept, taken), position=len(after))
            taken.add(kept.id)
            after.append(kept)
    return after


def _matched(left: list[DeviceRow], found: Sequence[Device]) -> list[DeviceRow | None]:
    """The row of each device, taken out of `left`: the same device for sure before the same number."""
    matched: list[DeviceRow | None] = [None] * len(found)
    for surely in (True, False):
        for number, device in enumerate(found):
            if matched[number] is None:
                matched[number] = next((row for row in left if _same(row, device, surely)), None)
                if (row := matched[number]) is not None:
                    left.remove(row)
    return matched


def _same(row: DeviceRow, device: Device, surely: bool) -> bool:
    if row.uuid and device.uuid:
        return row.uuid == device.uuid
    if surely:
        return False
    return row.driver_index == device.index if row.driver_index and device.index else row.id == device.id


def _present(pool: str, row: DeviceRow | None, device: Device, position: int) -> DeviceRow:
    # What uses a device that was given back a moment ago may be what held it.
    mine = row is not None and (row.holder is not None or bool(row.fresh))
    used = "" if mine else ", ".join(str(pid) for pid in device.processes)
    return DeviceRow(
        pool=pool,
        id=device.id,
        position=position,
        uuid=device.uuid or (row.uuid if row else ""),
        driver_index=device.index or (row.driver_index if row else ""),
        model=device.model or (row.model if row else ""),
        in_pool=1,
        trouble=device.trouble,
        used_by=f"process {used}" if used else "",
        missing_since=None,
        use_percent=device.use_percent,
        memory_used=device.memory_used,
        memory_total=device.memory_total,
        holder=row.holder if row else None,
        token=row.token if row else None,
        since=row.since if row else None,
        about=row.about if row else None,
        fresh=row.fresh if row and row.holder is not None else 0,
    )


def _absent(row: DeviceRow, stock: Stock, reserved: Reserved, now: int) -> DeviceRow | None:
    """What remains of a device that isn't there: for a while all of it, then what somebody holds."""
    configured = reserved.everything or any(
        means(id, row.id, row.uuid, row.driver_index) for id in reserved.ids
    )
    since = row.missing_since or now
    if (
        configured
        and row.in_pool
        and row.uuid
        and stock.source in (Source.DRIVER, Source.NOBODY)
        and now - since < MISSED_FOR
    ):
        text = f"it is gone, last seen before {iso(since)}"
        return row._replace(trouble=text, missing_since=since, use_percent=None, memory_used=None)
    return row._replace(in_pool=0, use_percent=None, memory_used=None) if row.holder is not None else None


def _name_of_its_own(row: DeviceRow, taken: Iterable[str]) -> str:
    return next(name for name in _names(row) if name not in taken)


def _names(row: DeviceRow) -> Iterator[str]:
    yield row.id
    if row.uuid:
        yield row.uuid
    number = 1
    while True:
        yield f"{row.id} (earlier {number})"
        number += 1

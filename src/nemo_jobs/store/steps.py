"""The engine's door: claiming steps under a lease, and recording what became of them.

A lease is (owner, token, until) on the step row. Whoever claims a step gets it in one atomic
update; every later write names the token and changes nothing when the lease has gone to somebody
else. A holder that dies just stops extending: after `until` the step can be claimed again.
Leases change neither `db_version` nor `updated_at`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from nemo_jobs.domain.gpus import wanted
from nemo_jobs.domain.model import Json, StepRecord
from nemo_jobs.domain.retention import DEFAULT, Retention
from nemo_jobs.domain.states import State, Trigger, advance
from nemo_jobs.store import gpus, logs, outbox
from nemo_jobs.store.gpu_rows import WANTING
from nemo_jobs.store.logs import Chunk, LogBatch
from nemo_jobs.store.moves import Located, Move, move
from nemo_jobs.store.outbox import Removal
from nemo_jobs.store.records import dump, load_or_none, step_record, steps_joined
from nemo_jobs.store.sql import Statement, Tx, listed
from nemo_jobs.store.tables import attempt, job, step, task
from nemo_jobs.store.tasks import TaskChange

__all__ = [
    "Applied",
    "Chunk",
    "LogBatch",
    "Outcome",
    "Removal",
    "TaskChange",
    "append_logs",
    "apply",
    "claim_due",
    "claim_one",
    "claim_waiting",
    "due_removals",
    "forget_removal",
    "heartbeat",
    "held",
    "known_keys",
    "last_report",
    "release",
    "reload",
    "retry_removal",
    "run_before",
    "void_leases",
    "waiting_counts",
    "waiting_of",
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step. Triggers are walked in order from the state in the database; one
    that has no meaning there is skipped. None keeps what is stored; `status_details` are merged.

    With `expect`, nothing is written when the step is in another state: a request came first.
    An end or a pause is proven, its work is over and its devices are free, unless `proven` is False.
    """

    triggers: tuple[Trigger, ...] = ()
    reason: str = ""
    message: str = ""
    handle: Json | None = None
    host: str | None = None
    generation: int | None = None
    tasks: tuple[TaskChange, ...] = ()
    status_details: Json = field(default_factory=dict)
    error_details: Json | None = None
    stop_reason: str | None = None
    due_at: int | None = None
    logs: LogBatch | None = None
    removal_after: int | None = None  # microseconds after the end
    kept: bool = False  # should this pause it: its work stays, for the run that goes on with it
    retention: Retention = DEFAULT
    claim_next: bool = True
    expect: State | None = None
    proven: bool = True


@dataclass(frozen=True, slots=True)
class Applied:
    """The step as it is now, and the next step if this one's end made it. `written` is False
    when the step was not in the expected state."""

    step: StepRecord
    next_step: StepRecord | None = None
    written: bool = True


_NOW = sa.bindparam("now", type_=sa.BigInteger)
_HOST = sa.bindparam("host", type_=sa.Text)
_TOKEN = sa.bindparam("token", type_=sa.Text)
_UNTIL = sa.bindparam("until", type_=sa.BigInteger)
_OWNER = sa.bindparam("owner", type_=sa.Text)
# Spelled like the conditions of the partial indexes, which are used only then.
_WAITING = sa.text("state IN ('created', 'resuming') AND gpus = 0")
_WORKING = sa.text("state IN ('pending', 'active', 'pausing', 'cancelling')")
_LIVE = sa.text("state NOT IN ('completed', 'error', 'cancelled')")
_UNHELD, _IS_HELD = step.c.lease_token.is_(None), step.c.lease_token.is_not(None)
_FREE = sa.or_(_UNHELD, step.c.lease_until <= _NOW)
_HERE = sa.or_(step.c.host.is_(None), step.c.host == _HOST)
_LEASE = (
    sa.update(step).values(lease_owner=_OWNER, lease_token=_TOKEN, lease_until=_UNTIL).returning(step.c.id)
)


def _claim(
    *where: sa.ColumnElement[bool] | sa.TextClause, order: sa.Column[int], bind: bool = False
) -> Statement:
    """Choose and take in one statement; a row that another takes just now is passed over."""
    chosen = (
        sa.select(step.c.id)
        .where(*where, _HERE)
        .order_by(order, step.c.id)
        .limit(sa.bindparam("n", type_=sa.Integer))
        .with_for_update(skip_locked=True)
    )
    lease = _LEASE.values(host=_HOST) if bind else _LEASE
    return Statement(lease.where(step.c.id.in_(chosen)))


_OF_PROFILE = (step.c.provider == sa.bindparam("in_provider"), step.c.profile == sa.bindparam("in_profile"))
_MAY_START = (*_OF_PROFILE, _FREE, step.c.due_at <= _NOW)
_CLAIM_WAITING = _claim(*_MAY_START, _WAITING, order=step.c.created_at)
_CLAIM_WAITING_BIND = _claim(*_MAY_START, _WAITING, order=step.c.created_at, bind=True)
_CLAIM_WANTING = _claim(*_MAY_START, WANTING, order=step.c.created_at)
_CLAIM_DUE = _claim(_WORKING, _UNHELD, step.c.due_at <= _NOW, order=step.c.due_at)
_CLAIM_LAPSED = _claim(_WORKING, _IS_HELD, step.c.lease_until <= _NOW, order=step.c.lease_until)
_CLAIM_ONE = Statement(_LEASE.where(step.c.id == sa.bindparam("step_id"), _FREE, _LIVE))

_OF_IDS = Statement(lambda dialect: steps_joined().where(step.c.id.in_(listed(dialect, "ids"))))
_HELD = Statement(
    steps_joined()
    .where(step.c.id == sa.bindparam("step_id"), step.c.lease_token == sa.bindparam("token"))
    .with_for_update(of=[job, step])
)
_HELD_READ = Statement(
    steps_joined().where(step.c.id == sa.bindparam("step_id"), step.c.lease_token == sa.bindparam("token"))
)
_HANDLE = Statement(sa.select(step.c.handle).where(step.c.id == sa.bindparam("step_id")))
_ALL_HELD = Statement(steps_joined().where(step.c.lease_token == sa.bindparam("token")))
_SET_CURSOR = Statement(
    sa.update(step)
    .where(step.c.id == sa.bindparam("step_id"), step.c.lease_token == sa.bindparam("token"))
    .values(log_cursor=sa.bindparam("cursor"))
    .returning(step.c.attempt_id, step.c.name)
)
_HEARTBEAT = Statement(sa.update(step).where(step.c.lease_token == _TOKEN).values(lease_until=_UNTIL))
# A first step that never started is let go of by its host too; what follows it or runs again,
# also in another attempt, needs the storage that lies there.
_NEVER_RAN = sa.and_(
    step.c.state == sa.literal_column("'created'"),
    step.c.ordinal == sa.literal_column("0"),
    sa.select(attempt.c.seq).where(attempt.c.id == step.c.attempt_id).scalar_subquery()
    == sa.literal_column("0"),
)
_FREED = sa.update(step).values(
    lease_owner=None,
    lease_token=None,
    lease_until=None,
    host=sa.case((_NEVER_RAN, sa.null()), else_=step.c.host),
)
_RELEASE_ALL = Statement(_FREED.where(step.c.lease_token == _TOKEN).values(due_at=sa.bindparam("due")))
_RELEASE = Statement(
    lambda dialect: _FREED.where(step.c.lease_token == _TOKEN, step.c.id.in_(listed(dialect, "ids"))).values(
        due_at=sa.bindparam("due")
    )
)
_VOID = Statement(sa.update(step).where(_IS_HELD, step.c.lease_owner == _OWNER).values(lease_until=0))


def claim_waiting(
    tx: Tx,
    provider: str,
    profile: str,
    *,
    owner: str,
    token: str,
    host: str | None,
    now: int,
    until: int,
    limit: int,
    bind: bool = False,
    wanting: bool = False,
) -> list[StepRecord]:
    """Take the oldest steps that wait for a place on this profile; with `bind` they belong to
    `host` from now on. Those that want GPUs come with them from a pool, by `gpus.claim`; only with
    `wanting` they are taken here, without any: where no pool serves the profile."""
    params = {
        "in_provider": provider,
        "in_profile": profile,
        **{"owner": owner, "token": token, "host": host, "now": now, "until": until},
    }
    ids = _taken(tx, _CLAIM_WAITING_BIND if bind else _CLAIM_WAITING, params, limit)
    if wanting and len(ids) < limit:
        ids += _taken(tx, _CLAIM_WANTING, params, limit - len(ids))
    return _oldest_first(_load(tx, ids))


def _taken(tx: Tx, claim: Statement, params: Json, limit: int) -> list[str]:
    ids = [row[0] for row in tx.run(claim, {**params, "n": limit})]
    more = bool(ids) and tx.dialect == "postgresql"
    while more and len(ids) < limit:
        # Rows that another took in between were chosen too, and are missing now.
        found = tx.run(claim, {**params, "n": limit - len(ids)})
        ids += [row[0] for row in found]
        more = bool(found)
    return ids


def claim_due(
    tx: Tx, *, owner: str, token: str, host: str | None, now: int, until: int, limit: int
) -> list[StepRecord]:
    """Take steps at work or asked to end that are due or whose holder is gone."""
    params = {"owner": owner, "token": token, "host": host, "now": now, "until": until}
    ids = [row[0] for row in tx.run(_CLAIM_LAPSED, {**params, "n": limit})]
    if len(ids) < limit:
        ids += [row[0] for row in tx.run(_CLAIM_DUE, {**params, "n": limit - len(ids)})]
    return _oldest_first(_load(tx, ids))


def claim_one(tx: Tx, step_id: str, *, owner: str, token: str, now: int, until: int) -> StepRecord | None:
    """Take this step; None when somebody holds it or it is gone."""
    params = {"step_id": step_id, "owner": owner, "token": token, "now": now, "until": until}
    row = tx.one(_CLAIM_ONE, params)
    return _load(tx, [row[0]])[0] if row else None


def reload(tx: Tx, token: str, step_id: str) -> StepRecord | None:
    """The step as it is now; None when the lease is gone."""
    row = tx.one(_HELD_READ, {"step_id": step_id, "token": token})
    return step_record(row) if row else None


def peek(tx: Tx, step_id: str) -> StepRecord | None:
    """The step as it is, whoever holds it; None when it is gone."""
    found = _load(tx, [step_id])
    return found[0] if found else None


def run_before(tx: Tx, step_id: str) -> Json | None:
    """The handle of the last run that the step recorded, whatever its number; None: none."""
    row = tx.one(_HANDLE, {"step_id": step_id})
    return load_or_none(row[0]) if row else None


def apply(tx: Tx, token: str, step_id: str, outcome: Outcome, now: int) -> Applied | None:
    """Record `outcome`; None, and nothing written, when the lease is gone."""
    row = tx.one(_HELD, {"step_id": step_id, "token": token})
    if row is None:
        return None
    at = Located.of(row)
    if outcome.expect is not None and at.step.state is not outcome.expect:
        return Applied(at.step, written=False)
    if outcome.logs is not None:
        logs.append(tx, at.step.attempt_id, at.step.name, outcome.logs)
        tx.one(_SET_CURSOR, {"step_id": step_id, "token": token, "cursor": dump(outcome.logs.cursor)})
        at = _with_cursor(at, outcome.logs.cursor)
    path = _path(at.step.state, outcome.triggers)
    has = gpus.shown(tx, at.step) if State.ACTIVE in path and wanted(at.step.spec["executor"]) else {}
    change = Move(
        path=path,
        reason=outcome.reason,
        message=outcome.message,
        status_details={**outcome.status_details, **has},
        error_details=outcome.error_details,
        tasks=outcome.tasks,
        handle=outcome.handle,
        host=outcome.host,
        generation=outcome.generation,
        stop_reason=outcome.stop_reason,
        due_at=outcome.due_at,
        removal_after=outcome.removal_after,
        kept=outcome.kept,
        retention=outcome.retention,
        claim_next=outcome.claim_next,
        ended=outcome.proven,
    )
    moved = move(tx, at, change, now)
    return Applied(moved.step, moved.next_step)


def append_logs(tx: Tx, token: str, step_id: str, batch: LogBatch) -> int | None:
    """Store lines and how far the output was read, together. How many bytes the attempt's log
    holds then; None, and nothing written, when the lease is gone."""
    row = tx.one(_SET_CURSOR, {"step_id": step_id, "token": token, "cursor": dump(batch.cursor)})
    return None if row is None else logs.append(tx, row[0], row[1], batch)


def heartbeat(tx: Tx, token: str, until: int) -> int:
    """Keep everything held under `token` until `until`; how many steps that are."""
    return tx.count(_HEARTBEAT, {"token": token, "until": until})


def held(tx: Tx, token: str) -> list[StepRecord]:
    """Everything held under `token`."""
    return [step_record(row) for row in tx.run(_ALL_HELD, {"token": token})]


def release(tx: Tx, token: str, step_ids: Sequence[str] | None, due_at: int) -> None:
    """Let go of these steps, or of all held under `token`; they are due at `due_at`."""
    if step_ids is None:
        tx.count(_RELEASE_ALL, {"token": token, "due": due_at})
        tx.wake("work")
    elif step_ids:
        tx.count(_RELEASE, {"token": token, "ids": json.dumps(list(step_ids)), "due": due_at})
        for step_id in step_ids:
            tx.wake("work", step_id)


def void_leases(tx: Tx, owner: str) -> None:
    """Let the leases of an earlier run of this service lapse: it can't be alive. They are not
    freed, since a step that was held may have been started."""
    tx.count(_VOID, {"owner": owner})


_WAITING_COUNTS = [
    Statement(
        sa.select(step.c.provider, step.c.profile, sa.func.count())
        .where(waiting)
        .group_by(step.c.provider, step.c.profile)
    )
    for waiting in (_WAITING, WANTING)
]
_LAST_REPORT = Statement(
    sa.select(sa.func.max(task.c.reported_at)).where(
        task.c.step_id == sa.bindparam("the_step"), task.c.state == sa.literal_column("'active'")
    )
)


def waiting_counts(tx: Tx) -> dict[tuple[str, str], int]:
    """How many steps wait for a place, by (provider, profile)."""
    found: Counter[tuple[str, str]] = Counter()
    for waiting in _WAITING_COUNTS:
        found.update({(provider, profile): n for provider, profile, n in tx.run(waiting)})
    return dict(found)


def waiting_of(tx: Tx, step_ids: Iterable[str]) -> list[StepRecord]:
    """Those of these steps that wait for a place."""
    return [found for found in _load(tx, list(step_ids)) if found.state in (State.CREATED, State.RESUMING)]


def last_report(tx: Tx, step_id: str) -> int | None:
    """When an active task of the step last gave a sign of life by itself; None: never."""
    row = tx.one(_LAST_REPORT, {"the_step": step_id})
    return row[0] if row else None


def due_removals(tx: Tx, host: str | None, now: int, limit: int) -> list[Removal]:
    """Workloads to be removed now that a service of `host` may remove, longest due first."""
    return outbox.due(tx, host, now, limit)


def forget_removal(tx: Tx, key: str, wiped: bool = True) -> None:
    """The workload is gone, and with `wiped` the storage too; if that was asked for meanwhile, it
    stays on the list. Twice is fine."""
    outbox.forget(tx, key, wiped)


def retry_removal(tx: Tx, key: str, due_at: int) -> None:
    """It could not be removed; try again at `due_at`."""
    outbox.retry(tx, key, due_at)


def known_keys(tx: Tx, keys: Iterable[str]) -> set[str]:
    """Those of these workload keys that a record still stands for."""
    return outbox.known(tx, keys)


def _load(tx: Tx, ids: Sequence[str]) -> list[StepRecord]:
    rows = tx.run(_OF_IDS, {"ids": json.dumps(ids)}) if ids else []
    return [step_record(row) for row in rows]


def _oldest_first(found: list[StepRecord]) -> list[StepRecord]:
    return sorted(found, key=lambda record: (record.created_at, record.id))


def _path(state: State, triggers: Iterable[Trigger]) -> tuple[State, ...]:
    path: list[State] = []
    for trigger in triggers:
        target = advance(state, trigger)
        if target is not None and target is not state:
            path.append(target)
            state = target
    return tuple(path)


def _with_cursor(at: Located, cursor: Json) -> Located:
    return replace(at, step=at.step._replace(log_cursor=cursor))

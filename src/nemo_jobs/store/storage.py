"""The storage that the steps of a job share: which attempt has it, and when it is given back.

It moves from attempt to attempt. An attempt that ran something has it, unless it was given back;
one that started nothing may have got it all the same, when its start failed half way.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from nemo_jobs.domain.model import Conflict, JobRecord, Json, Reason, StepRecord
from nemo_jobs.domain.retention import SECOND, Retention
from nemo_jobs.domain.states import State
from nemo_jobs.store import outbox
from nemo_jobs.store.driver import off_loop
from nemo_jobs.store.lookup import lock_current_step, lock_job
from nemo_jobs.store.moves import Move, move
from nemo_jobs.store.records import JOB_COLUMNS, dump, load, load_or_none, step_record, steps_joined
from nemo_jobs.store.sql import Row, Statement, Tx
from nemo_jobs.store.tables import attempt, job, step

#: How many attempts that may have got the storage without anybody's knowing are looked at.
MOST_UNSURE = 20


@dataclass(frozen=True, slots=True)
class Source:
    """An attempt whose storage a later one takes over, with the handle of the last work that it ran
    there; `own`: on the profile that asks now. Without a handle it started nothing that is known."""

    attempt_id: str
    handle: Json | None = None
    own: bool = False


@dataclass(frozen=True, slots=True)
class Inheritance:
    """Where a run finds the storage of its job, the newest place first. With `needed` a step before
    it was kept from an earlier attempt, so that it must be there."""

    sources: tuple[Source, ...] = ()
    needed: bool = False


_BEFORE = (attempt.c.job_id == sa.bindparam("the_job"), attempt.c.seq < sa.bindparam("before"))
_AFTER_CUT = attempt.c.seq > sa.bindparam("cut")
_CUT = Statement(
    sa.select(sa.func.coalesce(sa.func.max(attempt.c.seq), sa.literal_column("-1"))).where(
        *_BEFORE, attempt.c.storage_reclaimed_at.is_not(None)
    )
)
_RAN = (
    sa.select(attempt.c.id, attempt.c.seq, step.c.host, step.c.handle)
    .join(step, step.c.attempt_id == attempt.c.id)
    .where(*_BEFORE, _AFTER_CUT, step.c.handle.is_not(None))
    .order_by(attempt.c.seq.desc(), step.c.ordinal.desc())
    .limit(sa.literal_column("1"))
)
_OF_PROVIDER = _RAN.where(step.c.provider == sa.bindparam("of_provider"))
_LAST_RUN = Statement(_RAN)
_LAST_ON_PROVIDER = Statement(_OF_PROVIDER)
_LAST_ON_PROFILE = Statement(_OF_PROVIDER.where(step.c.profile == sa.bindparam("of_profile")))
_UNSURE = Statement(
    sa.select(attempt.c.id)
    .where(*_BEFORE, _AFTER_CUT)
    .order_by(attempt.c.seq.desc())
    .limit(sa.literal_column(str(MOST_UNSURE)))
)
_REASON = Statement(
    sa.select(step.c.reason).where(
        step.c.attempt_id == sa.bindparam("the_attempt"), step.c.ordinal == sa.bindparam("the_ordinal")
    )
)


def is_gone(tx: Tx, job_id: str, before: int) -> bool:
    """Whether all that the attempts before number `before` stored was given back."""
    span = _span(tx, job_id, before)
    return span["cut"] >= 0 and tx.one(_LAST_RUN, span) is None


def host_of(tx: Tx, job_id: str, before: int, provider: str) -> str | None:
    """The host on which the attempts before number `before` left storage; None: any will do."""
    row = tx.one(_LAST_ON_PROVIDER, {**_span(tx, job_id, before), "of_provider": provider})
    return None if row is None else row[2]


def _span(tx: Tx, job_id: str, before: int) -> Json:
    """The attempts whose storage is still there."""
    row = tx.one(_CUT, {"the_job": job_id, "before": before})
    return {"the_job": job_id, "before": before, "cut": int(row[0]) if row else -1}


def inheritance(tx: Tx, of: StepRecord) -> Inheritance:
    """What a step of a later attempt takes over when it is started."""
    span = _span(tx, of.job_id, of.attempt_seq)
    asked = {**span, "of_provider": of.provider, "of_profile": of.profile}
    row = tx.one(_LAST_ON_PROFILE, asked)
    own = row is not None
    row = row or tx.one(_LAST_ON_PROVIDER, asked)
    # Attempts behind that one may have got its storage in a start that failed.
    unsure = tx.run(_UNSURE, span if row is None else {**span, "cut": row[1]})
    sources = [Source(each[0]) for each in unsure]
    if row is not None:
        sources.append(Source(row[0], load_or_none(row[3]), own))
    before = {"the_attempt": of.attempt_id, "the_ordinal": of.ordinal - 1}
    reason = tx.one(_REASON, before) if of.ordinal else None
    return Inheritance(tuple(sources), reason is not None and reason[0] == Reason.KEPT_FROM_ATTEMPT)


_DUE = Statement(
    sa.select(job.c.id).where(job.c.storage_due_at <= sa.bindparam("now")).limit(sa.literal_column("1"))
)
_LOCK_DUE = Statement(
    sa.select(*JOB_COLUMNS)
    .where(job.c.storage_due_at <= sa.bindparam("now"))
    .order_by(job.c.storage_due_at)
    .limit(sa.bindparam("n", type_=sa.Integer))
    .with_for_update(skip_locked=True)
)
_SETTLED = Statement(sa.update(job).where(job.c.id == sa.bindparam("the_job")).values(storage_due_at=None))
_ALL_THAT_RAN = Statement(
    steps_joined()
    .where(
        attempt.c.job_id == sa.bindparam("the_job"),
        job.c.id == sa.bindparam("the_job"),
        step.c.handle.is_not(None),
    )
    .order_by(attempt.c.seq, step.c.ordinal)
)
_IS_RECLAIMED = Statement(
    sa.select(attempt.c.storage_reclaimed_at).where(attempt.c.id == sa.bindparam("the_attempt"))
)
_RECLAIM = Statement(
    sa.update(attempt)
    .where(attempt.c.id == sa.bindparam("the_attempt"))
    .values(storage_reclaimed_at=sa.bindparam("at"), status_details=sa.bindparam("details"))
)
_SHOW = Statement(
    sa.update(job).where(job.c.id == sa.bindparam("the_job")).values(status_details=sa.bindparam("details"))
)


def any_due(tx: Tx, now: int) -> bool:
    """Whether the storage of some job may go now."""
    return tx.one(_DUE, {"now": now}) is not None


@off_loop
def reclaim_due(tx: Tx, now: int, keeps: Retention, limit: int) -> int:
    """Give back the storage of up to `limit` jobs whose time is up; how many those were.

    From this transaction on it counts as gone, so nobody can take it over while it is being
    deleted. A job that is still paused then is cancelled, since it could not be resumed.
    """
    found = [JobRecord(*row) for row in tx.run(_LOCK_DUE, {"now": now, "n": limit})]
    for record in found:
        tx.count(_SETTLED, {"the_job": record.id})
        row = tx.one(_IS_RECLAIMED, {"the_attempt": record.attempt_id})
        if row is not None and row[0] is None and _put_removals(tx, record, now):
            _tell(tx, record, now)
        if record.state == State.PAUSED:
            _cancel(tx, record, now, keeps)
    return len(found)


def _put_removals(tx: Tx, record: JobRecord, now: int) -> bool:
    """One for each place where work of the job ran; whether there is any."""
    places: dict[tuple[str | None, ...], Row] = {}
    for row in tx.run(_ALL_THAT_RAN, {"the_job": record.id}):
        of = step_record(row)
        places[of.attempt_id, of.provider, of.profile, of.host] = row
    for row in places.values():
        handle = load_or_none(row[18])
        assert handle is not None, "only steps with one were asked for"  # noqa: S101
        outbox.put(tx, step_record(row), handle, now, wipe_storage=True)
    return bool(places)


def _tell(tx: Tx, record: JobRecord, now: int) -> None:
    at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=now)
    shown = at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    details = dump({**load(record.status_details), "storage_reclaimed_at": shown})
    tx.count(_RECLAIM, {"the_attempt": record.attempt_id, "at": now, "details": details})
    tx.count(_SHOW, {"the_job": record.id, "details": details})
    tx.wake("job", record.id)


def _cancel(tx: Tx, record: JobRecord, now: int, keeps: Retention) -> None:
    at = lock_current_step(tx, record)
    if at.step.state is not State.PAUSED:
        return
    seconds = (now - record.since) // 1_000_000
    change = Move(
        path=(State.CANCELLING, State.CANCELLED),
        reason=Reason.STORAGE_EXPIRED,
        message=f"cancelled: it was paused for {seconds} s, and its storage is not kept any longer",
        retention=keeps,
    )
    move(tx, at, change, now)


_SET_CONTROL = Statement(
    sa.update(job)
    .where(job.c.id == sa.bindparam("the_job"))
    .values(control=sa.bindparam("control"), updated_at=sa.bindparam("at"))
)
_SET_DUE = Statement(
    sa.update(job).where(job.c.id == sa.bindparam("the_job")).values(storage_due_at=sa.bindparam("due"))
)


def set_pause_ttl(
    tx: Tx, workspace: str, name: str, seconds: int | None, keeps: Retention, now: int
) -> JobRecord:
    """How long the job's storage is kept after a pause, from now on; None leaves it. Of a paused
    job the time goes on from when it was paused. Raises NotFound; Invalid for more than is allowed;
    Conflict when the storage is gone."""
    found = lock_job(tx, workspace, name)
    row = tx.one(_IS_RECLAIMED, {"the_attempt": found.attempt_id})
    if row is not None and row[0] is not None:
        raise Conflict(
            f"the storage of job {found.name!r} is gone, so there is nothing to keep; "
            "run it again from its first step, or create a new job"
        )
    keeps.check_pause_ttl(seconds)
    if seconds is None:
        return found
    control = {**(load(found.control) if found.control else {}), "pause_ttl_seconds": seconds}
    at = max(now, found.updated_at)
    tx.count(_SET_CONTROL, {"the_job": found.id, "control": dump(control), "at": at})
    if found.state == State.PAUSED:
        due = found.since + keeps.paused_for(seconds) * SECOND
        tx.count(_SET_DUE, {"the_job": found.id, "due": due})
    tx.wake("job", found.id)
    return found._replace(control=dump(control), updated_at=at)


_SHORTEN = Statement(
    sa.update(job)
    .where(
        sa.text("job.state = 'paused'"),
        job.c.storage_due_at > job.c.since + sa.bindparam("most", type_=sa.BigInteger),
    )
    .values(storage_due_at=job.c.since + sa.bindparam("most", type_=sa.BigInteger))
)


@off_loop
def shorten_pauses(tx: Tx, keeps: Retention) -> int:
    """Have the present maximum hold for jobs that were paused under a longer one; for how many it
    does. Called once, when a service starts with its settings."""
    return tx.count(_SHORTEN, {"most": keeps.most_paused * SECOND})

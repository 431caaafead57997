"""Running an ended job again: a new attempt of it, from its first step or from a later one.

The storage that its steps share goes with it to the new attempt, as long as it was not given
back. Steps before the one that is asked for count as completed: their records say in which
attempt they ran, and have no tasks of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.carry import carried_over
from nemo_jobs.domain.model import Conflict, Invalid, JobRecord, Json, Reason, StepRecord
from nemo_jobs.domain.states import TERMINAL, State, rollup
from nemo_jobs.store import events
from nemo_jobs.store.driver import off_loop
from nemo_jobs.store.idempotency import Once, claim, first_answer
from nemo_jobs.store.lookup import lock_job
from nemo_jobs.store.moves import insert_step, new_step
from nemo_jobs.store.records import dump, load, step_record, steps_joined
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.storage import host_of, is_gone
from nemo_jobs.store.tables import attempt, job, step


@dataclass(frozen=True, slots=True)
class Rerun:
    """Who asks; `context` is the new auth context as JSON. Earlier steps than `from_step` are kept."""

    actor: str
    context: str
    from_step: str | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the new attempt is made of: its specs, which of its steps are kept, and the host on which
    the first one to run finds the storage."""

    seq: int
    specs: list[Json]
    kept: Sequence[StepRecord]
    host: str | None


_SEQ = Statement(sa.select(attempt.c.seq).where(attempt.c.id == sa.bindparam("the_attempt")))
_STEPS = Statement(
    steps_joined().where(step.c.attempt_id == sa.bindparam("the_attempt")).order_by(step.c.ordinal)
)
_INSERT_ATTEMPT = Statement(
    sa.insert(attempt).inline().values({column.name: sa.bindparam(column.name) for column in attempt.c})
)
_SHOWN = ("state", "reason", "message", "since", "status_details", "error_details", "updated_at")
_POINT_TO = Statement(
    sa.update(job)
    .where(job.c.id == sa.bindparam("the_job"))
    .values({name: sa.bindparam(name) for name in (*_SHOWN, "attempt_id", "auth_context")})
    .values(storage_due_at=None)
)


@off_loop
def rerun(tx: Tx, workspace: str, name: str, asked: Rerun, now: int) -> JobRecord:
    """Make a new attempt the current one; the job as it is then. Raises NotFound; Conflict for a
    job that has not ended, or can't be run from that step; Invalid for a step that it lacks."""
    found = lock_job(tx, workspace, name)
    if State(found.state) not in TERMINAL:
        raise Conflict(f"job {found.name!r} can't be run again: it is {found.state}; {_way_out(found.state)}")
    plan = _planned(tx, found, asked.from_step)
    after, steps = _records(found, plan, asked, max(now, found.updated_at))
    _insert(tx, after, steps, asked.actor)
    told = {"job_id": after.id, "attempt_id": after.attempt_id, "kind": "job", "actor": asked.actor}
    states = {"from_state": found.state, "to_state": after.state, "reason": after.reason}
    text = f"attempt {plan.seq}, run again after {found.state}"
    events.append(tx, [{**told, **states, "message": text, "at": after.since}])
    tx.tally(found.workspace, found.state, -1)
    tx.tally(after.workspace, after.state, 1)
    tx.wake("work", steps[-1].id)
    tx.wake("job", after.id)
    return after


@off_loop
def rerun_once(
    tx: Tx,
    workspace: str,
    name: str,
    asked: Rerun,
    once: Once,
    answer: Callable[[JobRecord], str],
    now: int,
) -> str:
    """Like `rerun`, unless the same request did so before; the first answer in either case."""
    lock_job(tx, workspace, name)  # who comes second waits here, and then finds the first one's answer
    earlier = first_answer(tx, once, now)
    if earlier is not None:
        return earlier
    after = rerun(tx, workspace, name, asked, now)
    text = answer(after)
    return claim(tx, once, after.id, text, now) or text


def _way_out(state: str) -> str:
    if state == State.PAUSED:
        return "resume it, or cancel it first"
    if state == State.CANCELLING:
        return "wait until it has ended"
    return "wait until it has ended, or cancel it first"


def _planned(tx: Tx, found: JobRecord, from_step: str | None) -> _Plan:
    row = tx.one(_SEQ, {"the_attempt": found.attempt_id})
    seq = int(row[0]) if row else 0
    specs: list[Json] = load(found.platform_spec)["steps"]
    first = 0 if from_step is None else _position(found, specs, from_step)
    kept = _kept(tx, found, specs[: first + 1], seq) if first else []
    if first and is_gone(tx, found.id, seq + 1):
        raise Conflict(
            f"job {found.name!r} can't be run again from step {from_step!r}: the storage that its steps "
            "share is gone; run it from its first step"
        )
    host = host_of(tx, found.id, seq + 1, specs[first]["executor"]["provider"])
    return _Plan(seq + 1, specs, kept, host)


def _position(found: JobRecord, specs: Sequence[Json], name: str) -> int:
    known = [spec["name"] for spec in specs]
    if name not in known:
        raise Invalid(f"job {found.name!r} has no step {name!r}; its steps are: {', '.join(known[:50])}")
    return known.index(name)


def _kept(tx: Tx, found: JobRecord, specs: Sequence[Json], seq: int) -> list[StepRecord]:
    """The steps before the last of `specs`, as the current attempt completed them."""
    there = {
        one.ordinal: one
        for one in (step_record(row) for row in tx.run(_STEPS, {"the_attempt": found.attempt_id}))
    }
    target = specs[-1]["name"]
    for ordinal, spec in enumerate(specs[:-1]):
        one = there.get(ordinal)
        if one is None or one.state is not State.COMPLETED:
            how = "did not run" if one is None else f"is {one.state}"
            raise Conflict(
                f"job {found.name!r} can't be run again from step {target!r}: step {spec['name']!r} before "
                f"it {how} in attempt {seq}; run it from that step, or from the first one"
            )
        if one.name != spec["name"]:
            raise Conflict(
                f"job {found.name!r} can't be run again from step {target!r}: its definition was changed; "
                f"step {spec['name']!r} is where attempt {seq} ran {one.name!r}; run it from its first step"
            )
    return [there[ordinal] for ordinal in range(len(specs) - 1)]


def _records(found: JobRecord, plan: _Plan, asked: Rerun, now: int) -> tuple[JobRecord, list[StepRecord]]:
    """The job with its new attempt, and that attempt's steps: those kept and the first to run."""
    total, number = len(plan.specs), len(plan.kept)
    what = {
        **{"attempt_id": names.new_id(names.ATTEMPT_ID, now), "job_id": found.id},
        **{"workspace": found.workspace, "job": found.name, "steps_total": total},
        **{"fileset": found.fileset, "output_location": found.output_location, "attempt_seq": plan.seq},
        "auth_context": load(asked.context),
    }
    first = new_step(what, plan.specs[number], number, plan.host, now)
    after = found._replace(
        attempt_id=first.attempt_id,
        auth_context=asked.context,
        state=rollup([*[State.COMPLETED] * number, State.CREATED], total).value,
        reason=first.reason,
        message=first.message,
        since=now,
        status_details=dump(carried_over(load(found.status_details))),
        error_details=None,
        updated_at=now,
    )
    # Lists sort by when steps were made: the kept ones are a microsecond apart, before the first to run.
    kept = (_kept_record(one, what, now, now - number + place) for place, one in enumerate(plan.kept))
    return after, [*kept, first]


def _insert(tx: Tx, after: JobRecord, steps: Sequence[StepRecord], actor: str) -> None:
    shown = after._asdict()
    own = {"spec": None, "platform_spec": None, "steps_total": None, "storage_reclaimed_at": None}
    made = {"name": names.attempt_name(), "created_at": after.since, "log_lines": 0, "log_bytes": 0}
    of_job = {"id": after.attempt_id, "job_id": after.id, "seq": steps[-1].attempt_seq}
    tx.count(_INSERT_ATTEMPT, {**shown, **own, **made, **of_job})
    for one in steps:
        insert_step(tx, one, actor, None, None)
    tx.count(_POINT_TO, {**shown, "the_job": after.id})


def _kept_record(one: StepRecord, what: Json, now: int, made: int) -> StepRecord:
    """A step that counts as completed because an earlier attempt completed it; `made` is its date."""
    origin = one.status_details.get("kept_from_attempt")
    if one.reason != Reason.KEPT_FROM_ATTEMPT or not isinstance(origin, str):
        origin = one.attempt_id
    reason, message = (
        Reason.KEPT_FROM_ATTEMPT.value,
        f"it completed in attempt {origin} and was not run again",
    )
    details = {**one.status_details, "reason": reason, "message": message, "kept_from_attempt": origin}
    return one._replace(
        **what,
        id=names.new_id(names.STEP_ID, now),
        state=State.COMPLETED,
        reason=reason,
        message=message,
        since=now,
        status_details=details,
        error_details=None,
        generation=0,
        handle=None,
        lease_token=None,
        active_since=None,
        stop_reason=None,
        log_cursor=None,
        due_at=now,
        db_version=1,
        created_at=made,
        updated_at=made,
    )

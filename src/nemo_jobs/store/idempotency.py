"""Requests that may arrive twice: the answer to the first is kept under the key that both carry.

The insert of the key, in the transaction that creates the job, decides which request is the first,
whichever service it came through: the other one waits for it and then finds its answer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain.model import Conflict, JobRecord, StepRecord, Unavailable
from nemo_jobs.store.jobs import Lease, NewJob, insert_job, new_records
from nemo_jobs.store.sql import Statement, Tx, insert_into
from nemo_jobs.store.tables_access import idempotency

#: How long a key is kept, in microseconds.
KEPT = 24 * 3600 * 1_000_000
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Once:
    """A request to be carried out once: who sent which key, and the digest of its body."""

    workspace: str
    principal: str
    key: str
    digest: str


_KEY = (
    idempotency.c.workspace == sa.bindparam("in_workspace"),
    idempotency.c.principal == sa.bindparam("of_principal"),
    idempotency.c.key == sa.bindparam("the_key"),
)
_FIND = Statement(
    sa.select(idempotency.c.digest, idempotency.c.answer, idempotency.c.created_at).where(*_KEY)
)
_INSERT = Statement(
    lambda dialect: insert_into(idempotency, dialect).on_conflict_do_nothing(
        index_elements=["workspace", "principal", "key"]
    )
)
_OLD = idempotency.c.created_at <= sa.bindparam("before")
_FORGET_ONE = Statement(sa.delete(idempotency).where(*_KEY, _OLD))
_FORGET_OLD = Statement(sa.delete(idempotency).where(_OLD))


def first_answer(tx: Tx, once: Once, now: int) -> str | None:
    """The answer to the first request with this key; None when there was none in the last 24 h.
    Raises Conflict when that request had another body."""
    row = tx.one(_FIND, _params(once))
    if row is None or row[2] <= now - KEPT:
        return None
    digest, answer, _ = row
    if digest != once.digest:
        raise Conflict(
            f"Idempotency-Key {once.key!r} came with another body before; "
            "use a new key for a new request, or send the same body again"
        )
    found: str = answer
    return found


def create_once(
    tx: Tx,
    new: NewJob,
    once: Once,
    answer: Callable[[JobRecord], str],
    lease: Lease | None,
    now: int,
    actor: str,
) -> tuple[str, StepRecord | None]:
    """Create a job unless the same request did so before; the first answer in either case. The
    step is the new job's first one, if it is held with `lease`. Raises what creating raises, and
    then nothing is kept under the key."""
    job, step = new_records(tx, new, now)
    if lease is not None:
        step = step._replace(lease_token=lease.token, host=lease.host)
    text = answer(job)
    earlier = claim(tx, once, job.id, text, now)
    if earlier is not None:
        return earlier, None
    insert_job(tx, new, job, step, actor, lease)
    return text, step if lease is not None else None


def forget_keys(tx: Tx, now: int) -> int:
    """Forget what is older than 24 h; how many keys."""
    return tx.count(_FORGET_OLD, {"before": now - KEPT})


def claim(tx: Tx, once: Once, job_id: str, text: str, now: int) -> str | None:
    """Take the key for this request; None when it is ours, else the first one's answer."""
    row = {
        "workspace": once.workspace,
        "principal": once.principal,
        "key": once.key,
        "digest": once.digest,
        "job_id": job_id,
        "answer": text,
        "created_at": now,
    }
    for _ in range(_TRIES):
        if tx.count(_INSERT, row):
            return None
        earlier = first_answer(tx, once, now)
        if earlier is not None:
            return earlier
        tx.count(_FORGET_ONE, {**_params(once), "before": now - KEPT})
    raise Unavailable(f"Idempotency-Key {once.key!r} is in use; try again", retry_after=1.0)


def _params(once: Once) -> dict[str, str]:
    return {"in_workspace": once.workspace, "of_principal": once.principal, "the_key": once.key}

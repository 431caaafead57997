"""Which key encrypts now, and the walk of a rotation over all that is encrypted."""

import json
from collections.abc import Sequence

import sqlalchemy as sa

from nemo_jobs.domain.secrets import KeyState, Sealed, SealedRow
from nemo_jobs.store.driver import off_loop
from nemo_jobs.store.sql import Statement, Tx, insert_into
from nemo_jobs.store.tables import meta, step
from nemo_jobs.store.tables_access import KEY_CHECK, secret
from nemo_jobs.store.tables_secrets import run_secret

#: How a ciphertext is bound to its place; the first word says which table it is in.
SECRET, RUN = "secret", "run"

_STATE = sa.select(meta.c.value).where(meta.c.key == KEY_CHECK)
_READ = Statement(_STATE)
_SHARE = Statement(_STATE.with_for_update(read=True))
_LOCK = Statement(_STATE.with_for_update())
_CLAIM = Statement(lambda dialect: insert_into(meta, dialect).on_conflict_do_nothing(index_elements=["key"]))
_WRITE = Statement(sa.update(meta).where(meta.c.key == KEY_CHECK).values(value=sa.bindparam("new_value")))
_PRESENT = sa.bindparam("present_key", type_=sa.Text)
_N = sa.bindparam("n", type_=sa.Integer)
_STALE_SECRETS = Statement(
    sa.select(secret.c.workspace, secret.c.name, secret.c.value, secret.c.key_id)
    .where(
        secret.c.key_id != _PRESENT,
        sa.tuple_(secret.c.workspace, secret.c.name)
        > sa.tuple_(sa.bindparam("after_workspace"), sa.bindparam("after_name")),
    )
    .order_by(secret.c.workspace, secret.c.name)
    .limit(_N)
)
_STALE_RUNS = Statement(
    sa.select(run_secret.c.run, run_secret.c.value, run_secret.c.key_id)
    .where(run_secret.c.key_id != _PRESENT, run_secret.c.run > sa.bindparam("after_run"))
    .order_by(run_secret.c.run)
    .limit(_N)
)
_SEALED = {name: sa.bindparam(f"new_{name}", type_=sa.Text) for name in ("value", "key_id")}
_RESEAL_SECRET = Statement(
    sa.update(secret)
    .where(
        secret.c.workspace == sa.bindparam("in_workspace"),
        secret.c.name == sa.bindparam("the_name"),
        secret.c.value == sa.bindparam("old_value"),
    )
    .values(**_SEALED)
)
_RESEAL_RUN = Statement(
    sa.update(run_secret)
    .where(run_secret.c.run == sa.bindparam("the_run"), run_secret.c.value == sa.bindparam("old_value"))
    .values(**_SEALED)
)
_ENDED_RUNS = Statement(
    sa.delete(run_secret).where(
        run_secret.c.step_id.in_(
            sa.select(step.c.id).where(sa.text("state IN ('completed', 'error', 'cancelled', 'paused')"))
        )
    )
)


def key_state(tx: Tx, *, share: bool = False) -> KeyState | None:
    """Which key encrypts; None before the first secret. With `share` it stays so until the end
    of the transaction."""
    row = tx.one(_SHARE if share else _READ)
    return None if row is None else KeyState(**json.loads(row[0]))


def claim_key(tx: Tx, key_id: str) -> KeyState:
    """Say that this key encrypts, unless another one was named before: then that one."""
    tx.count(_CLAIM, {"key": KEY_CHECK, "value": _text(KeyState(key_id))})
    return key_state(tx) or KeyState(key_id)


def change_key(tx: Tx, before: KeyState, after: KeyState) -> bool:
    """Replace the state; False when it is not as it was before. Everybody is told."""
    row = tx.one(_LOCK)
    if row is None or KeyState(**json.loads(row[0])) != before:
        return False
    tx.count(_WRITE, {"new_value": _text(after)})
    tx.wake("secrets")
    return True


def finish_rotation(tx: Tx, before: KeyState, after: KeyState) -> bool:
    """The same, once nothing is left under another key than the present one."""
    row = tx.one(_LOCK)
    if row is None or KeyState(**json.loads(row[0])) != before or count_stale(tx, before.key):
        return False
    return change_key(tx, before, after)


def count_stale(tx: Tx, key_id: str) -> int:
    """How many ciphertexts are not under this key."""
    total = 0
    for table in (secret, run_secret):
        row = tx.one(sa.select(sa.func.count()).select_from(table).where(table.c.key_id != key_id))
        total += int(row[0]) if row else 0
    return total


@off_loop
def stale_rows(tx: Tx, key_id: str, after: tuple[str, ...], limit: int) -> list[SealedRow]:
    """The next ciphertexts behind the place `after` (empty: from the begin) under another key."""
    found: list[SealedRow] = []
    if not after or after[0] == SECRET:
        place = after[1:] or ("", "")
        values = {"after_workspace": place[0], "after_name": place[1], "present_key": key_id, "n": limit}
        for row in tx.run(_STALE_SECRETS, values):
            found.append(SealedRow((SECRET, row[0], row[1]), Sealed(row[2], row[3])))
    if len(found) < limit:
        last = after[1] if after and after[0] == RUN else ""
        values = {"after_run": last, "present_key": key_id, "n": limit - len(found)}
        for row in tx.run(_STALE_RUNS, values):
            found.append(SealedRow((RUN, row[0]), Sealed(row[1], row[2])))
    return found


@off_loop
def reseal(tx: Tx, rows: Sequence[tuple[SealedRow, Sealed]]) -> int:
    """Store new ciphertexts of what has not changed since it was read; how many that were."""
    done = 0
    for row, new in rows:
        values = {"old_value": row.sealed.value, "new_value": new.value, "new_key_id": new.key_id}
        if row.where[0] == SECRET:
            named = {"in_workspace": row.where[1], "the_name": row.where[2]}
            done += tx.count(_RESEAL_SECRET, {**values, **named})
        else:
            done += tx.count(_RESEAL_RUN, {**values, "the_run": row.where[1]})
    return done


def forget_ended_runs(tx: Tx) -> None:
    """Drop what was left of runs that ended just before a crash."""
    tx.count(_ENDED_RUNS)


@off_loop
def forget_everything(tx: Tx) -> int:
    """Delete all secrets and the name of their key; how many secrets that were."""
    tx.count(sa.delete(run_secret))
    gone = tx.count(sa.delete(secret))
    tx.count(sa.delete(meta).where(meta.c.key == KEY_CHECK))
    return gone


def _text(state: KeyState) -> str:
    return json.dumps({name: value for name, value in state._asdict().items() if value is not None})

"""The outbox of workloads to be removed from their backends."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain.gpus import wanted
from nemo_jobs.domain.model import Json, StepRecord
from nemo_jobs.domain.names import STEP_ID
from nemo_jobs.domain.states import TERMINAL
from nemo_jobs.store import gpus
from nemo_jobs.store.records import dump, load
from nemo_jobs.store.sql import Row, Statement, Tx, listed
from nemo_jobs.store.tables import removal, step


@dataclass(frozen=True, slots=True)
class Removal:
    """A workload that is to be removed from its backend, as often as it takes."""

    key: str
    job_id: str
    provider: str
    profile: str
    host: str | None
    handle: Json
    wipe_storage: bool
    due_at: int
    tries: int


# A removal that is on the list already is done at the earlier time; storage is wiped if anybody
# asked for that.
_PUT = Statement(
    sa.text(
        "INSERT INTO removal "
        "(key, job_id, provider, profile, host, handle, wipe_storage, due_at, tries, gpus) "
        "VALUES (:key, :job_id, :provider, :profile, :host, :handle, :wipe_storage, :due_at, 0, :gpus) "
        "ON CONFLICT (key) DO UPDATE SET "
        "wipe_storage = CASE WHEN excluded.wipe_storage > removal.wipe_storage "
        "THEN excluded.wipe_storage ELSE removal.wipe_storage END, "
        "due_at = CASE WHEN excluded.due_at < removal.due_at THEN excluded.due_at ELSE removal.due_at END"
    )
)
_DUE = Statement(
    sa.select(*removal.c[Removal.__slots__])
    .where(
        removal.c.due_at <= sa.bindparam("now"),
        sa.or_(removal.c.host.is_(None), removal.c.host == sa.bindparam("host")),
    )
    .order_by(removal.c.due_at)
    .limit(sa.bindparam("n"))
)
# What was asked for meanwhile stays to be done.
_FORGET = Statement(
    sa.delete(removal)
    .where(removal.c.key == sa.bindparam("the_key"), removal.c.wipe_storage <= sa.bindparam("wiped"))
    .returning(removal.c.gpus)
)
_RETRY = Statement(
    sa.update(removal)
    .where(removal.c.key == sa.bindparam("the_key"))
    .values(due_at=sa.bindparam("due"), tries=removal.c.tries + 1)
)
_KNOWN_REMOVALS = Statement(
    lambda dialect: sa.select(removal.c.key).where(removal.c.key.in_(listed(dialect, "keys")))
)
#: Keys of one step: a full stop comes right behind a hyphen.
_OF_ANY_RUN = Statement(
    sa.select(removal.c.key)
    .where(removal.c.key > sa.bindparam("after"), removal.c.key < sa.bindparam("before"))
    .limit(1)
)
_KNOWN_STEPS = Statement(
    lambda dialect: sa.select(step.c.id, step.c.generation, step.c.state).where(
        step.c.id.in_(listed(dialect, "ids"))
    )
)


def put(tx: Tx, of: StepRecord, handle: Json, due_at: int, *, wipe_storage: bool) -> None:
    tx.count(
        _PUT,
        {
            "key": handle["key"],
            "job_id": of.job_id,
            "provider": of.provider,
            "profile": of.profile,
            "host": of.host,
            "handle": dump(handle),
            "wipe_storage": int(wipe_storage),
            "due_at": due_at,
            "gpus": wanted(of.spec["executor"]),
        },
    )


def due(tx: Tx, host: str | None, now: int, limit: int) -> list[Removal]:
    rows = tx.run(_DUE, {"host": host, "now": now, "n": limit})
    return [_removal(row) for row in rows]


def _removal(row: Row) -> Removal:
    values: Row = (*row[:5], load(row[5]), bool(row[6]), *row[7:])
    return Removal(*values)


def forget(tx: Tx, key: str, wiped: bool) -> None:
    row = tx.one(_FORGET, {"the_key": key, "wiped": int(wiped)})
    if row is not None and row[0]:
        gpus.removed(tx, key)


def retry(tx: Tx, key: str, due_at: int) -> None:
    tx.count(_RETRY, {"the_key": key, "due": due_at})


_KEY = re.compile(r"nj-(.+)-(\d+)")


def known(tx: Tx, keys: Iterable[str]) -> set[str]:
    """Keys on the list, and those of steps that may still be working under them."""
    asked = list(keys)
    found = {row[0] for row in tx.run(_KNOWN_REMOVALS, {"keys": json.dumps(asked)})}
    parts = {key: match for key in asked if (match := _KEY.fullmatch(key))}
    ids = [f"{STEP_ID}-{match[1]}" for match in parts.values()]
    rows = {row[0]: row for row in tx.run(_KNOWN_STEPS, {"ids": json.dumps(ids)})}
    for key, match in parts.items():
        row = rows.get(f"{STEP_ID}-{match[1]}")
        if row is not None and row[2] not in TERMINAL:
            # A run is started before its number is recorded: the next number counts as known. What
            # went on after a pause may still bear the name of the run before.
            if int(match[2]) <= row[1] + 1:
                found.add(key)
        elif key not in found and tx.run(
            _OF_ANY_RUN, {"after": f"nj-{match[1]}-", "before": f"nj-{match[1]}."}
        ):
            found.add(key)  # it goes with the last run of its step
    return found

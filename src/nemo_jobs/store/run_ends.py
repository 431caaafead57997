"""Tasks of runs that ended unwatched: somebody outside set the state of their step meanwhile.

Such a task stays as it was while its process lives, so that its own late report still counts. When
the run is proven to be over, it gets the state in which it was seen last.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import sqlalchemy as sa

from nemo_jobs.domain.model import TaskRecord
from nemo_jobs.domain.names import STEP_ID, task_name
from nemo_jobs.domain.states import TERMINAL, State
from nemo_jobs.store import tasks
from nemo_jobs.store.sql import Statement, Tx, listed
from nemo_jobs.store.tables import step, task
from nemo_jobs.store.tasks import SERVICE, TaskChange

_KEY = re.compile(r"nj-(.+)-\d+")
_OPEN = Statement(
    lambda dialect: (
        sa.select(task.c.step_id, task.c.name, task.c.created_by, step.c.state)
        .join(step, task.c.step_id == step.c.id)
        .where(
            task.c.step_id.in_(listed(dialect, "ids")),
            sa.text("task.state NOT IN ('completed', 'error', 'cancelled')"),
        )
    )
)
_STEP = Statement(sa.select(step.c.name, step.c.state).where(step.c.id == sa.bindparam("the_step")))


def _step_id(key: str) -> str:
    match = _KEY.fullmatch(key)
    return f"{STEP_ID}-{match[1]}" if match else ""


def open_ended(tx: Tx, keys: Iterable[str]) -> set[str]:
    """Those of these workload keys whose tasks are open in the record."""
    by_step: dict[str, list[str]] = {}
    for key in keys:
        by_step.setdefault(_step_id(key), []).append(key)
    found = tx.run(_OPEN, {"ids": json.dumps(list(by_step))})
    return {
        key
        for step_id, name, creator, state in found
        for key in by_step[step_id]
        if _belongs(key, name, creator, state)
    }


def _belongs(key: str, name: str, creator: str | None, state: str) -> bool:
    """Whether a task is one of this run. Of an ended step all are over that the service started."""
    return name == task_name(key) or (creator == SERVICE and State(state) in TERMINAL)


def settle_tasks(tx: Tx, key: str, seen: Sequence[TaskChange], now: int) -> None:
    """Nothing of the run is left: end its open tasks as they were seen, else as cancelled."""
    step_id = _step_id(key)
    row = tx.one(_STEP, {"the_step": step_id})
    if row is None:
        return
    name, state = row
    last = {change.name: change for change in seen if change.state in TERMINAL}
    for before in tasks.of_step(tx, step_id):
        if before.state not in TERMINAL and _belongs(key, before.name, before.created_by, state):
            tasks.save(tx, before, _ended(before, last.get(before.name), name, state), now, SERVICE)


def _ended(before: TaskRecord, change: TaskChange | None, step_name: str, step_state: str) -> TaskRecord:
    if change is None:
        message = f"its process was ended after step {step_name!r} had been reported as {step_state}"
        return replace(
            before, state=State.CANCELLED, status_details={**before.status_details, "message": message}
        )
    message = f"it ended after step {step_name!r} had been reported as {step_state}"
    return replace(
        before,
        state=change.state,
        status_details={**before.status_details, **change.status_details, "message": message},
        error_details=change.error_details or before.error_details,
        error_stack=change.error_stack or before.error_stack,
    )

"""Rows to records, by position."""

import functools
import json
from typing import Any

import sqlalchemy as sa
from pydantic_core import from_json, to_json

from nemo_jobs.domain.model import Json, StepRecord, TaskRecord
from nemo_jobs.domain.states import State
from nemo_jobs.store.sql import Row
from nemo_jobs.store.tables import attempt, job, step, task

_STATES = {state.value: state for state in State}  # quicker than the enum's own look-up

#: In the order of `JobRecord`.
JOB_COLUMNS: tuple[sa.ColumnElement[Any], ...] = (
    job.c.id,
    job.c.workspace,
    job.c.name,
    job.c.attempt_id,
    job.c.project,
    job.c.description,
    job.c.source,
    job.c.spec,
    job.c.platform_spec,
    job.c.fileset,
    job.c.output_location,
    job.c.ownership,
    job.c.custom_fields,
    job.c.auth_context,
    job.c.state,
    job.c.reason,
    job.c.message,
    job.c.since,
    job.c.status_details,
    job.c.error_details,
    job.c.created_at,
    job.c.updated_at,
    job.c.control,
)

#: The columns of `StepRecord`, in its order, then what only the store needs.
STEP_COLUMNS: tuple[sa.ColumnElement[Any], ...] = (
    step.c.id,
    step.c.attempt_id,
    step.c.job_id,
    step.c.workspace,
    job.c.name,
    step.c.name,
    step.c.ordinal,
    sa.func.coalesce(attempt.c.steps_total, job.c.steps_total),
    step.c.provider,
    step.c.profile,
    step.c.spec,
    step.c.state,
    step.c.reason,
    step.c.message,
    step.c.since,
    step.c.status_details,
    step.c.error_details,
    step.c.generation,
    step.c.handle,
    step.c.host,
    step.c.due_at,
    step.c.lease_token,
    step.c.active_since,
    step.c.active_used,
    step.c.stop_reason,
    step.c.log_cursor,
    step.c.db_version,
    step.c.created_at,
    step.c.updated_at,
    job.c.fileset,
    job.c.output_location,
    attempt.c.seq,
    job.c.auth_context,
    step.c.lease_owner,
    step.c.lease_until,
    # An attempt that is not the current one has a state of its own.
    sa.case((job.c.attempt_id == step.c.attempt_id, job.c.state), else_=attempt.c.state),
    job.c.attempt_id,
)

TASK_COLUMNS: tuple[sa.ColumnElement[Any], ...] = (
    task.c.id,
    task.c.step_id,
    task.c.workspace,
    task.c.name,
    task.c.rank,
    task.c.state,
    task.c.status_details,
    task.c.error_details,
    task.c.error_stack,
    task.c.db_version,
    task.c.created_by,
    task.c.created_at,
    task.c.updated_by,
    task.c.updated_at,
    task.c.reported_at,
)


def steps_joined() -> sa.Select[Any]:
    """All steps with their attempts and jobs, for `step_record`."""
    tables = step.join(attempt, step.c.attempt_id == attempt.c.id).join(job, step.c.job_id == job.c.id)
    return sa.select(*STEP_COLUMNS).select_from(tables)


def dump(value: Json) -> str:
    """JSON as it is stored: compact, in the order given."""
    if not value:
        return "{}"
    try:
        return to_json(value).decode()
    except ValueError:  # nested too deeply for it, or half of a surrogate pair
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def dump_or_none(value: Json | None) -> str | None:
    return None if value is None else dump(value)


def load(text: str) -> Json:
    if text == "{}":
        return {}
    try:
        value: Json = from_json(text)
    except ValueError:  # nested too deeply for it, or half of a surrogate pair
        value = json.loads(text)
    return value


#: Specs up to this length are parsed once and shared; records are never changed.
_SHARED_LENGTH = 4096


@functools.lru_cache(maxsize=512)
def _load_shared(text: str) -> Json:
    return load(text)


def _load_spec(text: str) -> Json:
    return _load_shared(text) if len(text) <= _SHARED_LENGTH else load(text)


def load_or_none(text: str | None) -> Json | None:
    return None if text is None else load(text)


def step_record(row: Row) -> StepRecord:
    """The record of a row of `steps_joined`.

    A handle of an earlier generation is left out: it is kept in the row only so that what it
    stored can be wiped one day.
    """
    generation = row[17]
    handle = load_or_none(row[18])
    if handle and not str(handle.get("key", "")).endswith(f"-{generation}"):
        handle = None
    values: Row = (
        *row[:10],
        _load_spec(row[10]),
        _STATES[row[11]],
        *row[12:15],
        load(row[15]),
        load_or_none(row[16]),
        generation,
        handle,
        *row[19:25],
        load_or_none(row[25]),
        *row[26:32],
        _load_spec(row[32]),
    )
    return StepRecord(*values)


def task_record(row: Row) -> TaskRecord:
    values: Row = (*row[:5], _STATES[row[5]], load(row[6]), load_or_none(row[7]), *row[8:])
    return TaskRecord(*values)


def text(value: str) -> str:
    """`value` as every database can store it: PostgreSQL refuses the NUL character."""
    return value.replace("\0", "\ufffd") if "\0" in value else value

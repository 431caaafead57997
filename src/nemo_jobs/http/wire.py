"""Records as bytes of the wire.

Hot answers copy the JSON texts of the database as they stand; nothing is parsed on the way.
"""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from time import gmtime, strftime
from typing import TYPE_CHECKING, Any

from nemo_jobs.domain.model import JobRecord, Json, LogLine, StepRecord, TaskRecord

if TYPE_CHECKING:
    from nemo_jobs.store.attempts import AttemptRecord
    from nemo_jobs.store.lookup import StatusTree
    from nemo_jobs.store.workspaces import WorkspaceRecord

Header = tuple[bytes, bytes]
JSON_TYPE: Header = (b"content-type", b"application/json")


class Reply:
    """A whole answer in memory."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, body: bytes, status: int = 200, headers: Iterable[Header] = (JSON_TYPE,)) -> None:
        self.body = body
        self.status = status
        self.headers = [(b"content-length", str(len(body)).encode()), *headers]


def json_reply(value: Any, status: int = 200, headers: Iterable[Header] = ()) -> Reply:
    return Reply(dumps(value).encode(), status, (JSON_TYPE, *headers))


def no_content() -> Reply:
    reply = Reply(b"", 204, ())
    reply.headers = []
    return reply


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def time_text(at: int) -> str:
    """Microseconds since 1970 as ISO-8601 in UTC, always with six decimals and `Z`."""
    second, micro = divmod(at, 1_000_000)
    return f"{_second_text(second)}.{micro:06d}Z"


@lru_cache(maxsize=4096)
def _second_text(second: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(second))


def _text(value: str | None) -> str:
    return "null" if value is None else quoted(value)


def job_text(job: JobRecord) -> str:
    """A job; the JSON columns are copied."""
    return (
        f'{{"id":"{job.id}","attempt_id":"{job.attempt_id}","name":"{job.name}","workspace":"{job.workspace}",'
        f'"project":{_text(job.project)},"description":{_text(job.description)},"source":{quoted(job.source)},'
        f'"spec":{job.spec},"platform_spec":{job.platform_spec},"fileset":{quoted(job.fileset)},'
        f'"output_location":{_text(job.output_location)},"status":"{job.state}",'
        f'"status_details":{job.status_details},"error_details":{job.error_details or "null"},'
        f'"created_at":"{time_text(job.created_at)}","updated_at":"{time_text(job.updated_at)}",'
        f'"ownership":{job.ownership or "null"},"custom_fields":{job.custom_fields or "null"},'
        f'"control":{job.control or "null"},"reason":{why_text(job)}}}'
    )


def attempt_text(attempt: "AttemptRecord") -> str:
    """An attempt; the JSON columns are copied."""
    current = "true" if attempt.is_current else "false"
    return (
        f'{{"id":"{attempt.id}","name":"{attempt.name}","job":"{attempt.job_id}",'
        f'"workspace":"{attempt.workspace}","seq":{attempt.seq},"spec":{attempt.spec},'
        f'"platform_spec":{attempt.platform_spec},"status":"{attempt.state}",'
        f'"status_details":{attempt.status_details},"error_details":{attempt.error_details or "null"},'
        f'"is_current":{current},"created_at":"{time_text(attempt.created_at)}",'
        f'"updated_at":"{time_text(attempt.updated_at)}","reason":{why_text(attempt)}}}'
    )


def job_reply(job: JobRecord, status: int = 200) -> Reply:
    return Reply(job_text(job).encode(), status)


def why_text(job: "JobRecord | AttemptRecord") -> str:
    return f'{{"code":{quoted(job.reason)},"message":{quoted(job.message)},"since":"{time_text(job.since)}"}}'


def page_reply(
    items: Sequence[str], *, page: int, page_size: int, total: int, sort: str, where: Any = None
) -> Reply:
    """A page of items that are JSON texts already."""
    tail = page_tail(len(items), page=page, page_size=page_size, total=total, sort=sort, where=where)
    return Reply(f"{PAGE_HEAD}{','.join(items)}{tail}".encode())


#: What stands before the items of a page.
PAGE_HEAD = '{"data":['


def page_tail(count: int, *, page: int, page_size: int, total: int, sort: str, where: Any = None) -> str:
    """What stands behind the `count` items of a page."""
    pages = max(1, -(-total // page_size))
    shown = "" if where is None else f',"filter":{dumps(where)}'
    return (
        f'],"sort":{quoted(sort)}{shown},"pagination":{{"total_results":{total},'
        f'"total_pages":{pages},"page_size":{page_size},"page":{page},"current_page_size":{count}}}}}'
    )


def step_json(step: StepRecord) -> Json:
    """A step as contract 4.2 shows it."""
    return {
        "id": step.id,
        "entity_id": step.id,
        "parent": step.attempt_id,
        "attempt_id": step.attempt_id,
        "name": step.name,
        "workspace": step.workspace,
        "project": None,
        "config": {**(step.spec.get("config") or {}), "_step_spec_name": step.name},
        "status": step.state,
        "status_details": step.status_details,
        "error_details": step.error_details,
        "created_by": SERVICE,
        "created_at": time_text(step.created_at),
        "updated_by": SERVICE,
        "updated_at": time_text(step.updated_at),
        "db_version": step.db_version,
    }


SERVICE = "service:jobs"


def step_in_context(step: StepRecord) -> Json:
    """A step as controllers list it; keys without a value are left out."""
    shown = {
        "id": step.id,
        "job": step.job,
        "attempt_id": step.attempt_id,
        "fileset": step.fileset,
        "artifact_base_path": f"jobs/{step.job}" if step.output_location else None,
        "workspace": step.workspace,
        "name": step.name,
        "step_spec": step.spec,
        "status": step.state,
        "status_details": step.status_details,
        "error_details": step.error_details,
        "auth_context": step.auth_context,
        "created_at": time_text(step.created_at),
        "updated_at": time_text(step.updated_at),
    }
    return {key: value for key, value in shown.items() if value is not None}


def task_json(task: TaskRecord) -> Json:
    return {
        "id": task.id,
        "entity_id": task.id,
        "parent": task.step_id,
        "step_id": task.step_id,
        "name": task.name,
        "workspace": task.workspace,
        "project": None,
        "status": task.state,
        "status_details": task.status_details,
        "error_details": task.error_details,
        "error_stack": task.error_stack,
        "created_by": task.created_by,
        "created_at": time_text(task.created_at),
        "updated_by": task.updated_by,
        "updated_at": time_text(task.updated_at),
        "db_version": task.db_version,
    }


def status_text(tree: "StatusTree") -> str:
    """The status tree; details of steps and tasks are objects there, never null."""
    job = tree.job
    inner = ",".join(dumps(_step_status(step, tasks)) for step, tasks in tree.steps)
    return (
        f'{{"id":"{job.id}","name":"{job.name}","created_at":"{time_text(job.created_at)}",'
        f'"updated_at":"{time_text(job.updated_at)}","status":"{job.state}",'
        f'"error_details":{job.error_details or "null"},"status_details":{job.status_details},'
        f'"reason":{why_text(job)},"steps":[{inner}]}}'
    )


def _step_status(step: StepRecord, tasks: Sequence[TaskRecord]) -> Json:
    return {**_node(step), "tasks": [{**_node(task), "error_stack": task.error_stack} for task in tasks]}


def _node(record: StepRecord | TaskRecord) -> Json:
    return {
        "id": record.id,
        "name": record.name,
        "created_at": time_text(record.created_at),
        "updated_at": time_text(record.updated_at),
        "status": record.state,
        "error_details": record.error_details or {},
        "status_details": record.status_details,
    }


def line_text(line: LogLine) -> str:
    """A log line; the other stream than stdout is told by a prefix, as clients know it."""
    message = f"[stderr] {line.text}" if line.stream == "stderr" else line.text
    return (
        f'{{"timestamp":"{time_text(line.at)}","job":{quoted(line.job)},"job_step":{quoted(line.step)},'
        f'"job_task":{quoted(line.task)},"message":{quoted(message)}}}'
    )


def log_reply(lines: Sequence[LogLine], total: int, after: str | None, before: str | None) -> Reply:
    text = (
        f'{{"data":[{",".join(map(line_text, lines))}],"total":{total},'
        f'"next_page":{_text(after)},"prev_page":{_text(before)}}}'
    )
    return Reply(text.encode())


def workspace_json(workspace: "WorkspaceRecord") -> Json:
    return {
        "id": workspace.id,
        "name": workspace.name,
        "description": workspace.description,
        "created_at": time_text(workspace.created_at),
        "created_by": workspace.created_by,
        "updated_at": time_text(workspace.updated_at),
        "updated_by": workspace.updated_by,
    }

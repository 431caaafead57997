"""Attempts of a job: each run with its own steps, tasks and details.

The routes without an attempt in their path show and write the current one. A write to an attempt
that is not current any more changes that attempt alone, never the job.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from nemo_jobs.domain.model import Json
from nemo_jobs.domain.spec import JsonObject
from nemo_jobs.domain.states import State
from nemo_jobs.http.downloads import stream_out
from nemo_jobs.http.errors import BadInput, Refused
from nemo_jobs.http.jobs import JOBS, check_page_size
from nemo_jobs.http.logs import selector
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.steps import (
    StepListQuery,
    get_step,
    get_task,
    in_context,
    json_filter,
    list_tasks,
    one_or_many,
    patch_step_status,
    put_task,
    step_filter,
)
from nemo_jobs.http.wire import (
    JSON_TYPE,
    PAGE_HEAD,
    Reply,
    attempt_text,
    dumps,
    page_reply,
    page_tail,
)
from nemo_jobs.store import attempts as store
from nemo_jobs.store import jobs

ATTEMPTS = JOBS + "/{name}/attempts"
ATTEMPT = JOBS + "/{job}/attempts/{name}"
DETAILS = JOBS + "/{job}/attempts/{name}/status-details"
STEPS = JOBS + "/{job}/attempts/{name}/steps"
STEP = JOBS + "/{job}/attempts/{attempt}/steps/{name}"
TASKS = STEP + "/tasks"
TASK = JOBS + "/{job}/attempts/{attempt}/steps/{step}/tasks/{name}"


class AttemptListQuery(BaseModel):
    page: Annotated[int, Field(gt=0)] = 1
    page_size: Annotated[int, Field(gt=0)] = 25
    sort: Literal["seq", "-seq"] = "-seq"


class AttemptFilter(BaseModel):
    """What the list of attempts can be narrowed by."""

    model_config = ConfigDict(extra="forbid")

    status: Annotated[list[State], BeforeValidator(one_or_many)] | None = None


class DetailsQuery(BaseModel):
    """What the writer expects; otherwise nothing is written."""

    expected_step_id: str | None = None
    expected_step_status: State | None = None


_OBJECT: TypeAdapter[Json] = TypeAdapter(JsonObject)


async def list_attempts(api: Api, request: Request) -> Reply | None:
    """A page; one that is too large to be held in memory is sent as it is read."""
    query = request.query(AttemptListQuery)
    check_page_size(query.page_size)
    narrow = attempt_filter(request.pairs())
    path = request.path
    asked = store.AttemptQuery(
        states=None if narrow.status is None else tuple(narrow.status),
        sort=query.sort,
        page=query.page,
        page_size=query.page_size,
    )
    found = await api.parts.db.read(store.list_attempts, path["workspace"], path["name"], asked)
    shown: Json = {
        **{"page": query.page, "page_size": query.page_size, "total": found.total, "sort": query.sort},
        "where": narrow.model_dump(mode="json", exclude_none=True) or None,
    }
    if not found.rest:
        return page_reply([attempt_text(attempt) for attempt in found.attempts], **shown)
    await stream_out(request, 200, (JSON_TYPE,), _pieces(api, found, shown))
    return None


async def _pieces(api: Api, found: store.AttemptPage, shown: Json) -> AsyncIterator[bytes]:
    """A page bit by bit. What is deleted meanwhile is missing in it, and not counted."""
    count, between, attempts, rest = 0, PAGE_HEAD, found.attempts, found.rest
    while attempts or rest:
        for attempt in attempts:
            yield f"{between}{attempt_text(attempt)}".encode()
            count, between = count + 1, ","
        attempts, rest = await api.parts.db.read(store.rows_of, rest) if rest else ([], ())
    yield f"{'' if count else between}{page_tail(count, **shown)}".encode()


async def get_attempt(api: Api, request: Request) -> Reply:
    path = request.path
    found = await api.parts.db.read(
        store.get_attempt, path["workspace"], path["job"], selector(path["name"]), point=True
    )
    return Reply(attempt_text(found).encode())


async def patch_attempt_details(api: Api, request: Request) -> Reply:
    query = request.query(DetailsQuery)
    if query.expected_step_status is not None and query.expected_step_id is None:
        raise Refused(422, "expected_step_status needs expected_step_id: which step is meant")
    details = await request.parsed(_OBJECT)
    path, parts = request.path, api.parts
    expected = None
    if query.expected_step_id is not None:
        expected = jobs.Expected(query.expected_step_id, query.expected_step_status)
    await parts.db.write(
        jobs.merge_status_details,
        path["workspace"],
        path["job"],
        details,
        parts.clock.now(),
        attempt=selector(path["name"]),
        expected=expected,
    )
    return Reply(b"null")


async def list_attempt_steps(api: Api, request: Request) -> Reply:
    query = request.query(StepListQuery)
    check_page_size(query.page_size)
    narrow = step_filter(request.pairs())
    path = request.path
    attempt = await api.parts.db.read(
        store.get_attempt, path["workspace"], path["job"], selector(path["name"]), point=True
    )
    asked = jobs.StepQuery(
        workspace=path["workspace"],
        job=narrow.job,
        states=None if narrow.status is None else tuple(narrow.status),
        source=narrow.source,
        cleanup_pending=narrow.task_cleanup_pending,
        sort=query.sort,
        page=query.page,
        page_size=query.page_size,
        attempt_id=attempt.id,
    )
    steps, total = await api.parts.db.read(jobs.list_steps, asked)
    return page_reply(
        [dumps(in_context(request, step)) for step in steps],
        page=query.page,
        page_size=query.page_size,
        total=total,
        sort=query.sort,
        where=narrow.model_dump(mode="json", exclude_none=True) or None,
    )


def attempt_filter(pairs: Sequence[tuple[str, str]]) -> AttemptFilter:
    """The filter of a query, from the JSON form and the bracket form. Raises BadInput."""
    given: Json = {}
    for key, value in pairs:
        if key == "filter":
            given.update(json_filter(value, "status"))
        elif key.startswith("filter[") and key.endswith("]"):
            name = key[len("filter[") : -1]
            given[name] = f"{given[name]},{value}" if name in given else value
    try:
        return AttemptFilter.model_validate(given)
    except ValidationError as error:
        raise BadInput(error, "query", "filter") from None


_MISSING = (404, 422)
_CHANGED = (404, 409, 422)
OPERATIONS = (
    Operation(
        "GET",
        ATTEMPTS,
        list_attempts,
        "List the attempts of a job",
        "AttemptPage",
        query="AttemptListQuery",
        filter="AttemptsFilter",
        errors=_MISSING,
    ),
    Operation(
        "GET",
        ATTEMPT,
        get_attempt,
        "Get an attempt by id or number, or 'current'",
        "Attempt",
        errors=_MISSING,
    ),
    Operation(
        "PATCH",
        DETAILS,
        patch_attempt_details,
        "Merge keys into the status details of an attempt",
        "Null",
        query="DetailsQuery",
        body="Object",
        errors=_CHANGED,
    ),
    Operation(
        "GET",
        STEPS,
        list_attempt_steps,
        "List the steps of an attempt",
        "StepPage",
        query="StepListQuery",
        filter="StepsFilter",
        errors=_MISSING,
    ),
    Operation(
        "GET", STEP, get_step, "Get a step of an attempt", "Step", errors=_MISSING, name="get_attempt_step"
    ),
    Operation(
        "PATCH",
        STEP + "/status",
        patch_step_status,
        "Set the status of a step of an attempt",
        "Step",
        body="StatusUpdate",
        errors=_CHANGED,
        name="patch_attempt_step_status",
    ),
    Operation(
        "GET",
        TASKS,
        list_tasks,
        "List the tasks of a step of an attempt",
        "TaskList",
        errors=_MISSING,
        name="list_attempt_tasks",
    ),
    Operation(
        "GET", TASK, get_task, "Get a task of an attempt", "Task", errors=_MISSING, name="get_attempt_task"
    ),
    Operation(
        "PUT",
        TASK,
        put_task,
        "Create or update a task of an attempt",
        "Task",
        body="TaskUpdate",
        errors=_MISSING,
        name="put_attempt_task",
    ),
)

"""Steps and tasks: what controllers list and what tasks report."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from nemo_jobs.domain.model import Json, StepRecord
from nemo_jobs.domain.names import NAME_RULE, is_name
from nemo_jobs.domain.spec import JsonObject, Text
from nemo_jobs.domain.states import State
from nemo_jobs.http.errors import BadInput, Refused
from nemo_jobs.http.identity import caller, readable, shows_to_services
from nemo_jobs.http.jobs import JOBS, check_page_size
from nemo_jobs.http.logs import selector
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.walks import Walker
from nemo_jobs.http.wire import Reply, dumps, json_reply, page_reply, step_in_context, step_json, task_json
from nemo_jobs.store import jobs as store

STEPS = JOBS + "/{name}/steps"
STEP = JOBS + "/{job}/steps/{name}"
TASKS = STEP + "/tasks"
TASK = JOBS + "/{job}/steps/{step}/tasks/{name}"


class StepListQuery(BaseModel):
    page: Annotated[int, Field(gt=0)] = 1
    page_size: Annotated[int, Field(gt=0)] = 25
    sort: Literal["created_at", "-created_at", "updated_at", "-updated_at"] = "created_at"


def one_or_many(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


class StepFilter(BaseModel):
    """What the steps list can be narrowed by; an absent one does not narrow."""

    model_config = ConfigDict(extra="forbid")

    job: str | None = None
    status: Annotated[list[State], BeforeValidator(one_or_many)] | None = None
    source: str | None = None
    task_cleanup_pending: bool | None = None


class StatusUpdate(BaseModel):
    status: State
    expected_step_id: Text | None = None
    status_details: JsonObject | None = None
    error_details: JsonObject | None = None


class TaskUpdate(BaseModel):
    status: State = State.PENDING
    status_details: JsonObject | None = None
    error_details: JsonObject | None = None
    error_stack: Text | None = None


_STATUS_UPDATE = TypeAdapter(StatusUpdate)
_TASK_UPDATE = TypeAdapter(TaskUpdate)


async def list_steps(api: Api, request: Request) -> Reply:
    query = request.query(StepListQuery)
    check_page_size(query.page_size)
    narrow = step_filter(request.pairs())
    workspace, job = request.path["workspace"], request.path["name"]
    if job != "-":
        narrow = narrow.model_copy(update={"job": job})
    who = request.access and (request.access.principal, request.access.token_id)
    wanted = (who, workspace, narrow.model_dump_json(), query.sort, query.page_size)
    walker = Walker(request.scope.get("client"), wanted)
    after = api.walks.start_of(walker, query.page)
    asked = store.StepQuery(
        workspace=None if workspace == "-" else workspace,
        job=narrow.job,
        states=None if narrow.status is None else tuple(narrow.status),
        source=narrow.source,
        cleanup_pending=narrow.task_cleanup_pending,
        sort=query.sort,
        page=query.page,
        page_size=query.page_size,
        after=after,
        within=readable(request) if workspace == "-" else None,
    )
    steps, total = await api.parts.db.read(store.list_steps, asked)
    if len(steps) == query.page_size:
        at = steps[-1].created_at if query.sort.endswith("created_at") else steps[-1].updated_at
        api.walks.gave(walker, query.page, (at, steps[-1].id))
    return page_reply(
        [dumps(in_context(request, step)) for step in steps],
        page=query.page,
        page_size=query.page_size,
        total=total,
        sort=query.sort,
        where=narrow.model_dump(mode="json", exclude_none=True) or None,
    )


async def get_step(api: Api, request: Request) -> Reply:
    path = request.path
    step = await api.parts.db.read(
        store.get_step, path["workspace"], path["job"], path["name"], _attempt(path), point=True
    )
    return json_reply(step_json(step))


async def patch_step_status(api: Api, request: Request) -> Reply:
    update = await request.parsed(_STATUS_UPDATE)
    path, parts = request.path, api.parts
    step = await parts.db.write(
        store.update_step_status,
        path["workspace"],
        path["job"],
        path["name"],
        state=update.status,
        expected_step_id=update.expected_step_id,
        status_details=update.status_details or {},
        error_details=update.error_details or None,
        now=parts.clock.now(),
        actor=caller(request).actor,
        attempt=_attempt(path),
        retention=parts.retention,
    )
    return json_reply(step_json(step))


async def list_tasks(api: Api, request: Request) -> Reply:
    path = request.path
    tasks = await api.parts.db.read(
        store.list_tasks, path["workspace"], path["job"], path["name"], _attempt(path), point=True
    )
    return json_reply({"data": [task_json(task) for task in tasks]})


async def get_task(api: Api, request: Request) -> Reply:
    path = request.path
    task = await api.parts.db.read(
        store.get_task,
        path["workspace"],
        path["job"],
        path["step"],
        path["name"],
        _attempt(path),
        point=True,
    )
    return json_reply(task_json(task))


async def put_task(api: Api, request: Request) -> Reply:
    update = await request.parsed(_TASK_UPDATE)
    path, parts = request.path, api.parts
    check_task_name(path["name"])
    task = await parts.db.write(
        store.put_task,
        path["workspace"],
        path["job"],
        path["step"],
        path["name"],
        state=update.status,
        status_details=update.status_details,
        error_details=update.error_details,
        error_stack=update.error_stack,
        now=parts.clock.now(),
        actor=caller(request).actor,
        attempt=_attempt(path),
    )
    return json_reply(task_json(task))


def _attempt(path: Mapping[str, str]) -> int | str | None:
    """The attempt that a path names; the routes without one are about the current attempt."""
    return selector(path.get("attempt"))


def in_context(request: Request, step: StepRecord) -> Json:
    """A step as controllers list it; for whom its job runs is shown to services only."""
    shown = step_in_context(step)
    if not shows_to_services(request, step.workspace):
        shown.pop("auth_context", None)
    return shown


def step_filter(pairs: Sequence[tuple[str, str]]) -> StepFilter:
    """The filter of a query, from the JSON form and the bracket form. Raises BadInput."""
    given: Json = {}
    for key, value in pairs:
        if key == "filter":
            given.update(json_filter(value, "job, status, source or task_cleanup_pending"))
        elif key.startswith("filter[") and key.endswith("]"):
            name = key[len("filter[") : -1]
            if name == "status" and name in given:
                value = f"{given[name]},{value}"
            given[name] = value
    try:
        return StepFilter.model_validate(given)
    except ValidationError as error:
        raise BadInput(error, "query", "filter") from None


def json_filter(text: str, known: str) -> Json:
    """A filter in its JSON form. Raises Refused, naming what is `known`."""
    try:
        value = from_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Refused(422, f"filter must be a JSON object with {known}")
    return value


def check_task_name(name: str) -> None:
    """Raises Refused for what can't be the name of a task."""
    if not is_name(name):
        raise Refused(422, f"{name!r} is not a valid task name; a name has {NAME_RULE}")


_MISSING = (404, 422)
OPERATIONS = (
    Operation(
        "GET",
        STEPS,
        list_steps,
        "List steps",
        "StepPage",
        query="StepListQuery",
        filter="StepsFilter",
        errors=(422,),
    ),
    Operation("GET", STEP, get_step, "Get a step", "Step", errors=_MISSING),
    Operation(
        "PATCH",
        STEP + "/status",
        patch_step_status,
        "Set the status of a step",
        "Step",
        body="StatusUpdate",
        errors=(404, 409, 422),
    ),
    Operation("GET", TASKS, list_tasks, "List the tasks of a step", "TaskList", errors=_MISSING),
    Operation("GET", TASK, get_task, "Get a task", "Task", errors=_MISSING),
    Operation("PUT", TASK, put_task, "Create or update a task", "Task", body="TaskUpdate", errors=_MISSING),
)

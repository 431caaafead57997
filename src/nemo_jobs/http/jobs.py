"""Jobs: create, list, get, delete, cancel, pause, resume, status."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.domain.admission import check_profiles, translate
from nemo_jobs.domain.filters import Node, echo, parse_filter
from nemo_jobs.domain.model import Conflict, Invalid, JobRecord, NotFound
from nemo_jobs.domain.names import fileset_name, generated_job_name
from nemo_jobs.domain.spec import CreateJobRequest, JobSpec, JsonObject
from nemo_jobs.domain.states import Trigger
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.identity import caller
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, dumps, job_reply, job_text, no_content, page_reply, status_text
from nemo_jobs.store import jobs as store

JOBS = "/apis/jobs/v2/workspaces/{workspace}/jobs"
JOB = JOBS + "/{name}"
MAX_PAGE_SIZE = 1000

_CREATE = TypeAdapter(CreateJobRequest)
_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(JsonObject)


class JobListQuery(BaseModel):
    page: Annotated[int, Field(gt=0)] = 1
    page_size: Annotated[int, Field(gt=0)] = 10
    sort: Literal["created_at", "-created_at", "updated_at", "-updated_at", "source", "-source"] = (
        "-created_at"
    )


async def create_job(api: Api, request: Request) -> Reply:
    """The first check that fails answers, in the order of the contract."""
    who = caller(request)
    body = await request.parsed(_CREATE)
    parts = api.parts
    spec = translate(body.platform_spec, parts.profiles)
    check_profiles(spec, parts.profiles)
    workspace = request.path["workspace"]
    later = _not_there_yet(body, spec)
    if later is not None:
        await _name_is_free(api, workspace, body.name)
        raise Invalid(later)
    new = _new_job(workspace, body, spec, who.context)
    try:
        job = await _store(api, new, who.actor)
    except NotFound as error:
        raise Invalid(str(error)) from None
    return job_reply(job, 201)


async def _store(api: Api, new: store.NewJob, actor: str) -> JobRecord:
    """Store the job; the engine beside us, if it has a place, holds it from its first moment."""
    db, engine, now = api.parts.db, api.parts.engine, api.parts.clock.now()
    executor = new.platform_spec["steps"][0]["executor"]
    coming = engine and engine.arrive(executor["provider"], executor["profile"])
    if not engine or not coming:
        return await db.write(store.create_job, new, now, actor)
    arrival, lease = coming
    held = None
    try:
        if lease is None:
            return await db.write(store.create_job, new, now, actor)
        job, held = await db.write(store.create_held, new, lease, now, actor)
        return job
    finally:
        engine.arrived(arrival, held)


async def list_jobs(api: Api, request: Request) -> Reply:
    query = request.query(JobListQuery)
    check_page_size(query.page_size)
    where: Node | None = parse_filter(request.pairs())
    workspace = request.path["workspace"]
    asked = store.JobQuery(
        workspace=None if workspace == "-" else workspace,
        where=where,
        sort=query.sort,
        page=query.page,
        page_size=query.page_size,
    )
    jobs, total = await api.parts.db.read(store.list_jobs, asked)
    return page_reply(
        [job_text(job) for job in jobs],
        page=query.page,
        page_size=query.page_size,
        total=total,
        sort=query.sort,
        where=None if where is None else echo(where),
    )


async def get_job(api: Api, request: Request) -> Reply:
    path = request.path
    return job_reply(await api.parts.db.read(store.get_job, path["workspace"], path["name"], point=True))


async def delete_job(api: Api, request: Request) -> Reply:
    path, parts = request.path, api.parts
    await parts.db.write(store.delete_job, path["workspace"], path["name"], parts.clock.now())
    return no_content()


async def cancel_job(api: Api, request: Request) -> Reply:
    return await _ask(api, request, Trigger.CANCEL)


async def pause_job(api: Api, request: Request) -> Reply:
    return await _ask(api, request, Trigger.PAUSE)


async def resume_job(api: Api, request: Request) -> Reply:
    return await _ask(api, request, Trigger.RESUME)


async def get_status(api: Api, request: Request) -> Reply:
    path = request.path
    tree = await api.parts.db.read(store.status_tree, path["workspace"], path["name"], point=True)
    return Reply(status_text(tree).encode())


async def patch_status_details(api: Api, request: Request) -> Reply:
    details = await request.parsed(_OBJECT)
    path, parts = request.path, api.parts
    await parts.db.write(
        store.merge_status_details, path["workspace"], path["name"], details, parts.clock.now()
    )
    return Reply(b"null")


def check_page_size(page_size: int) -> None:
    if page_size > MAX_PAGE_SIZE:
        raise Refused(422, f"page_size is {page_size}; at most {MAX_PAGE_SIZE} are allowed")


async def _ask(api: Api, request: Request, trigger: Trigger) -> Reply:
    path, parts = request.path, api.parts
    who = caller(request)
    job = await parts.db.write(
        store.request, path["workspace"], path["name"], trigger, parts.clock.now(), who.actor
    )
    return job_reply(job)


def _not_there_yet(body: CreateJobRequest, spec: JobSpec) -> str | None:
    """Why a job can't be made because of what it refers to; checked after the name is free."""
    for step in spec.steps:
        for variable in step.environment or ():
            if variable.from_secret is not None:
                return (
                    f"step {step.name!r}: secret {variable.from_secret.name!r} of variable {variable.name!r} "
                    "can't be read; it is missing or closed to you"
                )
    if body.project is not None:
        return f"project {body.project!r} does not exist; create it first or leave it out"
    if body.output_location is not None:
        return f"output_location {body.output_location!r}: no such fileset, or it is closed to you"
    return None


async def _name_is_free(api: Api, workspace: str, name: str | None) -> None:
    if name is None:
        return
    try:
        await api.parts.db.read(store.get_job, workspace, name, point=True)
    except NotFound:
        return
    raise Conflict(
        f"job name {name!r} is taken in workspace {workspace!r}; choose another or delete the old job"
    )


def _new_job(workspace: str, body: CreateJobRequest, spec: JobSpec, context: str) -> store.NewJob:
    name = body.name or generated_job_name(body.source)
    return store.NewJob(
        workspace=workspace,
        name=name,
        project=body.project,
        description=body.description,
        source=body.source,
        spec=dumps(body.spec),
        platform_spec=spec.model_dump(mode="json"),
        fileset=body.output_location or fileset_name(name),
        output_location=body.output_location,
        ownership=None if body.ownership is None else dumps(body.ownership),
        custom_fields=None if body.custom_fields is None else dumps(body.custom_fields),
        auth_context=context,
    )


_MISSING = (404, 422)
OPERATIONS = (
    Operation(
        "POST", JOBS, create_job, "Create a job", "Job", 201, body="CreateJobRequest", errors=(409, 422)
    ),
    Operation(
        "GET",
        JOBS,
        list_jobs,
        "List jobs",
        "JobPage",
        query="JobListQuery",
        filter="JobFilter",
        errors=(400, 404, 422),
    ),
    Operation("GET", JOB, get_job, "Get a job", "Job", errors=_MISSING),
    Operation("DELETE", JOB, delete_job, "Delete a job that has ended", None, 204, errors=(404, 409, 422)),
    Operation("POST", JOB + "/cancel", cancel_job, "Cancel a job", "Job", errors=_MISSING),
    Operation("POST", JOB + "/pause", pause_job, "Pause a job", "Job", errors=_MISSING),
    Operation("POST", JOB + "/resume", resume_job, "Resume a paused job", "Job", errors=_MISSING),
    Operation(
        "GET",
        JOB + "/status",
        get_status,
        "Status of a job, its steps and tasks",
        "JobStatus",
        errors=_MISSING,
    ),
    Operation(
        "PATCH",
        JOB + "/status-details",
        patch_status_details,
        "Merge keys into the status details of a job",
        "Null",
        body="Object",
        errors=_MISSING,
    ),
)

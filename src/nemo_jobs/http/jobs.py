"""Jobs: create, list, get, delete, cancel, pause, resume, status."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.domain.filters import And, Compare, Node, Op, echo, parse_filter
from nemo_jobs.domain.spec import JsonObject
from nemo_jobs.domain.states import Trigger
from nemo_jobs.http.create import create_job
from nemo_jobs.http.downloads import stream_out
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.identity import caller, readable
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import (
    JSON_TYPE,
    PAGE_HEAD,
    Reply,
    job_reply,
    job_text,
    no_content,
    page_reply,
    page_tail,
    status_text,
)
from nemo_jobs.store import jobs as store

JOBS = "/apis/jobs/v2/workspaces/{workspace}/jobs"
JOB = JOBS + "/{name}"
MAX_PAGE_SIZE = 1000

_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(JsonObject)


class JobListQuery(BaseModel):
    page: Annotated[int, Field(gt=0)] = 1
    page_size: Annotated[int, Field(gt=0)] = 10
    sort: Literal["created_at", "-created_at", "updated_at", "-updated_at", "source", "-source"] = (
        "-created_at"
    )


async def list_jobs(api: Api, request: Request) -> Reply | None:
    """A page; one that is too large to be held in memory is sent as it is read."""
    query = request.query(JobListQuery)
    check_page_size(query.page_size)
    where: Node | None = parse_filter(request.pairs())
    workspace = request.path["workspace"]
    asked = store.JobQuery(
        workspace=None if workspace == "-" else workspace,
        where=_readable_only(request, where) if workspace == "-" else where,
        sort=query.sort,
        page=query.page,
        page_size=query.page_size,
    )
    found = await api.parts.db.read(store.list_jobs, asked)
    shown: dict[str, Any] = {
        **{"page": query.page, "page_size": query.page_size, "total": found.total, "sort": query.sort},
        "where": None if where is None else echo(where),
    }
    if not found.rest:
        return page_reply([job_text(job) for job in found.jobs], **shown)
    await stream_out(request, 200, (JSON_TYPE,), _pieces(api, found, shown))
    return None


async def _pieces(api: Api, found: store.JobPage, shown: dict[str, Any]) -> AsyncIterator[bytes]:
    """A page bit by bit. A job that is deleted meanwhile is missing in it, and not counted."""
    count, between, jobs, rest = 0, PAGE_HEAD, found.jobs, found.rest
    while jobs or rest:
        for job in jobs:
            yield f"{between}{job_text(job)}".encode()
            count, between = count + 1, ","
        jobs, rest = await api.parts.db.read(store.rows_of, rest) if rest else ([], ())
    yield f"{'' if count else between}{page_tail(count, **shown)}".encode()


def _readable_only(request: Request, where: Node | None) -> Node | None:
    """A filter that finds nothing where the caller may not read."""
    within = readable(request)
    if within is None:
        return where
    here = Compare("workspace", Op.IN, tuple(sorted(within)))
    return here if where is None else And((here, where))


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
        store.request, path["workspace"], path["name"], trigger, parts.clock.now(), who.actor, parts.retention
    )
    return job_reply(job)


_MISSING = (404, 422)
OPERATIONS = (
    Operation(
        "POST",
        JOBS,
        create_job,
        "Create a job",
        "Job",
        201,
        query="JobCreateQuery",
        body="CreateJobRequest",
        errors=(409, 422),
        also=(200, "DryRun"),
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

"""Results of a job: what it left behind, under names."""

import asyncio
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter, WithJsonSchema

from nemo_jobs.domain.access import Scope
from nemo_jobs.domain.artifacts import MAX_URL, Artifact, parse_artifact
from nemo_jobs.domain.model import Invalid, JobRecord, Json, NotFound, Unavailable
from nemo_jobs.domain.names import NAME_RULE, is_name
from nemo_jobs.domain.spec import Text
from nemo_jobs.files.objects import ObjectMissing
from nemo_jobs.http.downloads import Archive, Download, send_archive, send_file
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.identity import may
from nemo_jobs.http.jobs import JOBS
from nemo_jobs.http.logs import selector
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, dumps, json_reply, time_text
from nemo_jobs.store import files
from nemo_jobs.store import results as store
from nemo_jobs.store.db import Tx
from nemo_jobs.store.files import FileRecord
from nemo_jobs.store.lookup import get_job
from nemo_jobs.store.results import ResultRecord

RESULTS = JOBS + "/{name}/results"
RESULT = JOBS + "/{job}/results/{name}"
DOWNLOAD = RESULT + "/download"
#: Writing out more than this takes milliseconds, in which others would wait.
MANY = 500

#: An attempt: its id, its number from 0 on, or the word `current`.
Attempt = Annotated[
    str | None, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]})
]


class ResultListQuery(BaseModel):
    sort: Literal["created_at", "-created_at", "updated_at", "-updated_at"] = "-created_at"
    attempt_id: Attempt = None


class ResultQuery(BaseModel):
    attempt_id: Attempt = None


class ResultCreate(BaseModel):
    artifact_url: Annotated[Text, Field(max_length=MAX_URL)]
    artifact_storage_type: Literal["fileset"]
    attempt_id: Text | None = None


_CREATE = TypeAdapter(ResultCreate)


async def create_result(api: Api, request: Request) -> Reply:
    body = await request.parsed(_CREATE)
    path, parts = request.path, api.parts
    if not is_name(path["name"]):
        raise Refused(422, f"{path['name'][:80]!r} is not a valid result name; a name has {NAME_RULE}")
    artifact = parse_artifact(body.artifact_url, path["workspace"])
    job, made = await parts.db.write(
        _create, request, path, body.artifact_url, artifact, body.attempt_id, parts.clock.now()
    )
    return json_reply(result_json(made, job), 201)


def _create(
    tx: Tx,
    request: Request,
    path: dict[str, str],
    url: str,
    artifact: Artifact,
    attempt: str | None,
    now: int,
) -> tuple[JobRecord, ResultRecord]:
    found = get_job(tx, path["workspace"], path["job"])
    check_access(request, found, artifact)
    return found, store.add_result(
        tx, path["workspace"], path["job"], path["name"], url, _attempt(attempt), now
    )


async def list_results(api: Api, request: Request) -> Reply:
    query = request.query(ResultListQuery)
    path = request.path
    job, found = await api.parts.db.read(
        store.list_results, path["workspace"], path["name"], query.sort, _attempt(query.attempt_id)
    )
    if len(found) > MANY:
        return await asyncio.to_thread(_listed, found, job)
    return _listed(found, job)


def _listed(found: list[ResultRecord], job: JobRecord) -> Reply:
    shown = ",".join(dumps(result_json(record, job)) for record in found)
    return Reply(f'{{"data":[{shown}]}}'.encode())


async def get_result(api: Api, request: Request) -> Reply:
    job, record = await _find(api, request)
    return json_reply(result_json(record, job))


async def _find(api: Api, request: Request) -> tuple[JobRecord, ResultRecord]:
    query, path = request.query(ResultQuery), request.path
    return await api.parts.db.read(
        store.find_result, path["workspace"], path["job"], path["name"], _attempt(query.attempt_id)
    )


async def download_result(api: Api, request: Request) -> Reply | None:
    """The file, or the folder as an archive. A path that ends with no slash may be either."""
    job, record = await _find(api, request)
    artifact = record.artifact
    check_access(request, job, artifact)
    place, found = await api.parts.db.read(_locate, job, record)
    objects = api.parts.objects
    if objects is None:
        raise Unavailable("this service has no file store")
    what = f"result {record.name!r} of job {job.name!r} (artifact {record.artifact_url!r})"
    if found is not None:
        return await send_file(objects, request, Download(found, record.left_as, what))
    archive = Archive(place, artifact.path, record.left_as, record.updated_at)
    try:
        return await send_archive(objects, api.parts.db, request, archive)
    except ObjectMissing:
        raise NotFound(f"the bytes of {what} are missing in the file store") from None


def _locate(tx: Tx, job: JobRecord, record: ResultRecord) -> tuple[str, FileRecord | None]:
    """The fileset, and the file in it; no file means that there is a folder. Raises NotFound."""
    artifact = record.artifact
    try:
        place = store.check_artifact(tx, job, artifact)
    except Invalid:  # gone since, or another job's by now
        place = None
    if place is not None:
        found = None if artifact.folder else files.find_file(tx, place, artifact.path)
        if found is not None or files.list_files(tx, place, artifact.path, f"{artifact.path}/", 1):
            return place, found
    raise NotFound(
        f"the artifact {record.artifact_url!r} of result {record.name!r} of job {job.name!r} in workspace "
        f"{job.workspace!r} is not there; upload it to that place"
    )


def _attempt(given: str | None) -> int | str | None:
    """None means any attempt, the newest first; `current` is the current one and no other."""
    if given is None:
        return None
    return store.CURRENT if given == "current" else selector(given)


def check_access(request: Request, job: JobRecord, artifact: Artifact) -> None:
    """Refuse (403) an artifact outside of the job's own place that the caller may not read: a
    result is no way around what a token allows."""
    if (artifact.workspace, artifact.fileset) == (job.workspace, job.fileset) and (
        job.output_location is None or artifact.path.startswith(f"jobs/{job.name}/")
    ):
        return
    if not may(request, artifact.workspace, Scope.READ):
        raise Refused(
            403,
            f"the artifact {str(artifact)!r} lies outside of the job's own fileset; "
            f"this needs scope 'read' in workspace {artifact.workspace!r}",
        )


def result_json(record: ResultRecord, job: JobRecord) -> Json:
    """A result as contract 4.5 shows it, with the attempt and the step that left it."""
    return {
        "name": record.name,
        "job": record.job_id,
        "workspace": record.workspace,
        "project": job.project,
        "created_at": time_text(record.created_at),
        "updated_at": time_text(record.updated_at),
        "artifact_url": record.artifact_url,
        "artifact_storage_type": "fileset",
        "download_url": None,
        "attempt_id": record.attempt_id,
        "step": record.step,
        "original_name": record.original_name,
    }


OPERATIONS = (
    Operation(
        "GET",
        RESULTS,
        list_results,
        "List the results of a job",
        "ResultList",
        query="ResultListQuery",
        errors=(404, 422),
    ),
    Operation("GET", RESULT, get_result, "Get a result", "Result", query="ResultQuery", errors=(404, 422)),
    Operation(
        "GET",
        DOWNLOAD,
        download_result,
        "Download a result: a file, or a folder as a gzip tar",
        "Bytes",
        query="ResultQuery",
        errors=(304, 404, 412, 416, 422, 503),
        also=(206, "Bytes"),
        media="application/octet-stream",
    ),
    Operation(
        "POST",
        RESULT,
        create_result,
        "Make a file or folder of a fileset a result of the job",
        "Result",
        201,
        body="ResultCreate",
        errors=(404, 409, 422),
    ),
)

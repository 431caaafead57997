"""What happens to a job besides its run: running it again, changing it, controlling its storage."""

from hashlib import sha256
from typing import Self

from pydantic import BaseModel, TypeAdapter, model_validator

from nemo_jobs.domain.spec import CreateJobRequest, JobControl, JobSpec, JsonObject, Text
from nemo_jobs.http.create import checked, given_key, key_owner
from nemo_jobs.http.identity import caller
from nemo_jobs.http.jobs import JOB
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, dumps, job_reply, job_text
from nemo_jobs.store import attempts, jobs, rerun, storage
from nemo_jobs.store.idempotency import Once


class RerunQuery(BaseModel):
    """Without a step the job runs from its first one."""

    from_step: str | None = None


class JobUpdate(BaseModel):
    """What is left out stays as it is. The definition is that of attempts to come."""

    description: Text | None = None
    spec: JsonObject | None = None
    platform_spec: JobSpec | None = None

    @model_validator(mode="after")
    def _definition_is_whole(self) -> Self:
        if (self.spec is None) != (self.platform_spec is None):
            raise ValueError("spec and platform_spec must be sent together")
        return self


_UPDATE = TypeAdapter(JobUpdate)
_CONTROL = TypeAdapter(JobControl)


async def rerun_job(api: Api, request: Request) -> Reply:
    from_step = request.query(RerunQuery).from_step if request.scope["query_string"] else None
    path, parts, who = request.path, api.parts, caller(request)
    asked = rerun.Rerun(who.actor, who.context, from_step)
    place, key = (path["workspace"], path["name"]), given_key(request)
    if key is None:
        return job_reply(await parts.db.write(rerun.rerun, *place, asked, parts.clock.now()))
    digest = sha256(dumps(["rerun", *place, from_step]).encode()).hexdigest()
    once = Once(path["workspace"], key_owner(who), key, digest)
    text = await parts.db.write(rerun.rerun_once, *place, asked, once, job_text, parts.clock.now())
    return Reply(text.encode())


async def update_job(api: Api, request: Request) -> Reply:
    body = await request.parsed(_UPDATE)
    path, parts = request.path, api.parts
    found = await parts.db.read(jobs.get_job, path["workspace"], path["name"], point=True)
    definition = None
    if body.spec is not None and body.platform_spec is not None:
        # The checks of a job that is created with it.
        wanted = CreateJobRequest(source=found.source, spec=body.spec, platform_spec=body.platform_spec)
        new = await checked(api, request, wanted, caller(request))
        definition = (new.spec, new.platform_spec)
    change = attempts.JobChange("description" in body.model_fields_set, body.description, definition)
    job = await parts.db.write(attempts.update_job, path["workspace"], found.id, change, parts.clock.now())
    return job_reply(job)


async def control_job(api: Api, request: Request) -> Reply:
    body = await request.parsed(_CONTROL)
    path, parts = request.path, api.parts
    job = await parts.db.write(
        storage.set_pause_ttl,
        path["workspace"],
        path["name"],
        body.pause_ttl_seconds,
        parts.retention,
        parts.clock.now(),
    )
    return job_reply(job)


_CHANGED = (404, 409, 422)
OPERATIONS = (
    Operation(
        "POST",
        JOB + "/rerun",
        rerun_job,
        "Run an ended job again as a new attempt",
        "Job",
        query="RerunQuery",
        errors=_CHANGED,
    ),
    Operation(
        "PATCH",
        JOB,
        update_job,
        "Change a job's description, or the definition of its next attempts",
        "Job",
        body="JobUpdate",
        errors=(404, 422),
    ),
    Operation(
        "PATCH",
        JOB + "/control",
        control_job,
        "Change how long a paused job's storage is kept",
        "Job",
        body="JobControl",
        errors=_CHANGED,
    ),
)

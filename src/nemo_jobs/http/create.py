"""Creating jobs: the checks in the order of the contract, repeats that are harmless, dry runs."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from pydantic import BaseModel, TypeAdapter

from nemo_jobs.domain.access import Scope
from nemo_jobs.domain.admission import check_profiles, translate
from nemo_jobs.domain.gpus import wanted as wanted_gpus
from nemo_jobs.domain.labels import labels_of
from nemo_jobs.domain.model import Conflict, Invalid, NotFound
from nemo_jobs.domain.names import fileset_name, generated_job_name
from nemo_jobs.domain.secrets import reference
from nemo_jobs.domain.spec import CreateJobRequest, JobSpec
from nemo_jobs.http.dry_run import dry_run
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.gpus import check_gpus
from nemo_jobs.http.identity import Caller, caller, may
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import LARGE_BODY, Request
from nemo_jobs.http.wire import Reply, dumps, job_reply, job_text
from nemo_jobs.store import idempotency
from nemo_jobs.store import jobs as store
from nemo_jobs.store.secrets import missing_secrets

if TYPE_CHECKING:
    from nemo_jobs.domain.model import StepRecord

KEY_HEADER = b"idempotency-key"
MAX_KEY = 255
#: Variables of one step that come from secrets: each makes its output dearer to mask.
MAX_SECRETS = 100

_CREATE = TypeAdapter(CreateJobRequest)


class JobCreateQuery(BaseModel):
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job that may be created, and by whom; with `once` no more than once."""

    new: store.NewJob
    actor: str
    once: idempotency.Once | None = None


async def create_job(api: Api, request: Request) -> Reply:
    """The first check that fails answers, in the order of the contract."""
    who = caller(request)
    workspace = request.path["workspace"]
    dry = bool(request.scope["query_string"]) and request.query(JobCreateQuery).dry_run
    key = None if dry else given_key(request)
    raw = await request.body()
    once = None
    if key is not None:
        once = idempotency.Once(workspace, key_owner(who), key, await _digest(raw))
        answer = await api.parts.db.read(idempotency.first_answer, once, api.parts.clock.now(), point=True)
        if answer is not None:
            return Reply(answer.encode(), 201)
    body = await request.validated(raw, _CREATE)
    new = await checked(api, request, body, who)
    try:
        if dry:
            return await dry_run(api, new)
        return await _created(api, Wanted(new, who.actor, once))
    except NotFound as error:
        raise Invalid(str(error)) from None


async def checked(api: Api, request: Request, body: CreateJobRequest, who: Caller) -> store.NewJob:
    """The job that `body` asks for, in the workspace of the path. What the store has to check is
    left to it."""
    parts, workspace = api.parts, request.path["workspace"]
    parts.retention.check_pause_ttl(_pause_ttl(body))
    spec = translate(body.platform_spec, parts.profiles)
    check_profiles(spec, parts.profiles)
    await check_gpus(api, spec)
    if any(variable.from_secret for step in spec.steps for variable in step.environment or ()):
        await _name_is_free(api, workspace, body.name)
        await _check_secrets(api, request, spec)
    return _new_job(workspace, body, spec, who.context)


async def _created(api: Api, wanted: Wanted) -> Reply:
    """Store the job; the engine beside us, if it has a place, holds it from its first moment."""
    engine = api.parts.engine
    executor = wanted.new.platform_spec["steps"][0]["executor"]
    coming = None
    if engine and not wanted_gpus(executor):  # one that wants GPUs is claimed together with them
        coming = engine.arrive(executor["provider"], executor["profile"])
    if not engine or not coming:
        return (await _stored(api, wanted, None))[0]
    arrival, lease = coming
    held = None
    try:
        reply, held = await _stored(api, wanted, lease)
        return reply
    finally:
        engine.arrived(arrival, held)


async def _stored(api: Api, wanted: Wanted, lease: store.Lease | None) -> "tuple[Reply, StepRecord | None]":
    db, now, new, actor = api.parts.db, api.parts.clock.now(), wanted.new, wanted.actor
    if wanted.once is not None:
        text, step = await db.write(idempotency.create_once, new, wanted.once, job_text, lease, now, actor)
        return Reply(text.encode(), 201), step
    if lease is None:
        return job_reply(await db.write(store.create_job, new, now, actor), 201), None
    job, held = await db.write(store.create_held, new, lease, now, actor)
    return job_reply(job, 201), held


def key_owner(who: Caller) -> str:
    """Among whose keys a caller's counts: a service that acts for people keeps theirs apart."""
    behalf = json.loads(who.context).get("principal_on_behalf_of")
    return who.actor if behalf is None else f"{who.actor} for {behalf}"


def given_key(request: Request) -> str | None:
    """The key in the header, if there is one. Raises Refused (422) for one that is out of bounds."""
    given = request.header(KEY_HEADER)
    if given is None:
        return None
    key = given.strip()
    try:
        key = key.encode("latin-1").decode()
    except UnicodeDecodeError:
        pass
    if not key or len(key) > MAX_KEY or not key.isprintable():
        raise Refused(422, f"Idempotency-Key must be 1 to {MAX_KEY} printable characters")
    return key


async def _digest(raw: bytes) -> str:
    found = await asyncio.to_thread(sha256, raw) if len(raw) > LARGE_BODY else sha256(raw)
    return found.hexdigest()


async def _check_secrets(api: Api, request: Request, spec: JobSpec) -> None:
    """Every secret that a step names is there, and the caller may use it. Raises Invalid, which
    does not tell the one from the other."""
    own = request.path["workspace"]
    wanted = {
        (step.name, variable.name): reference(variable.from_secret.name, own)
        for step in spec.steps
        for variable in step.environment or ()
        if variable.from_secret is not None
    }
    used = Counter(step for step, _ in wanted)
    for step, count in used.items():
        if count > MAX_SECRETS:
            raise Invalid(
                f"step {step!r} has {count} variables from secrets; at most {MAX_SECRETS} are allowed"
            )
    # Whoever may write there could read the values by a job of that workspace.
    allowed = {at for at in wanted.values() if at.workspace == own or may(request, at.workspace, Scope.WRITE)}
    missing = await api.parts.db.read(missing_secrets, allowed)
    for (step, variable), at in wanted.items():
        if at in missing or at not in allowed:
            raise Invalid(
                f"step {step!r}: secret {str(at)!r} of variable {variable!r} "
                "can't be read; it is missing or closed to you"
            )


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


def _pause_ttl(body: CreateJobRequest) -> int | None:
    return None if body.control is None else body.control.pause_ttl_seconds


def _new_job(workspace: str, body: CreateJobRequest, spec: JobSpec, context: str) -> store.NewJob:
    name = body.name or generated_job_name(body.source)
    pause_ttl = _pause_ttl(body)
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
        labels=labels_of(body.custom_fields),
        control=None if pause_ttl is None else dumps({"pause_ttl_seconds": pause_ttl}),
    )

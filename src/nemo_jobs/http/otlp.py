"""Log records of other programs: taken in over OTLP, and read back by services.

What is answered with 200 is stored; a request that fails has stored nothing. A request may be sent
again after an error, and then its records are there once, or twice if the answer was lost.
"""

import asyncio
import functools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from nemo_jobs.domain.model import LogLine, Unavailable
from nemo_jobs.http import logs
from nemo_jobs.http.collector import uncollected
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, dumps, json_reply, line_text
from nemo_jobs.otlp.payload import (
    MAX_DECODED,
    MAX_DECODED_JSON,
    BadPayload,
    Form,
    TooLarge,
    check_size,
    decompressed,
)
from nemo_jobs.store import ingest as store
from nemo_jobs.store.chunks import Chunk, pack_heads

if TYPE_CHECKING:
    from nemo_jobs.otlp.records import Hide, Masks, Piece, Source

FILESET = "/apis/files/v2/workspaces/{workspace}/filesets/{name}"
INGEST = FILESET + "/otlp/v1/logs"
#: Requests that are decoded at once, and that may wait for it: each takes memory.
DECODERS, MOST_WAITING = 2, 32
#: How long a decoder waits for what it has to hide, in seconds.
MASK_SECONDS = 10.0
_SEGMENT = re.compile(r"[\w\-.@+]+", re.ASCII)
_SOURCES_TOLD = 5
_NO_SOURCE = "the resource needs the attributes job, job_attempt, job_step and job_task"


class _Later(BaseModel):
    """Its checks are made up at the first use, which most services never see."""

    model_config = ConfigDict(defer_build=True)


class OtlpIngestQuery(_Later):
    artifact_base_path: str | None = None


class OtlpLogFilters(_Later):
    job: str
    job_attempt: str
    job_step: str | None = None
    job_task: str | None = None


class OtlpLogQuery(_Later):
    artifact_base_path: str | None = None
    limit: Annotated[int, Field(gt=0, le=logs.MAX_LINES)] | None = None
    tail: Annotated[int, Field(gt=0, le=logs.MAX_LINES)] | None = None
    page_cursor: str | None = None
    filters: OtlpLogFilters


_decoders: ThreadPoolExecutor | None = None
_waiting = 0


async def ingest_logs(api: Api, request: Request) -> Reply:
    check_base_path(request.query(OtlpIngestQuery).artifact_base_path)
    form, packed = _form(request), _is_gzip(request)
    parts, path = api.parts, request.path
    now = parts.clock.now()
    masks = await _masks(api, path["workspace"])
    incoming, refused = await _in_thread(await request.body(), packed, form, now, masks)
    act = store.ingest if len({item[:4] for item in incoming}) <= store.FEW else store.ingest_from_many
    limit = parts.settings.jobs.log_limit_bytes
    task = request.access.task if request.access is not None else None
    where = store.Where(path["workspace"], path["name"], task.attempt_id if task is not None else None)
    refused += await parts.db.write(act, where, incoming, limit, now)
    return json_reply({"partialSuccess": _partial(refused)})


def check_base_path(path: str | None) -> None:
    """The path in the fileset below which a job keeps its things. Raises Refused (400).

    A job's log is found by the job itself, so this only has to be well-formed."""
    for segment in path.split("/") if path else ():
        if segment in (".", "..") or not _SEGMENT.fullmatch(segment):
            raise Refused(
                400,
                f"artifact_base_path is {path[:200]!r} here; it must be names joined by '/', "  # type: ignore[index]
                "of letters, digits and - _ . @ +, and never '.' or '..'",
            )


def _form(request: Request) -> Form:
    kind = (request.header(b"content-type") or "").partition(";")[0]
    return Form.PROTOBUF if "protobuf" in kind.lower() else Form.JSON


def _is_gzip(request: Request) -> bool:
    coding = (request.header(b"content-encoding") or "identity").strip().lower()
    if coding not in ("identity", "gzip"):
        raise Refused(415, f"the content encoding {coding[:50]!r} is not known; gzip is, or none at all")
    return coding == "gzip"


async def _masks(api: Api, workspace: str) -> "Masks":
    """What tells a decoder, which asks from its thread, what to hide in the records of a source."""
    secrets = api.parts.secrets
    if secrets is None or not await secrets.covers.in_use():
        return lambda source: None
    covers, loop = secrets.covers, asyncio.get_running_loop()
    known: dict[tuple[str, str], Hide] = {}

    def ask(source: "Source") -> "Hide":
        step = (source.attempt, source.step)
        if step not in known:
            found = asyncio.run_coroutine_threadsafe(covers.of(workspace, *step), loop)
            try:
                known[step] = found.result(MASK_SECONDS)
            except TimeoutError:
                found.cancel()
                raise Unavailable("secrets can't be read now; send this batch again later", 1) from None
        return known[step]

    return ask


async def _in_thread(
    body: bytes, packed: bool, form: Form, now: int, masks: "Masks"
) -> tuple[list[store.Incoming], Counter[str]]:
    """Decode beside the event loop, a few requests at once."""
    global _decoders, _waiting
    if _waiting >= MOST_WAITING:
        raise Unavailable("too many log batches wait to be decoded; send this one again later", 1)
    if _decoders is None:
        _decoders = ThreadPoolExecutor(DECODERS, "otlp")
    _waiting += 1
    try:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_decoders, _decode, body, packed, form, now, masks)
    except BadPayload as error:
        raise Refused(400, str(error)) from None
    except TooLarge as error:
        raise Refused(413, str(error)) from None
    finally:
        _waiting -= 1


def _decode(
    body: bytes, packed: bool, form: Form, now: int, masks: "Masks"
) -> tuple[list[store.Incoming], Counter[str]]:
    limit = MAX_DECODED if form is Form.PROTOBUF else MAX_DECODED_JSON
    data = decompressed(body, limit) if packed else body
    check_size(len(data), limit)
    if form is Form.PROTOBUF:
        return _read(data, form, now, masks)
    with uncollected():
        return _read(data, form, now, masks)


def _read(data: bytes, form: Form, now: int, masks: "Masks") -> tuple[list[store.Incoming], Counter[str]]:
    incoming: list[store.Incoming] = []
    refused: Counter[str] = Counter()
    try:
        for piece in _pieces(data, form, now, masks):
            if piece.source is None:
                refused[_NO_SOURCE] += piece.records
            else:
                incoming.append(store.Incoming(*piece.source, _chunk(piece), piece.records))
    except (BadPayload, TooLarge) as error:
        # Without where it came from, which would keep all that was read.
        error.__context__ = None
        raise error.with_traceback(None) from None
    return incoming, refused


def _pieces(data: bytes, form: Form, now: int, masks: "Masks") -> "Iterator[Piece]":
    # Late: a service that gets no logs this way keeps the memory.
    if form is Form.PROTOBUF:
        from nemo_jobs.otlp import protobuf

        return protobuf.decode(data, now * 1000, masks)
    from nemo_jobs.otlp import json_form

    return json_form.decode(data, now * 1000, masks)


def _chunk(piece: "Piece") -> Chunk:
    codec, data = pack_heads(piece.heads, b"".join(piece.lines))
    return Chunk("", piece.stream, piece.at, piece.count, data, codec, piece.size)


def _partial(refused: Counter[str]) -> dict[str, int | str] | None:
    if not refused:
        return None
    told = [f"{count} refused: {reason}" for reason, count in refused.most_common(_SOURCES_TOLD)]
    if len(refused) > _SOURCES_TOLD:
        told.append(f"and for {len(refused) - _SOURCES_TOLD} more reasons of this kind")
    return {"rejectedLogRecords": refused.total(), "errorMessage": "; ".join(told)}


@functools.cache
def _asked() -> TypeAdapter[OtlpLogQuery]:
    return TypeAdapter(OtlpLogQuery)


async def query_logs(api: Api, request: Request) -> Reply:
    asked = await request.parsed(_asked())
    check_base_path(asked.artifact_base_path)
    narrow = asked.filters
    query = logs.LogQuery(
        limit=asked.limit,
        tail=asked.tail,
        page_cursor=asked.page_cursor,
        attempt_id=narrow.job_attempt,
        step_id=narrow.job_step,
        task_id=narrow.job_task,
    )
    logs.check_together(query)
    db, path = api.parts.db, request.path
    await db.read(store.check_fileset, path["workspace"], path["name"], point=True)
    place, page = await db.read(logs.read_page, path["workspace"], narrow.job, query)
    if place.job.fileset != path["name"]:
        raise Refused(404, f"job {place.job.name!r} has its logs in fileset {place.job.fileset!r}")
    return _page_reply(page.lines, page.total, *logs.page_cursors(place, page))


def _page_reply(lines: Sequence[LogLine], total: int, after: str | None, before: str | None) -> Reply:
    data = ",".join(map(_record_text, lines))
    ends = f'"next_page":{json.dumps(after)},"prev_page":{json.dumps(before)}'
    return Reply(f'{{"data":[{data}],"total":{total},{ends}}}'.encode())


def _record_text(line: LogLine) -> str:
    """A log line, and behind it what else its record said."""
    if line.facts is None:
        return line_text(line)
    facts = line.facts
    more = (
        f'"time_unix_nano":"{line.at * 1000 + facts.nanoseconds}","severity_number":{facts.severity},'
        f'"severity_text":{dumps(facts.level)},"attributes":{dumps(facts.attributes)}'
    )
    return f"{line_text(line)[:-1]},{more}}}"


OPERATIONS = (
    Operation(
        "POST",
        INGEST,
        ingest_logs,
        "Take in log records, as OTLP in protobuf or JSON",
        "OtlpAnswer",
        query="OtlpIngestQuery",
        body="OtlpRequest",
        body_media=("application/json", "application/x-protobuf"),
        errors=(400, 404, 413, 415, 422, 503),
    ),
    Operation(
        "POST",
        INGEST + "/query",
        query_logs,
        "Read log records of an attempt",
        "OtlpLogPage",
        body="OtlpLogQuery",
        errors=(400, 404, 422),
        scope="read",
    ),
)

"""Pages of a job's log.

One rule for what does not exist: an attempt, step or task that the job does not have is a 404
that names it. A step of the spec whose turn has not come has an empty log.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field, WithJsonSchema

from nemo_jobs.domain.model import JobRecord, LogLine
from nemo_jobs.http import cursors
from nemo_jobs.http.cursors import Cursor, Kind
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.jobs import JOB
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, log_reply
from nemo_jobs.store import jobs, logs
from nemo_jobs.store.db import Tx
from nemo_jobs.store.logs import LogFilter

MAX_LINES = 10_000
DEFAULT_LINES = 100

_WHOLE = 1 << 62
#: Lines read at once on the way to a numbered page.
_STRIDE = 10_000


#: A number or an id; kept as text, since both are one.
AttemptId = Annotated[
    str | None, WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]})
]


class LogQuery(BaseModel):
    limit: Annotated[int, Field(gt=0, le=MAX_LINES)] | None = Field(
        None, json_schema_extra={"x-schema-default": DEFAULT_LINES}
    )
    page_cursor: str | None = None
    tail: Annotated[int, Field(gt=0, le=MAX_LINES)] | None = None
    attempt_id: AttemptId = None
    step_id: str | None = None
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Whose lines are asked for: one attempt of a job, maybe one step or task of it."""

    job: JobRecord
    attempt_id: str
    filter: LogFilter

    @property
    def digest(self) -> str:
        return cursors.digest(self.attempt_id, self.filter.step, self.filter.task)


@dataclass(frozen=True, slots=True)
class Page:
    lines: Sequence[LogLine]
    total: int
    after: Cursor | None = None
    before: Cursor | None = None


async def get_logs(api: Api, request: Request) -> Reply:
    query = request.query(LogQuery)
    check_together(query)
    path = request.path
    place, page = await api.parts.db.read(read_page, path["workspace"], path["name"], query)
    return log_reply(page.lines, page.total, *page_cursors(place, page))


def page_cursors(place: Place, page: Page) -> tuple[str | None, str | None]:
    """The texts of the cursors to the lines after and before a page."""
    of = place.digest
    after, before = (
        None if cursor is None else cursors.encode(cursor, of) for cursor in (page.after, page.before)
    )
    return after, before


def check_together(query: LogQuery) -> None:
    for other, value in (("limit", query.limit), ("page_cursor", query.page_cursor)):
        if query.tail is not None and value is not None:
            raise Refused(400, f"tail and {other} can't be used together; leave one of them out")


def find_place(
    tx: Tx, workspace: str, name: str, attempt: str | None, step: str | None, task: str | None
) -> Place:
    """Raises NotFound for a job, attempt, step or task that is not there."""
    job = jobs.get_job(tx, workspace, name)
    attempt_id = logs.attempt_of(tx, job.id, selector(attempt))
    narrow = LogFilter(step=step, task=task)
    logs.check_filter(tx, attempt_id, narrow)
    return Place(job, attempt_id, narrow)


def selector(attempt: str | None) -> int | str | None:
    """An attempt by number or id; None is the current one. Raises Refused (422)."""
    if attempt is None or attempt == "current":
        return None
    if re.fullmatch(r"-?[0-9]{1,12}", attempt):
        return int(attempt)
    if attempt.startswith("platform-job-attempt-"):
        return attempt
    raise Refused(
        422, f"attempt_id is {attempt[:80]!r}; it must be a number (0 is the first), an id, or 'current'"
    )


def read_page(tx: Tx, workspace: str, name: str, query: LogQuery) -> tuple[Place, Page]:
    place = find_place(tx, workspace, name, query.attempt_id, query.step_id, query.task_id)
    if query.tail is not None:
        lines, total, more = logs.tail(tx, place.attempt_id, place.filter, query.tail)
        return place, Page(lines, total, before=_behind(lines, more))
    limit = query.limit or DEFAULT_LINES
    if query.page_cursor is None:
        return place, _page_from(tx, place, 0, limit)
    cursor = cursors.decode(query.page_cursor, place.digest)
    match cursor.kind:
        case Kind.FROM:
            return place, _page_from(tx, place, cursor.at, limit)
        case Kind.BEFORE:
            return place, _page_before(tx, place, cursor.at, limit)
        case Kind.PAGE:
            return place, _page_from(tx, place, _seq_at(tx, place, (cursor.at - 1) * limit), limit)
        case Kind.NEWEST_PAGE:
            return place, _newest_page(tx, place, cursor.at, limit)


def _page_from(tx: Tx, place: Place, first: int, limit: int) -> Page:
    lines, total, more = logs.page(tx, place.attempt_id, place.filter, first, limit)
    after = Cursor(Kind.FROM, lines[-1].seq + 1) if more else None
    start = lines[0].seq if lines else first
    has_older = start > 0 and bool(logs.before(tx, place.attempt_id, place.filter, start, 1)[0])
    return Page(lines, total, after, Cursor(Kind.BEFORE, start) if has_older else None)


def _page_before(tx: Tx, place: Place, end: int, limit: int) -> Page:
    lines, total, more = logs.before(tx, place.attempt_id, place.filter, end, limit)
    newer = bool(logs.page(tx, place.attempt_id, place.filter, end, 1)[0])
    return Page(lines, total, Cursor(Kind.FROM, end) if newer else None, _behind(lines, more))


def _newest_page(tx: Tx, place: Place, number: int, limit: int) -> Page:
    """The old form: pages counted from the newest line, delivered descending."""
    total = logs.page(tx, place.attempt_id, place.filter, 0, 1)[1]
    end = max(0, total - (number - 1) * limit)
    start = max(0, end - limit)
    lines: Sequence[LogLine] = ()
    if end:
        first = _seq_at(tx, place, start)
        # These pages have no place to go on from inside one, so they are never cut short.
        lines = logs.page(tx, place.attempt_id, place.filter, first, end - start, _WHOLE)[0][::-1]
    newer = Cursor(Kind.NEWEST_PAGE, number - 1) if number > 1 else None
    return Page(lines, total, newer, Cursor(Kind.NEWEST_PAGE, number + 1) if start else None)


def _seq_at(tx: Tx, place: Place, offset: int) -> int:
    """The sequence number of the line at an offset among those that match."""
    if place.filter.step is None and place.filter.task is None:
        return offset
    seq = 0
    while offset > 0:
        lines = logs.page(tx, place.attempt_id, place.filter, seq, min(offset, _STRIDE))[0]
        if not lines:
            break
        seq = lines[-1].seq + 1
        offset -= len(lines)
    return seq


def _behind(lines: Sequence[LogLine], more: bool) -> Cursor | None:
    return Cursor(Kind.BEFORE, lines[0].seq) if more and lines else None


OPERATIONS = (
    Operation(
        "GET",
        JOB + "/logs",
        get_logs,
        "Read the log of a job",
        "LogPage",
        query="LogQuery",
        errors=(400, 404, 422),
    ),
)

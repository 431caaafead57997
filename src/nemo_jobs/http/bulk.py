"""Cancel, delete and rerun for all jobs that match a filter, each in a transaction of its own.

One call takes up to a thousand jobs, the oldest first, and works for a bounded time; the answer
says what became of each, and `next` is where another call goes on.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter, model_validator

from nemo_jobs.domain.filters import Node, parse_filter
from nemo_jobs.domain.model import Conflict, Invalid, Json, NotFound, Unavailable
from nemo_jobs.domain.spec import JsonObject, Text
from nemo_jobs.domain.states import TERMINAL, State
from nemo_jobs.http.create import given_key, key_owner
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.identity import Caller, caller
from nemo_jobs.http.jobs import JOBS
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, dumps, json_reply
from nemo_jobs.store import bulk as store
from nemo_jobs.store import jobs
from nemo_jobs.store.bulk import Found
from nemo_jobs.store.idempotency import Once
from nemo_jobs.store.rerun import Rerun, rerun, rerun_once

log = logging.getLogger(__name__)

#: Jobs a call takes at most, and how many of them at the same time: they share commits.
MOST, AT_ONCE = 1000, 16
#: After so many seconds no further job is begun.
SECONDS = 20.0

#: What became of a job. `gone`: it was deleted meanwhile.
OUTCOMES = ("done", "unchanged", "refused", "gone", "failed")


class BulkRequest(BaseModel):
    filter: JsonObject | Text = Field(description="as in lists: an object, or text")
    dry_run: bool = Field(default=False, description="only say what would become of each job")
    expected_count: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="how many jobs must match; nothing is done when it differs"
    )
    cursor: Text | None = Field(default=None, description="`next` of the call before")

    @model_validator(mode="after")
    def _counted_or_dry(self) -> "BulkRequest":
        if self.dry_run == (self.expected_count is not None):
            raise ValueError(
                "give either dry_run: true, which tells how many jobs match, or that number as expected_count"
            )
        return self


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job, the state it is in then, and a sentence where that needs one."""

    outcome: str
    state: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks for something in which workspace; `key` is that of a request that may be repeated."""

    who: Caller
    workspace: str
    key: str | None


Act = Callable[[Api, Asked, Found], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Action:
    """`expect` says what would become of a job in a state."""

    name: str
    act: Act
    expect: Callable[[State], Outcome]


_BODY = TypeAdapter(BulkRequest)
_CURSOR = re.compile(r"([0-9]{1,18})\.([\w-]{1,100})", re.ASCII)


async def cancel_jobs(api: Api, request: Request) -> Reply:
    return await _answer(api, request, _CANCEL)


async def delete_jobs(api: Api, request: Request) -> Reply:
    return await _answer(api, request, _DELETE)


async def rerun_jobs(api: Api, request: Request) -> Reply:
    return await _answer(api, request, _RERUN)


async def _answer(api: Api, request: Request, action: Action) -> Reply:
    asked = Asked(caller(request), request.path["workspace"], given_key(request))
    body = await request.parsed(_BODY)
    where, after = _where(body), _after(body.cursor)
    found, total = await api.parts.db.read(store.find, asked.workspace, where, after, MOST)
    if body.expected_count is not None and body.expected_count != total:
        raise Refused(
            409,
            f"{total} {'job matches' if total == 1 else 'jobs match'} the filter, not {body.expected_count} "
            "as expected; nothing was done: look again with dry_run",
            code="count_differs",
        )
    if body.dry_run:
        outcomes = [action.expect(State(job.state)) for job in found]
    else:
        outcomes = await _carried_out(api, asked, action, found)
    told = [_told(job, outcome) for job, outcome in zip(found, outcomes, strict=False)]
    counts = Counter(outcome.outcome for outcome in outcomes)
    last = found[len(told) - 1] if told else None
    return json_reply(
        {
            "action": action.name,
            "dry_run": body.dry_run,
            "count": total,
            **{name: counts[name] for name in OUTCOMES},
            "data": told,
            "next": f"{last.created_at}.{last.id}" if last and len(told) < total else None,
        }
    )


def _where(body: BulkRequest) -> Node:
    text = body.filter if isinstance(body.filter, str) else dumps(body.filter)
    node = parse_filter([("filter", text)])
    assert node is not None, "there is one filter"  # noqa: S101
    return node


def _after(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise Refused(422, "cursor is not one that a call like this gave as next")
    return int(match[1]), match[2]


async def _carried_out(api: Api, asked: Asked, action: Action, found: Sequence[Found]) -> list[Outcome]:
    """One outcome for each job that was begun; fewer than were found when it took too long or the
    database went away."""
    outcomes: list[Outcome] = []
    clock = api.parts.clock
    stop = clock.monotonic() + SECONDS
    for start in range(0, len(found), AT_ONCE):
        batch = found[start : start + AT_ONCE]
        outcomes += await asyncio.gather(*(_one(api, asked, action, job) for job in batch))
        away = any(outcome.outcome == "failed" for outcome in outcomes[-len(batch) :])
        if away or clock.monotonic() > stop:
            break
    return outcomes


async def _one(api: Api, asked: Asked, action: Action, job: Found) -> Outcome:
    try:
        return await action.act(api, asked, job)
    except NotFound:
        return Outcome("gone", job.state, "it was deleted meanwhile")
    except (Conflict, Invalid) as error:
        return Outcome("refused", job.state, str(error))
    except Unavailable as error:
        return Outcome("failed", job.state, str(error))
    except Exception:
        # The others have been done or are being done: the answer must tell of them.
        log.exception("%s of job %s failed", action.name, job.id)
        return Outcome("failed", job.state, "an unexpected error; the log of the service has the details")


def _told(job: Found, outcome: Outcome) -> Json:
    return {
        "id": job.id,
        "name": job.name,
        "status": outcome.state,
        "outcome": outcome.outcome,
        "detail": outcome.detail,
    }


async def _cancel(api: Api, asked: Asked, job: Found) -> Outcome:
    parts = api.parts
    state, begun = await parts.db.write(
        store.cancel, asked.workspace, job.id, parts.clock.now(), asked.who.actor
    )
    return Outcome("done" if begun else "unchanged", state)


async def _delete(api: Api, asked: Asked, job: Found) -> Outcome:
    await api.parts.db.write(jobs.delete_job, asked.workspace, job.id, api.parts.clock.now())
    return Outcome("done", job.state)


async def _rerun(api: Api, asked: Asked, job: Found) -> Outcome:
    db, now, who = api.parts.db, api.parts.clock.now(), asked.who
    how = Rerun(who.actor, who.context)
    if asked.key is None:
        return Outcome("done", (await db.write(rerun, asked.workspace, job.id, how, now)).state)
    # A repeat of the request runs no job a second time, even if it has ended again meanwhile.
    once = Once(asked.workspace, key_owner(who), f"{asked.key} {job.id}", "bulk rerun")
    state = await db.write(rerun_once, asked.workspace, job.id, how, once, lambda after: after.state, now)
    return Outcome("done", state)


def _expect_cancel(state: State) -> Outcome:
    ends = state in TERMINAL or state is State.CANCELLING
    return Outcome("unchanged" if ends else "done", state)


def _expect_of_ended(state: State) -> Outcome:
    if state in TERMINAL:
        return Outcome("done", state)
    return Outcome("refused", state, f"it is {state}, so it has not ended")


_CANCEL = Action("cancel", _cancel, _expect_cancel)
_DELETE = Action("delete", _delete, _expect_of_ended)
_RERUN = Action("rerun", _rerun, _expect_of_ended)


def _operation(verb: str, handler: Callable[[Api, Request], Awaitable[Reply]], summary: str) -> Operation:
    return Operation(
        "POST",
        f"{JOBS}:{verb}",
        handler,
        summary,
        "BulkAnswer",
        body="BulkRequest",
        errors=(400, 404, 409, 422),
    )


OPERATIONS = (
    _operation("cancel", cancel_jobs, "Cancel all jobs that match a filter"),
    _operation("delete", delete_jobs, "Delete all jobs that match a filter and have ended"),
    _operation("rerun", rerun_jobs, "Run all jobs that match a filter and have ended again"),
)

"""Each finished attempt of a job as a trace, sent by OTLP (extra `otel`).

Nothing is kept while a job runs: its trace is built from its records and events when it has
ended. Ids come from our own, so a trace that two services send is one trace.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nemo_jobs.domain.model import JobRecord, NotFound, StepRecord, Unavailable
from nemo_jobs.domain.states import TERMINAL, State
from nemo_jobs.store import jobs, telling
from nemo_jobs.store.db import Database, Tx
from nemo_jobs.store.events import EventRecord
from nemo_jobs.telemetry import EventTail

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

log = logging.getLogger(__name__)

#: Any of them switches traces on.
VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: The longest time between two looks for finished jobs, in seconds.
POLL_SECONDS = 5.0
MOST_EVENTS_OF_A_JOB = 1000


def open_tracing(db: Database, version: str, environ: Mapping[str, str]) -> "Tracing | None":
    """What sends traces, if the environment names where to; run it with `run()`."""
    if not any(environ.get(name) for name in VARIABLES):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        log.warning(
            "%s is set, but traces need an extra: pip install 'nemo-jobs[otel]'", " or ".join(VARIABLES)
        )
        return None
    return Tracing(db, OTLPSpanExporter(timeout=10), version)


class Tracing:
    """Follows the events and sends a trace for each attempt that ended."""

    def __init__(self, db: Database, exporter: "SpanExporter", version: str) -> None:
        self._db, self._exporter, self._version = db, exporter, version
        self._tail = EventTail(db)
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled. A trace that can't be sent is dropped with a warning."""
        unhook = self._db.on_wake(self._on_wake)
        try:
            while True:
                self._wake.clear()
                try:
                    more = await self.send_finished()
                except Unavailable as error:
                    log.warning("traces wait for the database: %s", error)
                    more = False
                except Exception:
                    # The boundary of this loop: traces of one round are lost, later ones are not.
                    log.exception("making traces failed; those of this round are dropped")
                    more = False
                if not more:
                    await self._next_look()
        finally:
            unhook()
            await asyncio.to_thread(self._exporter.shutdown)

    async def send_finished(self) -> bool:
        """Send what ended since the last call; whether there was anything to look at."""
        events = await self._tail.batch()
        ended = [event for event in events if event.kind == "job" and event.to_state in TERMINAL]
        spans: list[ReadableSpan] = []
        for event in ended:
            spans += await self._spans(event)
        if spans:
            await asyncio.to_thread(self._send, spans)
        return bool(events)

    async def _next_look(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            pass  # looking is due without a wake-up as well

    async def _spans(self, ended: EventRecord) -> "list[ReadableSpan]":
        try:
            tree, events = await self._db.read(_history, ended)
        except NotFound:
            return []  # deleted meanwhile, or another attempt is current
        return spans_of(tree, events, self._version)

    def _send(self, spans: "Sequence[ReadableSpan]") -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            log.warning("%d spans of finished jobs could not be sent and are dropped", len(spans))

    def _on_wake(self, topic: str, key: str) -> None:
        if topic == "job":
            self._wake.set()


def spans_of(tree: jobs.StatusTree, events: Sequence[EventRecord], version: str) -> "list[ReadableSpan]":
    """A span for the attempt, and below it one for each step with its transitions."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import SpanKind, Status, StatusCode

    job = tree.job
    resource = Resource.create({"service.name": "nemo-jobs", "service.version": version})
    root = _context(job.attempt_id, job.attempt_id)

    def span(name: str, record: JobRecord | StepRecord, attributes: dict[str, str | int]) -> ReadableSpan:
        is_step = isinstance(record, StepRecord)
        failed = record.state == State.ERROR
        return ReadableSpan(
            name=name,
            context=_context(job.attempt_id, record.id) if is_step else root,
            parent=root if is_step else None,
            resource=resource,
            attributes={"nemo.status": str(record.state), "nemo.reason": record.reason, **attributes},
            events=[
                Event(event.to_state or event.kind, {"nemo.reason": event.reason}, timestamp=event.at * 1000)
                for event in events
                if event.step_id == (record.id if is_step else None)
            ],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, record.message) if failed else Status(StatusCode.OK),
            start_time=record.created_at * 1000,
            end_time=record.updated_at * 1000,
        )

    spans = [span(f"job {job.name}", job, _about_job(job))]
    return spans + [span(f"step {step.name}", step, _about_step(step)) for step, _tasks in tree.steps]


def _about_job(job: JobRecord) -> dict[str, str | int]:
    return {
        "nemo.job.id": job.id,
        "nemo.job.name": job.name,
        "nemo.workspace": job.workspace,
        "nemo.source": job.source,
        "nemo.attempt.id": job.attempt_id,
    }


def _about_step(step: StepRecord) -> dict[str, str | int]:
    about: dict[str, str | int] = {
        "nemo.step.id": step.id,
        "nemo.step.name": step.name,
        "nemo.provider": step.provider,
        "nemo.profile": step.profile,
        "nemo.active_ms": step.active_used // 1000,
    }
    exit_code = step.status_details.get("exit_code")
    return {**about, "nemo.exit_code": exit_code} if isinstance(exit_code, int) else about


def _context(attempt: str, own: str) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags

    trace = hashlib.sha256(attempt.encode()).digest()[:16]
    span = hashlib.sha256(f"span {own}".encode()).digest()[:8]
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(
        int.from_bytes(trace, "big"), int.from_bytes(span, "big"), is_remote=False, trace_flags=flags
    )


def _history(tx: Tx, ended: EventRecord) -> tuple[jobs.StatusTree, list[EventRecord]]:
    job = telling.job_by_id(tx, ended.job_id)
    tree = jobs.status_tree(tx, job.workspace, job.id)
    if tree.job.attempt_id != ended.attempt_id:
        raise NotFound("that attempt is not the current one any more")
    return tree, jobs.events(tx, 0, MOST_EVENTS_OF_A_JOB, job_id=ended.job_id)

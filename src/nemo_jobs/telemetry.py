"""Metrics, from what happened and from what is asked.

Requests are counted as they are answered. Jobs are counted when somebody scrapes: their numbers
come from the counters that the store keeps, their transitions and durations from the events
since the last scrape, which go away with a job that is deleted. Every service of a database
tells the same about jobs.
"""

import asyncio
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nemo_jobs.domain.states import TERMINAL, State
from nemo_jobs.store import jobs, telling
from nemo_jobs.store.db import Database
from nemo_jobs.store.events import EventRecord

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

#: What /metrics tells, for people and for a test of the docs.
METRICS = {
    "nemo_jobs_jobs": "jobs in each state now, by workspace",
    "nemo_jobs_step_transitions_total": "steps that came into a state since the start of this service",
    "nemo_jobs_step_wait_seconds": "from the turn of a step until it runs",
    "nemo_jobs_step_run_seconds": "how long ended steps ran, without pauses, by end state",
    "nemo_jobs_http_requests_total": "answered requests, by route, method and status",
    "nemo_jobs_http_request_seconds": "time until a request was answered, by route",
    "nemo_jobs_log_followers": "clients that follow a log now",
    "nemo_jobs_profile_up": "1 for a profile on which work can be started now, 0 for one on which it can't",
}
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
STEP_BUCKETS = (0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
#: Events read at once, and at most at one scrape; the rest follows at the next one.
BATCH = 2000
MOST_EVENTS = 100_000
#: Steps whose start is remembered until their end.
MOST_STEPS = 100_000


@dataclass(slots=True)
class Histogram:
    """Counts of values up to each bound, and their sum."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them."""
        shown, so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            shown.append((bound, float(so_far)))
        return shown


@dataclass(slots=True)
class _Running:
    """When a step began to run, if it runs, and how long it ran before, in microseconds."""

    since: int | None = None
    before: int = 0


class StepMeter:
    """Turns events into counts and durations."""

    def __init__(self) -> None:
        self.transitions: Counter[tuple[str, str]] = Counter()
        self.waits = Histogram(STEP_BUCKETS)
        self.runs = {state.value: Histogram(STEP_BUCKETS) for state in sorted(TERMINAL)}
        self._turns: OrderedDict[str, int] = OrderedDict()
        self._running: OrderedDict[str, _Running] = OrderedDict()

    def add(self, event: EventRecord) -> None:
        """Count one event. A step's turn comes when the job is made, the step before it has
        ended, or it is resumed."""
        if event.to_state is None or event.to_state == event.from_state:
            return
        state = State(event.to_state)
        if event.step_id is None:
            if state is State.CREATED:
                self._turns[event.attempt_id] = event.at
                _forget(self._turns)
            return
        self.transitions[state.value, event.reason] += 1
        if state in (State.RESUMING, State.COMPLETED):
            self._turns[event.attempt_id] = event.at
        if state is State.ACTIVE:
            self._began(event, event.step_id)
        elif state is State.PAUSED or state in TERMINAL:
            self._stopped(event, event.step_id, state)

    def _began(self, event: EventRecord, step_id: str) -> None:
        turn = self._turns.pop(event.attempt_id, None)
        if turn is not None:
            self.waits.add((event.at - turn) / 1e6)
        self._running.setdefault(step_id, _Running()).since = event.at
        _forget(self._running)

    def _stopped(self, event: EventRecord, step_id: str, state: State) -> None:
        running = self._running.get(step_id)
        if running is not None and running.since is not None:
            running.before += event.at - running.since
            running.since = None
        if state in TERMINAL and self._running.pop(step_id, None) is not None and running is not None:
            self.runs[state.value].add(running.before / 1e6)
        if state in (State.ERROR, State.CANCELLED):
            self._turns.pop(event.attempt_id, None)


def _forget(of_steps: OrderedDict[str, Any]) -> None:
    while len(of_steps) > MOST_STEPS:
        of_steps.popitem(last=False)


class EventTail:
    """Reads events in order, each once, beginning behind the newest one."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._after: int | None = None

    async def start(self) -> None:
        """Take events from now on; does nothing when it has begun."""
        if self._after is None:
            self._after = await self._db.read(telling.last_event_id)

    async def batch(self) -> list[EventRecord]:
        """The next events; empty when there are none yet."""
        await self.start()
        events = await self._db.read(jobs.events, self._after, BATCH)
        if events:
            self._after = events[-1].id
        return events


class Metrics:
    """Counts requests, and tells everything in Prometheus' format."""

    def __init__(
        self,
        db: Database,
        followers: Callable[[], int],
        up: Callable[[], Mapping[tuple[str, str], bool]] = dict,
    ) -> None:
        self._db, self._followers, self._up = db, followers, up
        self._tail = EventTail(db)
        self._steps = StepMeter()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._registry: CollectorRegistry | None = None
        self._jobs: dict[tuple[str, str], int] = {}
        self._scraping = asyncio.Lock()

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests[route, method, status] += 1
        histogram = self._seconds.get(route)
        if histogram is None:
            histogram = self._seconds[route] = Histogram(REQUEST_BUCKETS)
        histogram.add(seconds)

    async def start(self) -> None:
        """Count steps from now on."""
        await self._tail.start()

    async def exposition(self) -> tuple[bytes, str]:
        """The metrics and their content type."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        async with self._scraping:
            await self._catch_up()
            self._jobs = await self._db.read(telling.job_counts)
            return generate_latest(self._collectors()), CONTENT_TYPE_LATEST

    def collect(self) -> "Iterator[Metric]":
        """For the registry of prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        def gauge(name: str, labels: Sequence[str]) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, METRICS[name], labels=labels)

        def counter(name: str, labels: Sequence[str]) -> CounterMetricFamily:
            return CounterMetricFamily(name, METRICS[name], labels=labels)

        def histogram(
            name: str, labels: Sequence[str], found: Iterable[tuple[list[str], Histogram]]
        ) -> "Metric":
            family = HistogramMetricFamily(name, METRICS[name], labels=labels)
            for values, one in found:
                family.add_metric(values, one.buckets(), one.total)
            return family

        yield _filled(gauge("nemo_jobs_jobs", ("workspace", "state")), self._jobs)
        yield _filled(
            counter("nemo_jobs_step_transitions_total", ("state", "reason")), self._steps.transitions
        )
        yield histogram("nemo_jobs_step_wait_seconds", (), [([], self._steps.waits)])
        yield histogram(
            "nemo_jobs_step_run_seconds", ("state",), [([s], h) for s, h in self._steps.runs.items()]
        )
        yield _filled(counter("nemo_jobs_http_requests_total", ("route", "method", "status")), self._requests)
        yield histogram(
            "nemo_jobs_http_request_seconds", ("route",), [([r], h) for r, h in self._seconds.items()]
        )
        yield _filled(gauge("nemo_jobs_log_followers", ()), {(): self._followers()})
        yield _filled(gauge("nemo_jobs_profile_up", ("provider", "profile")), self._up())

    async def _catch_up(self) -> None:
        read = 0
        while read < MOST_EVENTS:
            events = await self._tail.batch()
            for event in events:
                self._steps.add(event)
            read += len(events)
            if len(events) < BATCH:
                return

    def _collectors(self) -> "CollectorRegistry":
        if self._registry is None:
            from prometheus_client import CollectorRegistry, ProcessCollector

            self._registry = CollectorRegistry()
            self._registry.register(self)
            ProcessCollector(registry=self._registry)
        return self._registry


def _filled(family: Any, values: Mapping[Any, float]) -> "Metric":
    for labels, value in values.items():
        family.add_metric([str(label) for label in labels], value)
    filled: Metric = family
    return filled

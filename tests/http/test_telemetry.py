"""Metrics and traces."""

import asyncio
import http.server
import re
import threading

import pytest

from nemo_jobs.domain.states import Trigger
from nemo_jobs.telemetry import METRICS, Histogram
from nemo_jobs.tracing import open_tracing
from tests.http.kit import JOBS, steps_named


async def metrics(service):
    answer = await service.client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    found = {}
    for line in answer.text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


async def test_jobs_and_their_steps_are_counted(service):
    await service.create(name="one")
    await service.create(name="two")
    step = await service.claim()
    await service.apply(step, Trigger.SUBMITTED)
    service.clock.advance(2)
    await service.apply(step, Trigger.STARTED)
    service.clock.advance(30)
    await service.finish(step)
    found = await metrics(service)
    assert found['nemo_jobs_jobs{state="completed",workspace="default"}'] == 1
    assert found['nemo_jobs_jobs{state="created",workspace="default"}'] == 1
    assert found['nemo_jobs_step_transitions_total{reason="finished",state="completed"}'] == 1
    assert found['nemo_jobs_step_run_seconds_bucket{le="60.0",state="completed"}'] == 1
    assert found['nemo_jobs_step_run_seconds_bucket{le="15.0",state="completed"}'] == 0
    assert found['nemo_jobs_step_run_seconds_sum{state="completed"}'] == 30
    assert found["nemo_jobs_step_wait_seconds_sum"] == 2
    assert (await metrics(service))[
        'nemo_jobs_step_transitions_total{reason="finished",state="completed"}'
    ] == 1


async def test_requests_are_counted_by_route_not_by_path(service):
    await service.create()
    for name in ("moth", "mole", "mouse"):
        await service.client.get(f"{JOBS}/{name}")
    await service.client.get("/nothing")
    route = "/apis/jobs/v2/workspaces/{workspace}/jobs/{name}"
    found = await metrics(service)
    assert found[f'nemo_jobs_http_requests_total{{method="GET",route="{route}",status="200"}}'] == 1
    assert found[f'nemo_jobs_http_requests_total{{method="GET",route="{route}",status="404"}}'] == 2
    assert found['nemo_jobs_http_requests_total{method="GET",route="unknown",status="404"}'] == 1
    assert found[f'nemo_jobs_http_request_seconds_count{{route="{route}"}}'] == 3


async def test_every_metric_is_told_and_described(service):
    text = (await service.client.get("/metrics")).text
    families = set(re.findall(r"^# TYPE (nemo_jobs_\w+) ", text, re.M))
    assert families == {
        name.removesuffix("_total") if name.endswith("_total") else name for name in METRICS
    } | {name for name in families if name.endswith("_total")} or families == set(METRICS)


def test_a_histogram_counts_each_value_once():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert histogram.total == 12.0


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes OTLP and keeps the spans."""

    spans: list

    def do_POST(self):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        request = ExportTraceServiceRequest()
        request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args):
        """Silent."""


@pytest.fixture
def collected(monkeypatch):
    spans: list = []
    handler = type("Handler", (Collector,), {"spans": spans})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield spans
    server.shutdown()
    thread.join()
    server.server_close()


def attributes(span):
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


async def test_a_finished_job_is_one_trace_with_its_steps(service, collected):
    tracing = open_tracing(service.db, "1.2.3", {"OTEL_EXPORTER_OTLP_ENDPOINT": "set"})
    assert tracing is not None
    await tracing.send_finished()
    running = asyncio.create_task(tracing.run())
    job = await service.create(platform_spec=steps_named("collect", "fit"))
    service.clock.advance(1)
    await service.finish(await service.start())
    service.clock.advance(1)
    await service.finish(await service.start(), Trigger.FAILED, status_details={"exit_code": 9})
    async with asyncio.timeout(10):
        while len(collected) < 3:
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    root, collect, fit = sorted(
        collected, key=lambda span: (bool(span.parent_span_id), span.start_time_unix_nano)
    )
    assert [span.name for span in (root, collect, fit)] == ["job moth", "step collect", "step fit"]
    assert {span.trace_id for span in collected} == {root.trace_id}
    assert collect.parent_span_id == fit.parent_span_id == root.span_id
    assert attributes(root)["nemo.job.id"] == job["id"]
    assert attributes(fit)["nemo.exit_code"] == 9
    assert fit.status.code == 2
    assert [event.name for event in collect.events] == ["pending", "active", "completed"]
    assert root.end_time_unix_nano - root.start_time_unix_nano == 2_000_000_000


def test_without_an_endpoint_there_are_no_traces(service):
    assert open_tracing(service.db, "1", {}) is None

"""Log records over OTLP: protobuf, batches of 5,000, from a few connections."""

import statistics
import time

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from bench.load import request, send_all
from bench.measures import Bench, Values, logged
from tests.e2e.service import JOBS

BATCH, BATCHES, SENDERS = 5_000, 100, 4
PROTOBUF = "application/x-protobuf"


def otlp(bench: Bench) -> Values:
    """Records a second until all are stored, durable and readable; decoding alone beside it."""
    batches, client = bench.count(BATCHES), bench.client()
    (name,) = bench.names(1)
    client.create(name, ["true"])
    client.wait(name)
    job = client.get(f"{JOBS}/{name}").json
    step = job["platform_spec"]["steps"][0]["name"]
    told = {"job": name, "job_attempt": job["attempt_id"], "job_step": step, "job_task": "task-of-bench"}
    body = batch(told)
    path = f"/apis/files/v2/workspaces/default/filesets/{job['fileset']}/otlp/v1/logs"
    message = request("POST", path, body, PROTOBUF)
    result = send_all(bench.service.port, iter([message] * batches), SENDERS)
    assert set(result.statuses) == {200}, result.statuses
    return {
        "records_per_second": batches * BATCH / result.wall,
        "records_lost": batches * BATCH - logged(client, name),
        "batch_p50_ms": statistics.median(result.seconds) * 1000,
        "client_cpu_share": result.client_cpu / result.wall,
        "floor_decode_per_second": decode(body, batches),
    }


def batch(told: dict[str, str]) -> bytes:
    """Records as a launcher makes them of the lines of a training log."""
    message = ExportLogsServiceRequest()
    group = message.resource_logs.add()
    for key, value in told.items():
        group.resource.attributes.add(key=key).value.string_value = value
    scope = group.scope_logs.add()
    for number in range(BATCH):
        record = scope.log_records.add()
        record.time_unix_nano = 1_700_000_000_000_000_000 + number * 1_000_123
        record.severity_number, record.severity_text = 9, "INFO"
        record.body.string_value = f"step={number // 7} loss={1 / (number + 1):.12f} ".ljust(99, "x")
        record.attributes.add(key="stream").value.string_value = "stdout"
    return bytes(message.SerializeToString())


def decode(body: bytes, batches: int) -> float:
    """Records a second when each batch is decoded and each field looked at, and nothing more."""
    began = time.perf_counter()
    for _ in range(batches):
        message = ExportLogsServiceRequest.FromString(body)
        for group in message.resource_logs:
            for scope in group.scope_logs:
                for record in scope.log_records:
                    seen = record.time_unix_nano, record.severity_number, record.severity_text
                    told = [(pair.key, pair.value.string_value) for pair in record.attributes]
                    assert len(seen) + len(told) + len(record.body.string_value) > 3
    return batches * BATCH / (time.perf_counter() - began)

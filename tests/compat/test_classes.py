"""The Python classes of the released client, sync and async, read what our service answers."""

import json
from typing import Any

import pytest

from tests.compat.kit import ReleasedClient

pytestmark = pytest.mark.time_limit(240)

HEAD = """
import json, os, tempfile, time
import nemo_platform
from nemo_platform import NeMoPlatform, AsyncNeMoPlatform
URL = os.environ["NMP_BASE_URL"]
STEP = {"name": "only", "executor": {"provider": "subprocess", "command": ["sh", "-c", "seq 1 30"]}}
def wait(client, name, *states):
    while client.jobs.get_status(name).status not in states:
        time.sleep(0.05)
"""


def run(nemo: ReleasedClient, script: str) -> Any:
    """What the script prints as its last line, as JSON."""
    said = nemo.python(HEAD + script)
    assert said.code == 0, said
    return json.loads(said.out.splitlines()[-1])


def test_the_life_of_a_job(nemo: ReleasedClient) -> None:
    found = run(
        nemo,
        """
client = NeMoPlatform(base_url=URL, workspace="default")
made = client.jobs.create(name="typed", source="classes", spec={"n": 1}, platform_spec={"steps": [STEP]},
                          custom_fields={"team": "moths"}, description="from a class")
wait(client, "typed", "completed")
job = client.jobs.retrieve("typed")
tree = client.jobs.get_status("typed")
step = client.jobs.steps.retrieve("only", job="typed")
(task,) = client.jobs.tasks.list("only", job="typed").data
one = client.jobs.tasks.retrieve(task.name, job="typed", step="only")
listed = [item.name for item in client.jobs.list(page_size=1, filter={"source": "classes"})]
steps = [item.name for item in client.jobs.steps.list("typed")]
lines = [line.message for line in client.jobs.get_logs("typed", limit=7)]
profiles = [p.backend for p in client.jobs.list_execution_profiles()]
client.jobs.update_status_details("typed", body={"note": "kept"})
details = client.jobs.retrieve("typed").status_details
client.jobs.delete("typed")
try:
    client.jobs.retrieve("typed")
    gone = None
except nemo_platform.NotFoundError as error:
    gone = error.response.json()["detail"]
print(json.dumps({
    "made": [made.status, made.attempt_id == job.attempt_id, made.custom_fields, type(made).__name__],
    "times": [job.created_at.tzinfo is not None, job.updated_at >= job.created_at],
    "tree": [tree.status, tree.steps[0].name, tree.steps[0].tasks[0].name == task.name],
    "step": [step.status, step.parent == job.attempt_id, step.id == step.entity_id],
    "task": [one.status, one.step_id == step.id],
    "listed": listed, "steps": steps, "lines": lines, "profiles": profiles, "details": details, "gone": gone,
}))
""",
    )
    assert found["made"] == ["created", True, {"team": "moths"}, "PlatformJobResponse"]
    assert found["times"] == [True, True]
    assert found["tree"] == ["completed", "only", True]
    assert found["step"] == ["completed", True, True] and found["task"] == ["completed", True]
    assert (found["listed"], found["steps"], found["profiles"]) == (["typed"], ["only"], ["subprocess"])
    assert found["lines"] == [str(n) for n in range(1, 31)]  # the class walks the cursors by itself
    assert found["details"] == {"note": "kept"}
    assert found["gone"] == "no job 'typed' in workspace 'default'"


def test_errors_have_their_class_and_are_not_repeated(nemo: ReleasedClient) -> None:
    found = run(
        nemo,
        """
seen = []
client = NeMoPlatform(base_url=URL, workspace="default", max_retries=2)
def note(response):
    seen.append(response.status_code)
client._client.event_hooks = {"response": [note]}
client.jobs.create(name="twice", source="classes", spec={}, platform_spec={"steps": [STEP]})
kinds = []
for act in (
    lambda: client.jobs.create(name="twice", source="classes", spec={}, platform_spec={"steps": [STEP]}),
    lambda: client.jobs.create(name="Bad Name", source="classes", spec={}, platform_spec={"steps": [STEP]}),
    lambda: client.jobs.list(filter={"colour": "red"}),
    lambda: client.jobs.get_logs("twice", page_cursor="nonsense"),
):
    try:
        act()
        kinds.append("none")
    except nemo_platform.APIStatusError as error:
        kinds.append(type(error).__name__)
print(json.dumps({"kinds": kinds, "seen": seen}))
""",
    )
    assert found["kinds"] == [
        "ConflictError", "UnprocessableEntityError", "BadRequestError", "UnprocessableEntityError",
    ]  # fmt: skip
    assert found["seen"] == [201, 409, 422, 400, 422]


def test_results_are_posted_listed_and_read(nemo: ReleasedClient) -> None:
    found = run(
        nemo,
        """
client = NeMoPlatform(base_url=URL, workspace="default")
job = client.jobs.create(name="fruitful", source="classes", spec={}, platform_spec={"steps": [STEP]})
wait(client, "fruitful", "completed")
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x" * 5000)
    file.flush()
    path = f"results/{job.attempt_id}/weights"
    client.files.upload(local_path=file.name, remote_path=path, fileset=job.fileset)
made = client.jobs.results.create("weights", job="fruitful", artifact_storage_type="fileset",
                                  artifact_url=f"default/{job.fileset}#{path}")
listed = [item.name for item in client.jobs.results.list("fruitful").data]
one = client.jobs.results.retrieve("weights", job="fruitful")
data = client.jobs.results.download("weights", job="fruitful").read()
print(json.dumps([made.job == job.id, listed, one.artifact_url == made.artifact_url, len(data)]))
""",
    )
    assert found == [True, ["weights"], True, 5000]


def test_log_records_are_sent_and_queried(nemo: ReleasedClient) -> None:
    found = run(
        nemo,
        """
client = NeMoPlatform(base_url=URL, workspace="default")
job = client.jobs.create(name="talker", source="classes", spec={}, platform_spec={"steps": [STEP]})
wait(client, "talker", "completed")
told = {"job": "talker", "job_attempt": job.attempt_id, "job_step": "only", "job_task": "task-mine"}
body = {"resourceLogs": [{
    "resource": {"attributes": [{"key": k, "value": {"stringValue": v}} for k, v in told.items()]},
    "scopeLogs": [{"logRecords": [
        {"timeUnixNano": str(1700000000 * 10**9 + n), "body": {"stringValue": f"record {n}"}}
        for n in range(3)
    ]}],
}]}
sent = client.files.otlp.logs.create(job.fileset, extra_body=body)
filters = {"job": "talker", "job_attempt": job.attempt_id, "job_task": "task-mine"}
asked = [line.message for line in client.files.otlp.logs.query(job.fileset, filters=filters, limit=2).data]
log = [line.message for line in client.jobs.get_logs("talker", task_id="task-mine")]
print(json.dumps([sent.to_dict(), asked, log]))
""",
    )
    sent, asked, log = found
    assert sent.get("partialSuccess") is None
    assert log == ["record 0", "record 1", "record 2"]
    assert asked == log[:2]


def test_the_async_class(nemo: ReleasedClient) -> None:
    found = run(
        nemo,
        """
import asyncio
async def main():
    async with AsyncNeMoPlatform(base_url=URL, workspace="default") as client:
        names = [f"async-{n}" for n in range(5)]
        await asyncio.gather(*(
            client.jobs.create(name=name, source="async", spec={}, platform_spec={"steps": [STEP]})
            for name in names
        ))
        while {(await client.jobs.get_status(name)).status for name in names} != {"completed"}:
            await asyncio.sleep(0.05)
        return sorted([job.name async for job in client.jobs.list(page_size=2, filter={"source": "async"})])
print(json.dumps(asyncio.run(main())))
""",
    )
    assert found == [f"async-{n}" for n in range(5)]


def test_a_stock_exporter_sends_protobuf_in_gzip(nemo: ReleasedClient) -> None:
    found = run(
        nemo,
        """
import logging
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry._logs import LogRecord, SeverityNumber
client = NeMoPlatform(base_url=URL, workspace="default")
job = client.jobs.create(name="exporter", source="classes", spec={}, platform_spec={"steps": [STEP]})
wait(client, "exporter", "completed")
told = {"job": "exporter", "job_attempt": job.attempt_id, "job_step": "only", "job_task": "task-mine"}
endpoint = f"{URL}/apis/files/v2/workspaces/default/filesets/{job.fileset}/otlp/v1/logs"
provider = LoggerProvider(Resource(told))
exporter = OTLPLogExporter(endpoint=endpoint, compression=Compression.Gzip)
provider.add_log_record_processor(BatchLogRecordProcessor(exporter, max_export_batch_size=100))
logger = provider.get_logger("mine")
for n in range(1000):
    number = SeverityNumber.ERROR if n % 10 == 0 else SeverityNumber.INFO
    told = {"body": f"record {n}", "severity_number": number, "attributes": {"n": n}}
    logger.emit(LogRecord(timestamp=10**18 + n, **told))
provider.force_flush()
provider.shutdown()
lines = [line.message for line in client.jobs.get_logs("exporter", task_id="task-mine", limit=400)]
print(json.dumps(lines))
""",
    )
    expected = [f"{'[stderr] ' if n % 10 == 0 else ''}record {n}" for n in range(1000)]
    assert found == expected

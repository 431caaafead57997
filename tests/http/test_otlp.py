"""Log records taken in over OTLP and read back."""

import gc
import gzip
import json
import sys
import threading
import time
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from nemo_jobs.http import otlp
from nemo_jobs.otlp import json_form, payload
from nemo_jobs.store import logs
from tests.http.kit import JOBS, open_service

FILESETS = "/apis/files/v2/workspaces/default/filesets"
OWN = f"{FILESETS}/job-fileset-moth/otlp/v1/logs"
TASK = "task-0123456789abcdef0123456789abcdef"
PROTOBUF = {"content-type": "application/x-protobuf"}
AT = 1_700_000_000_123_456_789


def source(step, **over):
    named = {"job": step.job, "job_attempt": step.attempt_id, "job_step": step.name, "job_task": TASK, **over}
    return {key: value for key, value in named.items() if value is not None}


def request(attributes, *records):
    """A request with one resource; a record is a text or the fields of one, with `attributes`."""
    message = ExportLogsServiceRequest()
    add(message, attributes, *records)
    return message.SerializeToString()


def add(message, attributes, *records):
    group = message.resource_logs.add()
    for key, value in attributes.items():
        group.resource.attributes.add(key=key).value.string_value = value
    scope = group.scope_logs.add()
    for given in records:
        fields: dict[str, Any] = {"text": given} if isinstance(given, str) else dict(given)
        found = fields.pop("attributes", {})
        record = scope.log_records.add()
        record.body.string_value = fields.pop("text", "")
        record.time_unix_nano = AT
        for name, value in fields.items():
            setattr(record, name, value)
        for key, value in found.items():
            record.attributes.add(key=key).value.string_value = value


async def send(service, body, url=OWN, **headers):
    return await service.client.post(url, content=body, headers={**PROTOBUF, **headers})


async def lines(service, name="moth"):
    found = (await service.client.get(f"{JOBS}/{name}/logs?limit=10000")).json()
    return [line["message"] for line in found["data"]]


async def records(service, step, url=OWN + "/query", **more):
    asked = {"filters": {"job": step.job, "job_attempt": step.attempt_id}, **more}
    answer = await service.client.post(url, json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
async def step(service):
    await service.create()
    return await service.start()


async def test_records_become_lines_of_the_attempt_that_they_name(service, step):
    answer = await send(service, request(source(step), "one", "", "three"))
    assert (answer.status_code, answer.json()) == (200, {"partialSuccess": None})
    page = (await service.client.get(f"{JOBS}/moth/logs")).json()
    assert [line["message"] for line in page["data"]] == ["one", "", "three"]
    assert page["data"][0] == {
        "timestamp": "2023-11-14T22:13:20.123456Z",
        "job": "moth",
        "job_step": "work",
        "job_task": TASK,
        "message": "one",
    }


async def test_severity_attributes_and_nanoseconds_are_kept(service, step):
    told = {"text": "look", "severity_number": 13, "severity_text": "WARN", "attributes": {"rank": "3"}}
    await send(service, request(source(step), told, {"text": "late", "time_unix_nano": AT + 1}))
    first, second = (await records(service, step))["data"]
    assert (first["time_unix_nano"], second["time_unix_nano"]) == (str(AT), str(AT + 1))
    assert (first["severity_number"], first["severity_text"], first["attributes"]) == (
        13,
        "WARN",
        {"rank": "3"},
    )
    assert (second["severity_number"], second["attributes"], second["message"]) == (0, {}, "late")


async def test_json_says_the_same_as_protobuf(service, step):
    def attribute(key, value):
        return {"key": key, "value": value}

    kinds = [
        ({"stringValue": "text"}, "text"),
        ({"intValue": "12"}, "12"),
        ({"doubleValue": 1.5}, "1.5"),
        ({"boolValue": True}, "true"),
        ({"bytesValue": "AAE="}, "AAE="),
        ({"arrayValue": {"values": [{"intValue": 1}, {"stringValue": "b"}]}}, '[1,"b"]'),
        ({"kvlistValue": {"values": [attribute("k", {"doubleValue": 2})]}}, '{"k":2}'),
        ({}, ""),
        (None, ""),
    ]
    sent = {
        "resourceLogs": [
            {
                "resource": {
                    "attributes": [attribute(k, {"stringValue": v}) for k, v in source(step).items()]
                },
                "scopeLogs": [
                    {
                        "logRecords": [
                            {
                                "timeUnixNano": str(AT),
                                "severityNumber": 9,
                                "severityText": "INFO",
                                "body": body,
                            }
                            for body, _ in kinds
                        ]
                    },
                    {"logRecords": [{"observedTimeUnixNano": AT, "body": {"stringValue": "\ud800 half"}}]},
                ],
            }
        ]
    }
    answer = await service.client.post(
        OWN, content=json.dumps(sent), headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()) == (200, {"partialSuccess": None})
    assert await lines(service) == [text for _, text in kinds] + ["\ufffd" * 3 + " half"]
    found = (await records(service, step))["data"]
    assert {line["time_unix_nano"] for line in found} == {str(AT)}
    assert [line["severity_text"] for line in found] == ["INFO"] * len(kinds) + [""]


async def test_a_record_without_a_time_gets_when_it_was_observed_or_came(service, step):
    body = request(
        source(step),
        {"text": "seen", "time_unix_nano": 0, "observed_time_unix_nano": AT},
        {"text": "came", "time_unix_nano": 0},
    )
    await send(service, body)
    seen, came = (await records(service, step))["data"]
    assert seen["time_unix_nano"] == str(AT)
    assert came["time_unix_nano"] == str(service.clock.now() * 1000)


async def test_the_stream_is_told_by_the_attribute_or_the_severity(service, step):
    body = request(
        source(step),
        {"text": "plain", "severity_number": 9},
        {"text": "bad", "severity_number": 17},
        {"text": "[ERROR] said by the program", "severity_number": 17},
        {"text": "[stderr] once", "severity_number": 9, "attributes": {"stream": "stderr"}},
        {"text": "not so bad", "severity_number": 17, "attributes": {"stream": "stdout"}},
        {"text": "else", "attributes": {"stream": "elsewhere"}},
    )
    await send(service, body)
    assert await lines(service) == [
        "plain",
        "[stderr] bad",
        "[ERROR] said by the program",
        "[stderr] once",
        "not so bad",
        "else",
    ]
    found = (await records(service, step))["data"]
    assert [line["attributes"] for line in found] == [{}] * 5 + [{"stream": "elsewhere"}]


async def test_bodies_follow_the_rules_of_lines(service, step):
    long = "é" * (600 << 10)  # 1.2 MB
    await send(service, request(source(step), "a\r\nb\n", "0 %\r50 %\r100 %\r", "x\0y", long))
    found = await lines(service)
    assert found[:4] == ["a", "b", "100 %", "x\ufffdy"]
    assert len(found) == 6 and "".join(found[4:]) == long
    assert len(found[4].encode()) == 1 << 20


async def test_gzip_in_one_part_or_several(service, step):
    body = request(source(step), "one") + request(source(step), "two")
    parts = gzip.compress(body[:40]) + gzip.compress(body[40:])
    answer = await send(service, parts, **{"content-encoding": "gzip"})
    assert answer.json() == {"partialSuccess": None}
    assert await lines(service) == ["one", "two"]


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"job": None}, "needs the attributes job, job_attempt, job_step and job_task"),
        ({"job_task": ""}, "needs the attributes"),
        ({"job": "other"}, "is not of a job 'other'"),
        ({"job_attempt": "platform-job-attempt-x"}, "has no attempt 'platform-job-attempt-x'"),
        ({"job_step": "play"}, "has no step 'play'"),
        ({"job_task": "Not A Name"}, "can't be the name of a task"),
        ({"job_task": "a\0b"}, "NUL"),
        ({"job": "x" * 100_000}, "is not of a job"),
    ],
)
async def test_records_of_nobody_are_counted_as_rejected(service, step, over, says):
    message = ExportLogsServiceRequest()
    add(message, source(step, **over), "lost", "lost too")
    add(message, source(step), "kept")
    answer = await send(service, message.SerializeToString())
    partial = answer.json()["partialSuccess"]
    assert (answer.status_code, partial["rejectedLogRecords"]) == (200, 2)
    assert says in partial["errorMessage"] and len(answer.text) < 1000
    assert await lines(service) == ["kept"]


async def test_a_job_may_be_named_by_its_id_and_a_pod_by_its_uid(service, step):
    uid = "0b0e5a4e-2f5c-4a53-9d5c-0f3d7f5a7b11"
    answer = await send(service, request(source(step, job=step.job_id, job_task=uid), "hi"))
    assert answer.json() == {"partialSuccess": None}
    page = (await service.client.get(f"{JOBS}/moth/logs")).json()
    assert page["data"][0]["job_task"] == f"task-{uid}"


async def test_records_of_another_fileset_are_refused(service, step):
    await service.create(name="wasp")
    other = OWN.replace("moth", "wasp")
    answer = await send(service, request(source(step), "astray"), url=other)
    assert "belong to fileset 'job-fileset-moth'" in answer.json()["partialSuccess"]["errorMessage"]
    assert await lines(service) == []
    page = await service.client.post(
        other + "/query", json={"filters": {"job": "moth", "job_attempt": step.attempt_id}}
    )
    assert page.status_code == 404 and "job-fileset-moth" in page.json()["detail"]


@pytest.mark.parametrize("name", ["job-fileset-wasp", "moth", "job-fileset-", "nothing%20here"])
async def test_an_unknown_fileset_is_not_found(service, step, name):
    answer = await send(service, request(source(step), "x"), url=f"{FILESETS}/{name}/otlp/v1/logs")
    assert answer.status_code == 404 and "no fileset" in answer.json()["detail"]
    answer = await send(service, request(source(step), "x"), url=OWN.replace("default", "elsewhere"))
    assert answer.status_code == 404


@pytest.mark.parametrize("path", ["../x", "jobs/./a", "jobs//a", "/jobs", "a b", "jobs/é", "jobs/.."])
async def test_a_base_path_that_leaves_its_place_is_refused(service, step, path):
    answer = await service.client.post(
        OWN, params={"artifact_base_path": path}, content=request(source(step), "x"), headers=PROTOBUF
    )
    assert answer.status_code == 400 and "artifact_base_path" in answer.json()["detail"]
    query = {"artifact_base_path": path, "filters": {"job": "moth", "job_attempt": step.attempt_id}}
    assert (await service.client.post(OWN + "/query", json=query)).status_code == 400
    assert await lines(service) == []


@pytest.mark.parametrize("path", ["jobs/moth", "jobs/mo@th+1", ""])
async def test_legal_base_paths_pass(service, step, path):
    answer = await service.client.post(
        OWN, params={"artifact_base_path": path}, content=request(source(step), "x"), headers=PROTOBUF
    )
    assert answer.json() == {"partialSuccess": None}


def varint(number):
    return bytes([number & 0x7F | 0x80, number >> 7]) if number > 127 else bytes([number])


def wrapped(tag, data):
    return bytes([tag << 3 | 2]) + varint(len(data)) + data


BROKEN = [
    b"\x0a",  # cut in the middle of a field
    b"\x0a\x05ab",
    b"\xff" * 20,
    b"\x0b",  # a group
    wrapped(1, wrapped(2, wrapped(2, b"\x2a\x03\x0a\x01\xff"))),  # a body that is not UTF-8
    wrapped(1, wrapped(2, wrapped(2, b"\x09\x00"))),
    wrapped(1, wrapped(1, b"\x0a\xff")),
]


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
async def test_broken_protobuf_is_refused(service, step, body):
    whole = request(source(step), *["kept" for _ in range(3000)])
    answer = await send(service, whole + body)
    assert answer.status_code == 400 and "protobuf" in answer.json()["detail"]
    assert await lines(service) == []  # of a request that failed nothing is stored


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"resourceLogs":{}}',
        b'{"resourceLogs":[1]}',
        b'{"resourceLogs":[{"resource":[]}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":"x"}]}]}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":-1}]}]}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":18446744073709551616}]}]}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"severityNumber":99}]}]}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"severityText":1}]}]}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":"text"}]}]}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"attributes":[{}]}]}]}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":Infinity}]}]}]}',
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":'
        + b'{"arrayValue":{"values":[' * 200
        + b"]}}" * 200
        + b"}]}]}]}",
    ],
)
async def test_broken_json_is_refused(service, step, body):
    answer = await service.client.post(OWN, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert len(answer.json()["detail"]) < 500


async def test_a_gzip_bomb_is_refused_before_it_is_unpacked(service, step, monkeypatch):
    bomb = gzip.compress(bytes(payload.MAX_DECODED + 1))
    assert len(bomb) < 100_000
    answer = await send(service, bomb, **{"content-encoding": "gzip"})
    assert answer.status_code == 413 and "16 MiB" in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [b"no gzip", gzip.compress(b"cut short")[:-9], gzip.compress(b"") + b"tail"],
    ids=["no gzip", "cut short", "with a tail"],
)
async def test_broken_gzip_is_refused(service, step, body):
    answer = await send(service, body, **{"content-encoding": "gzip"})
    assert answer.status_code == 400 and "gzip" in answer.json()["detail"]


async def test_a_body_of_countless_gzip_members_is_refused_soon(service, step):
    """Looking for the next one copied all that was left: half a million took minutes."""
    members = gzip.compress(b"")
    answer = await send(service, members * (payload.MAX_MEMBERS + 1), **{"content-encoding": "gzip"})
    assert answer.status_code == 400 and "members" in answer.json()["detail"]
    body = request(source(step), "hello")
    most = gzip.compress(body) + members * (payload.MAX_MEMBERS - 1)
    assert (await send(service, most, **{"content-encoding": "gzip"})).status_code == 200
    assert await lines(service) == ["hello"]


def test_other_threads_go_on_while_json_is_read(monkeypatch):
    """The event loop is one of them."""
    body = b'{"resourceLogs":[%s]}' % b",".join([b"{}"] * 100_000)
    turns: list[int] = [0]
    read: list[int] = []
    done = threading.Event()

    def loads(*args, **more):
        begin = turns[0]
        found = real(*args, **more)
        read.append(turns[0] - begin)
        return found

    def take_turns():
        while not done.is_set():
            turns[0] += 1
            time.sleep(0)

    real = json.loads
    monkeypatch.setattr(json, "loads", loads)
    other = threading.Thread(target=take_turns)
    interval = sys.getswitchinterval()
    gc.disable()  # its hooks would be turns as well
    sys.setswitchinterval(1e-5)
    try:
        other.start()
        with pytest.raises(payload.TooLarge):
            list(json_form.decode(body, 0, lambda source: None))
    finally:
        done.set()
        other.join()
        sys.setswitchinterval(interval)
        gc.enable()
    assert read[0] > 20


async def test_more_than_is_taken_at_once(service, step, monkeypatch):
    empty = wrapped(1, b"")
    for body in (
        empty * (payload.MAX_RESOURCES + 1),
        wrapped(1, wrapped(2, b"")) * 2,
        request(source(step), *["x"] * 3),
        request(source(step), "x" * 200),
    ):
        with monkeypatch.context() as small:
            if body[:2] != empty:
                small.setattr("nemo_jobs.otlp.protobuf.MAX_ENTRIES", 1)
                small.setattr("nemo_jobs.otlp.protobuf.MAX_RECORD", 150)
            answer = await send(service, body)
        assert answer.status_code == 413, body[:20]
    assert await lines(service) == []


@pytest.mark.parametrize("record", [b"\x32\x00" * 120, b"\x2a\xf3\x01\x2a\xf0\x01" + b"\x0a\x00" * 120])
async def test_attributes_and_lists_of_nothing_are_counted(service, step, monkeypatch, record):
    monkeypatch.setattr("nemo_jobs.otlp.protobuf.MAX_VALUES", 100)
    answer = await send(service, request(source(step), "x") + wrapped(1, wrapped(2, wrapped(2, record))))
    assert answer.status_code == 413 and "100 attributes" in answer.json()["detail"]
    assert await lines(service) == []


async def test_the_type_and_the_encoding_of_the_body_are_checked(service, step):
    body = request(source(step), "x")
    for kind in ("text/plain", "text/plain; protobuf", "multipart/form-data"):
        assert (await send(service, body, **{"content-type": kind})).status_code == 415
    assert (await send(service, body, **{"content-encoding": "br"})).status_code == 415
    for kind in ("application/protobuf", "application/vnd.google.protobuf; charset=utf-8"):
        assert (await send(service, body, **{"content-type": kind})).status_code == 200
    answer = await service.client.post(JOBS, content=body, headers=PROTOBUF)
    assert answer.status_code == 415
    answer = await service.client.post(OWN + "/query", content=body, headers=PROTOBUF)
    assert answer.status_code == 415


async def test_batches_that_wait_in_crowds_are_put_off(service, step, monkeypatch):
    monkeypatch.setattr(otlp, "MOST_WAITING", 0)
    answer = await send(service, request(source(step), "x"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert await lines(service) == []


async def test_the_limit_of_a_log_holds_and_what_is_over_it_is_counted(tmp_path):
    text = "y" * 99
    async with open_service(tmp_path, config="jobs: {log_limit_bytes: 1048576}\n") as service:
        await service.create()
        step = await service.start()
        body = request(source(step), *[text] * 5000)
        refused = [(await send(service, body)).json()["partialSuccess"] for _ in range(4)]
        found = await lines(service)
        total = (await service.client.get(f"{JOBS}/moth/logs?limit=1")).json()["total"]
    assert refused[:2] == [None, None]
    assert refused[2]["rejectedLogRecords"] == 15_000 - (total - 1)
    assert "has reached its limit of 1048576 bytes" in refused[3]["errorMessage"]
    assert refused[3]["rejectedLogRecords"] == 5000
    assert total - 1 <= 1048576 / 100 + otlp_piece() and len(found) == 10_000


def otlp_piece():
    from nemo_jobs.otlp.records import FULL_RECORDS

    return FULL_RECORDS


async def test_pages_and_windows_cross_pieces(service, step):
    texts = [f"line {n}" for n in range(2500)]
    body = request(source(step), *[{"text": t, "time_unix_nano": AT + n} for n, t in enumerate(texts)])
    await send(service, gzip.compress(body), **{"content-encoding": "gzip"})
    found, cursor = [], None
    while True:
        page = await records(service, step, limit=700, page_cursor=cursor)
        found += page["data"]
        cursor = page["next_page"]
        if cursor is None:
            break
    assert [line["message"] for line in found] == texts
    assert [int(line["time_unix_nano"]) - AT for line in found] == list(range(2500))
    assert page["total"] == 2500
    tail = await records(service, step, tail=3)
    assert [line["message"] for line in tail["data"]] == texts[-3:]


async def test_a_query_is_checked_like_the_log_of_a_job(service, step):
    filters = {"job": "moth", "job_attempt": step.attempt_id}
    for asked, status in (
        ({"filters": filters, "tail": 1, "limit": 1}, 400),
        ({"filters": filters, "page_cursor": "nonsense"}, 422),
        ({"filters": filters, "limit": 0}, 422),
        ({"filters": {"job": "moth"}}, 422),
        ({"filters": {**filters, "job": "wasp"}}, 404),
        ({"filters": {**filters, "job_step": "play"}}, 404),
        ({}, 422),
    ):
        answer = await service.client.post(OWN + "/query", json=asked)
        assert answer.status_code == status, (asked, answer.text)


async def test_records_of_many_tasks_in_one_request(service, step):
    message = ExportLogsServiceRequest()
    for number in range(60):
        add(message, source(step, job_task=f"task-{number:02}"), f"from {number}")
    answer = await send(service, message.SerializeToString())
    assert answer.json() == {"partialSuccess": None}
    assert await lines(service) == [f"from {number}" for number in range(60)]
    one = (await service.client.get(f"{JOBS}/moth/logs?task_id=task-07")).json()
    assert [line["message"] for line in one["data"]] == ["from 7"]


async def test_merging_the_chunks_of_an_ended_attempt_keeps_what_records_said(service, step):
    for number in range(5):
        told = {"text": f"n{number}", "severity_number": number, "attributes": {"n": str(number)}}
        await send(service, request(source(step), {**told, "time_unix_nano": AT + number}))
    before = await records(service, step)
    await service.finish(step, lines=[("stdout", "plain")])
    assert await service.db.write(logs.compact_ended, 20) >= 5
    after = await records(service, step)
    assert after["data"][:5] == before["data"]
    assert after["data"][5]["message"] == "plain" and "severity_number" not in after["data"][5]


async def test_batches_are_decoded_beside_the_event_loop(service, step, monkeypatch):
    decode, threads = otlp._decode, []

    def seen(*given):
        threads.append(threading.current_thread())
        return decode(*given)

    monkeypatch.setattr(otlp, "_decode", seen)
    assert (await send(service, request(source(step), "x"))).status_code == 200
    assert len(threads) == 1 and threads[0] is not threading.current_thread()

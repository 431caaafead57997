"""Records of one program are read by what they have in common; each reads as it would alone."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber

from nemo_jobs.otlp import protobuf
from nemo_jobs.otlp.payload import BadPayload
from nemo_jobs.store.chunks import pack_heads, unpack

SOURCE = {"job": "moth", "job_attempt": "att-1", "job_step": "fit", "job_task": "task-1"}
NOW = 1_800_000_000_000_000_007
TIMES = st.sampled_from([0, 1, 999, 1_700_000_000_123_456_789, 2**64 - 1])
TEXTS = st.sampled_from(
    [
        *("", "one", "x" * 127, "x" * 128, "x" * 40_000, "a\nb", "a\n", "\n", "50%\r100%", "gr\u00fc\u00df"),
        *("[WARN] hot", "[stderr] slow", "\0", "Y\x08\x01"),
    ]
)
STREAMS = st.sampled_from([None, "stdout", "stderr", "other", 7])
OTHERS = st.dictionaries(
    st.sampled_from(["k", "level", "\u00fc"]), st.sampled_from(["v", "", 3, 0.5, True]), max_size=2
)


@st.composite
def record(draw):
    found = LogRecord(time_unix_nano=draw(TIMES), observed_time_unix_nano=draw(TIMES))
    found.severity_number = draw(st.sampled_from([0, 9, 17, 24]))
    found.severity_text = draw(st.sampled_from(["", "INFO", "E" * 130]))
    body = draw(st.one_of(TEXTS, st.sampled_from([None, 5, b"\xff"])))
    put(found.body, body)
    attributes = draw(OTHERS)
    stream = draw(STREAMS)
    if stream is not None:
        attributes["stream"] = stream
    for key, value in attributes.items():
        put(found.attributes.add(key=key).value, value)
    found.flags = draw(st.sampled_from([0, 1]))
    found.trace_id = draw(st.sampled_from([b"", b"Y" * 16]))
    found.span_id = draw(st.sampled_from([b"", b"\x59" * 8]))
    found.event_name = draw(st.sampled_from(["", "saved"]))
    return found.SerializeToString()


def put(value, said):
    if said is None:
        return
    names = {
        bool: "bool_value",
        int: "int_value",
        float: "double_value",
        str: "string_value",
        bytes: "bytes_value",
    }
    setattr(value, names[type(said)], said)


def field(number, data):
    length, size = b"", len(data)
    while size > 0x7F:
        length, size = length + bytes((size & 0x7F | 0x80,)), size >> 7
    return bytes((number << 3 | 2,)) + length + bytes((size,)) + data


def request(records):
    group = ResourceLogs(scope_logs=[ScopeLogs()])
    for key, value in SOURCE.items():
        group.resource.attributes.add(key=key).value.string_value = value
    del group.scope_logs[:]
    scope = b"".join(field(2, one) for one in records)
    return field(1, group.SerializeToString() + field(2, scope))


def read(records, hide=None):
    """What is stored of the records, and how many lines and bytes that is."""
    found = []
    for piece in protobuf.decode(request(records), NOW, lambda source: hide):
        runs, lines = unpack(
            *pack_heads(piece.heads, b"".join(piece.lines)), piece.count, piece.at, piece.stream
        )
        assert sum(run[0] for run in runs) == piece.count == lines.count(b"\n")
        assert (runs[0][1], runs[0][2]) == (piece.at, piece.stream)
        found.append((piece.source, piece.records, runs, lines, piece.size))
    return found


def read_each_whole(records, monkeypatched=protobuf._Reader):
    real = monkeypatched._read_line
    monkeypatched._read_line = lambda *_: False
    try:
        return read(records)
    finally:
        monkeypatched._read_line = real


@settings(max_examples=150, deadline=None)
@given(st.lists(record(), min_size=1, max_size=6))
def test_a_record_reads_the_same_beside_others_as_whole(records):
    assert read(records) == read_each_whole(records)


@settings(max_examples=150, deadline=None)
@given(st.lists(record(), min_size=2, max_size=2), st.lists(record(), min_size=1, max_size=2), st.data())
def test_fields_in_another_order_or_twice_and_broken_ones_read_the_same(two, others, data):
    cut = data.draw(st.integers(0, len(two[0])))
    odd = [two[0] + two[1], two[1] + two[0], two[0][cut:] + two[1], two[0][:cut] + two[1], two[0][:cut]]
    for one in odd:
        records = [*others, one, *others]
        try:
            wanted = read_each_whole(records)
        except BadPayload:
            wanted = None
        try:
            found = read(records)
        except BadPayload:
            found = None
        assert found == wanted


def test_lines_of_one_program_are_not_read_whole(monkeypatch):
    whole = []
    real = protobuf._parsed

    def watched(message, data):
        whole.append(message)
        return real(message, data)

    monkeypatch.setattr(protobuf, "_parsed", watched)
    records = []
    for number in range(50):
        one = LogRecord(time_unix_nano=1_700_000_000_000_000_000 + number, severity_text="INFO")
        one.severity_number = SeverityNumber.SEVERITY_NUMBER_INFO
        one.observed_time_unix_nano = 1_700_000_000_000_000_000 + number * number
        one.body.string_value = f"step {number}"
        put(one.attributes.add(key="stream").value, "stdout")
        put(one.attributes.add(key="rank").value, 3)
        records.append(one.SerializeToString())
    ((_, count, runs, lines, _),) = read(records)
    assert LogRecord not in whole
    assert (count, lines.decode().splitlines()) == (50, [f"step {number}" for number in range(50)])
    assert [run[3] for run in runs] == [[number, 9, "INFO", {"rank": 3}] for number in range(50)]


def test_what_is_hidden_is_hidden_in_lines_levels_and_attributes():
    def hide(data):
        return data.replace(b"hunter2", b"***")

    one = LogRecord(time_unix_nano=1, severity_text="hunter2")
    one.body.string_value = "login hunter2"
    values = one.attributes.add(key="is hunter2").value.array_value.values
    put(values.add(), "a hunter2")
    put(values.add(), 4)
    other = LogRecord(time_unix_nano=1)
    put(other.body.kvlist_value.values.add(key="k").value, "hunter2\nmore")
    records = [one.SerializeToString()] * 2 + [other.SerializeToString()]
    ((_, _, runs, lines, _),) = read(records, hide)
    assert lines.splitlines() == [
        b"login ***",
        b"login ***",
        json.dumps({"k": "***\nmore"}, separators=(",", ":")).encode(),
    ]
    assert [run[3] for run in runs] == [[1, 0, "***", {"is ***": ["a ***", 4]}]] * 2 + [[1, 0, "", {}]]

"""Taking frames apart, knowing where reading stands, and counting what the engine writes. Pure."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_jobs.backends.docker.errors import EngineAway
from nemo_jobs.backends.docker.log_entries import Entry, Fill, Frames, Position, Seeker, limits, runs


def stamp(number: int) -> bytes:
    return f"2026-01-02T03:04:05.{number:09d}Z".encode()


def frame(entry: Entry) -> bytes:
    stream, at, data = entry
    content = at + b" " + data
    return bytes([stream, 0, 0, 0]) + len(content).to_bytes(4, "big") + content


ENTRY = st.tuples(st.sampled_from([1, 2]), st.integers(0, 5).map(stamp), st.binary(max_size=40))


@given(st.lists(ENTRY, max_size=8), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_frames_are_whole_however_they_are_cut(entries: list[Entry], sizes: list[int]) -> None:
    data, frames, found, turn = b"".join(map(frame, entries)), Frames(), [], 0
    while data:
        size = sizes[turn % len(sizes)]
        found += frames.feed(data[:size])
        data, turn = data[size:], turn + 1
    assert found == entries


def test_what_the_engine_says_in_the_middle_ends_the_entries() -> None:
    frames, first = Frames(), (1, stamp(1), b"a\n")
    text = b"Error grabbing logs: unexpected EOF\n"
    data = frame(first) + b"\x03\0\0\0" + len(text).to_bytes(4, "big") + text
    assert frames.feed(data[:-3]) == [first]
    assert frames.failure == ""
    assert frames.feed(data[-3:]) == []
    assert "unexpected EOF" in frames.failure


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x01\0\0\0\xff\xff\xff\xff", b"\x01\0\0\0\0\0\0\x05abcd\n"],
    ids=["other bytes", "a huge frame", "no time stamp"],
)
def test_bytes_that_are_no_such_frames_are_refused(data: bytes) -> None:
    with pytest.raises(EngineAway):
        Frames().feed(data)


@given(st.lists(ENTRY, min_size=1, max_size=30), st.data())
def test_reading_goes_on_behind_any_position(entries: list[Entry], data: st.DataObject) -> None:
    """In each stream time stamps don't run back; many entries may share one."""
    streams = {each: sorted(at for stream, at, _ in entries if stream == each) for each in (1, 2)}
    written = [(stream, streams[stream].pop(0), text) for stream, _, text in entries]
    at = data.draw(st.integers(1, len(written)))
    position = Position()
    for run in runs(written[:at]):
        position.move(run)
    position = Position.from_json(json.loads(json.dumps(position.to_json())))
    seeker = Seeker(position)
    cut = data.draw(st.integers(0, len(written)))
    assert [*seeker.skip(written[:cut]), *seeker.skip(written[cut:])] == written[at:]
    assert seeker.at_end()


def test_a_window_begins_before_the_position_only_if_its_first_entry_surely_does() -> None:
    position = Position()
    position.move([(1, stamp(5), b"a\n")])
    position.move([(2, stamp(3), b"b\n")])
    assert position.behind((1, stamp(4), b""))
    assert not position.behind((1, stamp(5), b""))  # one of several of this time, nobody knows which
    assert not position.behind((2, stamp(4), b""))
    assert not Position().behind((1, stamp(1), b""))


def driver_line(entry: Entry, attributes: str = "") -> bytes:
    """An entry as the json-file driver writes it."""
    stream, at, data = entry
    text = ""
    for char in data.decode():
        if char in '"\\\n\r':
            text += {"\n": "\\n", "\r": "\\r"}.get(char, f"\\{char}")
        elif char < " " or char in "<>&\u2028\u2029":
            text += f"\\u{ord(char):04x}"
        else:
            text += char
    moment = at.decode()[:-1].rstrip("0").rstrip(".") + "Z"
    name = "stdout" if stream == 1 else "stderr"
    return f'{{"log":"{text}","stream":"{name}",{attributes}"time":"{moment}"}}\n'.encode()


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=30).map(str.encode)
TIMES = st.sampled_from([0, 1, 10, 123456789, 120000000]).map(stamp)


@given(st.lists(st.tuples(st.sampled_from([1, 2]), TIMES, TEXT), max_size=20), st.integers(60, 400))
def test_the_count_of_a_file_is_that_of_the_driver(entries: list[Entry], limit: int) -> None:
    fill, size, whole = Fill(limit), 0, Fill(limit)
    for entry in entries:
        room = fill.room([entry])
        assert room == (1 if size < limit else 0)
        if size >= limit:
            size = 0
        size += len(driver_line(entry))
        fill.add([entry])
        assert (fill.high, fill.low, fill.ahead) == (size, size, 0)
    whole.add(entries)
    assert whole.state == fill.state


def test_what_may_be_a_bad_byte_makes_the_count_unsure_near_the_end_of_a_file_only() -> None:
    fill = Fill(1000)
    fill.add([(1, stamp(1), "\ufffd".encode() * 40)])
    assert (fill.high - fill.low, fill.sure) == (120, True)
    line = (1, stamp(123456789), b"x\n")
    while fill.sure:
        fill.add([line])
    assert fill.high >= 1000 > fill.low
    while not fill.sure:
        fill.add([line])
    assert fill.ahead == 0
    assert fill.high >= fill.low > 0


def test_limits_are_read_from_what_the_engine_knows_of_a_container() -> None:
    def of(of_container: Any = None, **config: str) -> tuple[int | None, int]:
        return limits({"HostConfig": {"LogConfig": {"Config": config}}, "Config": {"Labels": of_container}})

    assert of() == (None, 0)
    assert of(**{"max-size": "268435456"}) == (268435456, 0)
    assert of(**{"max-size": "20k"}) == (20_000, 0)
    assert of(**{"max-size": "1.5m"}) == (1_500_000, 0)
    assert of(**{"max-size": "-1"}) == (None, 0)
    given = {"a": "1", "b": "\u00f6", "c": "no"}
    assert of(given, labels="b,a")[1] == len('"attrs":{"a":"1","b":"ö"},'.encode())

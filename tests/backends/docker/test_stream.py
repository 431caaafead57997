"""Frames of output taken apart, wherever they were cut."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_jobs.backends.docker.errors import EngineAway
from nemo_jobs.backends.docker.stream import Demultiplexer


def frame(stream: int, content: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(content)) + content


FRAMES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=30)


@given(FRAMES, st.lists(st.integers(1, 30), min_size=1, max_size=30))
def test_frames_come_whole_and_in_order_wherever_they_are_cut(
    frames: list[tuple[int, bytes]], sizes: list[int]
) -> None:
    data = b"".join(frame(*one) for one in frames)
    demultiplexer, got, at, turn = Demultiplexer(), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        got += demultiplexer.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert got == frames
    assert demultiplexer.pending == 0


@given(FRAMES, st.integers(1, 7))
def test_what_is_cut_off_is_known_to_be(frames: list[tuple[int, bytes]], missing: int) -> None:
    data = b"".join(frame(*one) for one in [*frames, (1, b"the last")])
    demultiplexer = Demultiplexer()
    assert demultiplexer.feed(data[:-missing]) == frames
    assert demultiplexer.pending == 16 - missing


@pytest.mark.parametrize(
    "data",
    [
        b"plain text without frames",
        b"\x00\x00\x00\x00\x00\x00\x00\x01x",  # standard input is never sent
        b"\x01\x00\x00\x01\x00\x00\x00\x01x",
        b"\x04\x00\x00\x00\x00\x00\x00\x01x",
        b"\x01\x00\x00\x00\xff\xff\xff\xff",
        b"\xff" * 9,
    ],
)
def test_what_is_no_frame_is_told_as_such(data: bytes) -> None:
    with pytest.raises(EngineAway, match="isn't in frames"):
        Demultiplexer().feed(frame(1, b"good") + data)


def test_the_engine_s_own_error_in_the_output_is_told() -> None:
    with pytest.raises(EngineAway, match="broke off the output: error from the driver"):
        Demultiplexer().feed(frame(3, b"error from\nthe driver"))

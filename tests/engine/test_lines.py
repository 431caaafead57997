"""Bytes to lines: nothing lost, nothing doubled, progress bars bounded."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nemo_jobs.engine.lines import MAX_LINE, LineSplitter


def _split(blocks: list[bytes]) -> bytes:
    splitter = LineSplitter()
    out = b"".join(splitter.feed(block)[0] for block in blocks)
    return out + splitter.finish()[0]


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(c, len(data)) for c in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


@given(st.binary(max_size=400).map(lambda b: b.replace(b"\r", b"")), st.lists(st.integers(0, 400)))
def test_every_byte_is_stored_however_the_blocks_are_cut(data: bytes, cuts: list[int]) -> None:
    expected = data if data.endswith(b"\n") or not data else data + b"\n"
    assert _split(_cut(data, cuts)) == expected


@given(st.text("ab\r\n ", max_size=60).map(str.encode), st.lists(st.integers(0, 60)))
def test_the_cut_of_blocks_never_changes_the_lines(data: bytes, cuts: list[int]) -> None:
    assert _split(_cut(data, cuts)) == _split([data])


@given(st.lists(st.text("ab\r\n", max_size=10).map(str.encode), max_size=10))
def test_the_count_is_the_number_of_line_feeds(blocks: list[bytes]) -> None:
    splitter = LineSplitter()
    for block in blocks:
        lines, count = splitter.feed(block)
        assert lines.count(b"\n") == count


@given(st.text("ab\r\n", max_size=40).map(str.encode), st.integers(0, 40))
def test_state_and_restore_go_on_in_the_middle_of_a_line(data: bytes, at: int) -> None:
    first = LineSplitter()
    out = first.feed(data[:at])[0]
    second = LineSplitter()
    state = first.state()
    if state is not None:
        second.restore(state)
    out += second.feed(data[at:])[0] + second.finish()[0]
    assert out == _split([data])


def test_windows_line_ends_and_blank_lines_are_kept() -> None:
    assert _split([b"a\r\n\r\n\nb"]) == b"a\n\n\nb\n"


def test_c001_a_progress_bar_stores_snapshots_and_its_last_state() -> None:
    splitter = LineSplitter()
    out = b""
    for i in range(2001):
        out += splitter.feed(b"\r%4d/2000" % i)[0]
        if i % 1000 == 999:
            out += splitter.snapshot()
    out += splitter.feed(b"\nEND\n")[0]
    assert out.split(b"\n") == [b" 998/2000", b"1998/2000", b"2000/2000", b"END", b""]


def test_a_bar_that_was_just_stored_is_not_stored_again_at_its_end() -> None:
    splitter = LineSplitter()
    splitter.feed(b"10%\r100%\r")
    assert splitter.snapshot() + splitter.feed(b"\nnext\n")[0] in (b"100%\nnext\n", b"10%\n100%\nnext\n")
    assert splitter.snapshot() == b""


def test_a_line_of_many_megabytes_is_split_between_characters() -> None:
    data = "漢".encode() * MAX_LINE
    lines = _split([data[i : i + 65536] for i in range(0, len(data), 65536)])
    pieces = lines.split(b"\n")[:-1]
    assert b"".join(pieces) == data
    assert all(len(piece) <= MAX_LINE and piece.decode() for piece in pieces)

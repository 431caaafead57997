"""Pictures of unfinished lines: seen while they are drawn, and gone when the real bytes come."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.log_screen import MOST, Line, OpenLines
from nemo_jobs.backends.docker.logs import logs
from nemo_jobs.engine.lines import LineSplitter
from tests.bed.docker import DockerServer
from tests.bed.docker_images import BUSYBOX
from tests.bed.proxy import Proxy

BYTES = st.lists(st.sampled_from([b"a", b"b", b" ", b"\r", b"\n", b"\r\n", b"10%"]), max_size=20).map(
    b"".join
)


@given(st.lists(st.tuples(BYTES, st.sampled_from([b"", b"99%", b"x"]), st.booleans()), max_size=8))
def test_a_picture_changes_no_line_that_has_something_to_show(parts: list[tuple[bytes, bytes, bool]]) -> None:
    """Wherever bytes are cut, pictures are drawn and reading is left off. A line of nothing but blanks
    may show the picture: the bar stood there last."""
    plain, drawn, lines = LineSplitter(), LineSplitter(), OpenLines(None)
    expected = found = b""
    for data, picture, left_off in parts:
        expected += plain.feed(data)[0]
        found += drawn.feed(lines.passed(1, data))[0]
        if picture:
            found += drawn.feed(lines.draw(1, picture))[0]
        if left_off:
            lines = OpenLines(json.loads(json.dumps(lines.to_json())))
    expected += plain.feed(b"end\n")[0]
    found += drawn.feed(lines.passed(1, b"end\n"))[0]
    pairs = list(zip(expected.split(b"\n"), found.split(b"\n"), strict=True))
    assert [b for a, b in pairs if a.strip()] == [a for a, _ in pairs if a.strip()]


def test_a_long_unfinished_line_is_not_drawn_over() -> None:
    lines = OpenLines(None)
    lines.passed(1, b"x" * (MOST + 1))
    assert lines.draw(1, b"10%") == b""
    assert lines.passed(1, b"y\n") == b"y\n"
    assert lines.draw(1, b"10%") == b"\r10%\r10%"
    assert lines.draw(2, b"10%") == b"\r10%\r10%"


@pytest.mark.parametrize(
    ("blocks", "picture"),
    [
        ([b"50%"], b""),  # no carriage return: may be anything, and comes with its end of line
        ([b"cut off\r10%"], b"10%"),
        ([b"tail\r"], b""),  # it was looked at in the middle of something
        ([b"line\n10%\r"], b"10%"),
        ([b"\r10%", b"\r   \r"], b"10%"),
        ([b"\r10%", b"\r20%\nnext"], b""),
        ([b"\r" + b"x" * (MOST + 1)], b""),
        ([b"\r10%"] * 5000, b"10%"),
    ],
)
def test_the_last_redraw_is_the_picture(blocks: list[bytes], picture: bytes) -> None:
    line = Line()
    for block in blocks:
        line.feed(block, 1.0)
    assert line.picture() == picture


@pytest.fixture
def bar(docker: DockerServer) -> Iterator[str]:
    """A container that draws for three seconds."""
    script = "echo start; i=0; while [ $i -lt 30 ]; do i=$((i+1)); printf '\\r%d/30' $i; sleep .1; done; echo"
    body = {"Image": BUSYBOX, "Cmd": ["sh", "-c", script], "HostConfig": {"NetworkMode": "host"}}
    container = docker.api.post("/containers/create", body)["Id"]
    docker.api.post(f"/containers/{container}/start")
    yield container
    docker.api.delete(f"/containers/{container}", force=True)


@pytest.fixture
async def engine(docker: DockerServer) -> AsyncIterator[DockerEngine]:
    async with await DockerEngine.open(docker.host) as engine:
        yield engine


async def test_a_bar_is_seen_while_it_is_drawn(engine: DockerEngine, docker: DockerServer, bar: str) -> None:
    """Also by a reader that is left off again and again."""
    ended, cursor, splitter = asyncio.Event(), None, LineSplitter()
    lines, shown, reading = b"", set(), True

    async def end() -> None:
        await asyncio.to_thread(docker.api.post, f"/containers/{bar}/wait")
        ended.set()

    ending = asyncio.create_task(end())
    while reading:
        reading = False
        async with contextlib.aclosing(logs(engine, bar, "task", cursor, ended)) as pieces:
            async for piece in pieces:
                cursor = json.loads(json.dumps(piece.cursor))
                lines += splitter.feed(piece.data)[0]
                shown.add(splitter.snapshot())
                splitter = again(splitter)
                if not ended.is_set() and len(shown) == 3:
                    reading = True
                    break
    await ending
    assert len({picture for picture in shown if picture.endswith(b"/30\n")}) >= 2
    assert lines + splitter.finish()[0] in (b"start\n30/30\n", b"start\n")  # or it was shown as a picture
    assert b"30/30\n" in (lines, *shown) or b"30/30" in lines


def again(splitter: LineSplitter) -> LineSplitter:
    """As it is after a restart of the service."""
    state: Json | None = splitter.state()
    other = LineSplitter()
    if state is not None:
        other.restore(json.loads(json.dumps(state)))
    return other


async def test_a_container_that_only_writes_lines_is_looked_at_once(
    docker: DockerServer, tmp_path: Path
) -> None:
    """No call comes back, however often it pauses."""
    proxy = Proxy(str(docker.socket), tmp_path / "engine.sock")
    script = "for i in 1 2 3 4; do echo $i; sleep 1.3; done"
    body = {"Image": BUSYBOX, "Cmd": ["sh", "-c", script], "HostConfig": {"NetworkMode": "host"}}
    container = docker.api.post("/containers/create", body)["Id"]
    docker.api.post(f"/containers/{container}/start")
    ended, data = asyncio.Event(), b""

    async def end() -> None:
        await asyncio.to_thread(docker.api.post, f"/containers/{container}/wait")
        ended.set()

    try:
        ending = asyncio.create_task(end())
        async with await DockerEngine.open(proxy.host) as engine:
            async for piece in logs(engine, container, "task", None, ended):
                data += piece.data
        await ending
        assert data == b"1\n2\n3\n4\n"
        assert len(proxy.asked("/attach")) == 1
        assert len(proxy.asked("/containers/")) <= 4
    finally:
        proxy.close()
        docker.api.delete(f"/containers/{container}", force=True)

"""Output of containers of a real engine: byte by byte, each byte once, whatever happens meanwhile."""

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.backends.api import Json, LogPiece
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway
from nemo_jobs.backends.docker.logs import logs
from tests.bed.docker import DockerServer
from tests.bed.docker_images import BUSYBOX
from tests.bed.proxy import Proxy

# Engines of busy machines take their time: what hangs is still ended.
pytestmark = pytest.mark.time_limit(180)

SMALL = {"max-size": "65536", "max-file": "4"}


class Container:
    """A container of the test, and what was read of it so far."""

    def __init__(self, docker: DockerServer, script: str | Sequence[str], log: Json | None = None) -> None:
        self.docker, self.api = docker, docker.api
        command = ["sh", "-c", script] if isinstance(script, str) else list(script)
        host = {"NetworkMode": "host", "Init": True}
        host |= {"LogConfig": {"Type": "json-file", "Config": log or {}}}
        body = {"Image": BUSYBOX, "Cmd": command, "HostConfig": host, "StopSignal": "SIGKILL"}
        self.id: str = self.api.post("/containers/create", body)["Id"]
        self.ended = asyncio.Event()
        self.stdout = self.stderr = b""
        self.pieces = 0
        self.missing: list[int] = []  # the `truncated` of pieces
        self.cursor: Json | None = None

    def start(self) -> "Container":
        self.api.post(f"/containers/{self.id}/start")
        return self

    def wait(self) -> int:
        return int(self.api.post(f"/containers/{self.id}/wait")["StatusCode"])

    async def end(self) -> int:
        """Wait for its end, as a backend that watches the engine learns of it."""
        code = await asyncio.to_thread(self.wait)
        self.ended.set()
        return code

    def remove(self) -> None:
        with contextlib.suppress(Exception):
            self.api.delete(f"/containers/{self.id}", force=True, v=True)

    @property
    def file(self) -> Path:
        return Path(self.api.inspect(self.id)["LogPath"])

    def take(self, piece: LogPiece) -> None:
        assert (piece.rank, piece.task) == (0, "task")
        setattr(self, piece.stream, getattr(self, piece.stream) + piece.data)
        self.cursor = json.loads(json.dumps(piece.cursor))
        self.pieces += 1
        if piece.truncated:
            self.missing.append(piece.truncated)

    async def read(self, engine: DockerEngine, most: int = 0, **given: Any) -> bool:
        """Read on from where it stands; after `most` pieces leave off. Whether it came to the end."""
        count = 0
        async with contextlib.aclosing(
            logs(engine, self.id, "task", self.cursor, self.ended, **given)
        ) as pieces:
            async for piece in pieces:
                self.take(piece)
                count += 1
                if count == most:
                    return False
        return True

    async def read_all(self, engine: DockerEngine, **given: Any) -> None:
        """Read to the end of the container."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.end())
            await self.read(engine, **given)

    async def persist(self, engine: DockerEngine) -> None:
        """Read to the end, coming back after each failure, as the service does."""
        while True:
            try:
                await self.read(engine)
                return
            except EngineAway:
                await asyncio.sleep(0.1)


@pytest.fixture
async def engine(docker: DockerServer) -> AsyncIterator[DockerEngine]:
    async with await DockerEngine.open(docker.host) as engine:
        yield engine


Run = Callable[..., Container]


@pytest.fixture
def run(docker: DockerServer) -> Iterator[Run]:
    """Starts containers, which are gone after the test."""
    made: list[Container] = []

    def start(
        script: str | Sequence[str], log: Json | None = None, at: DockerServer | None = None
    ) -> Container:
        made.append(Container(at or docker, script, log))
        return made[-1].start()

    yield start
    for container in made:
        container.remove()


def numbers(last: int, first: int = 1) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, last + 1))


EXACT = {
    "nothing": ("true", b"", b""),
    "one line": ("echo a", b"a\n", b""),
    "no end of line": ("printf 'a\\nb'", b"a\nb", b""),
    "blank lines": ("printf '\\n\\n\\na\\n\\n'", b"\n\n\na\n\n", b""),
    "NUL": ("printf 'a\\000b\\n\\000\\n'", b"a\0b\n\0\n", b""),
    "carriage returns": ("printf '\\rx\\ry\\r\\n\\r'", b"\rx\ry\r\n\r", b""),
    "what JSON escapes": ("printf '\"\\\\<&>\\t\\033\\001\\177\\n'", b'"\\<&>\t\x1b\x01\x7f\n', b""),
    "characters of several bytes": (
        "printf '\\303\\266\\342\\226\\210\\360\\237\\230\\200'",
        "ö█😀".encode(),
        b"",
    ),
    "bad bytes": ("printf 'a\\377\\376b\\303\\n'", "a\ufffd\ufffdb\ufffd\n".encode(), b""),
    "both streams": ("echo o; echo e >&2; printf p; printf f >&2", b"o\np", b"e\nf"),
    "a failure": ("echo last; exit 3", b"last\n", b""),
    "16 KiB to the byte": ("head -c 16384 /dev/zero | tr '\\0' y", b"y" * 16384, b""),
    "16 KiB and an end": ("head -c 16384 /dev/zero | tr '\\0' y; echo", b"y" * 16384 + b"\n", b""),
    "a long line": ("head -c 3000001 /dev/zero | tr '\\0' x; echo; echo t", b"x" * 3000001 + b"\nt\n", b""),
    "many lines": ("seq 1 20000; seq 5 >&2", numbers(20000), numbers(5)),
}


@pytest.mark.parametrize("late", [False, True], ids=["followed", "after the end"])
@pytest.mark.parametrize(("script", "stdout", "stderr"), EXACT.values(), ids=EXACT)
async def test_bytes_come_as_they_were_written(
    engine: DockerEngine, run: Run, script: str, stdout: bytes, stderr: bytes, late: bool
) -> None:
    container = run(script)
    if late:
        await container.end()
    await container.read_all(engine)
    assert (container.stdout, container.stderr, container.missing) == (stdout, stderr, [])


async def test_output_is_there_while_it_runs(engine: DockerEngine, run: Run) -> None:
    container = run("echo first; sleep 60")
    begun = time.monotonic()
    assert await container.read(engine, most=1) is False
    assert container.stdout == b"first\n"
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("seed", range(3))
async def test_reading_that_is_left_off_anywhere_goes_on_there(
    engine: DockerEngine, run: Run, seed: int
) -> None:
    """Also in the middle of a long line of which each piece bears the same time, and while it runs."""
    chance = random.Random(seed)
    script = (
        "seq 1 3000; for i in $(seq 1 300); do echo o$i; echo e$i >&2; done; "
        "head -c 200000 /dev/zero | tr '\\0' x; sleep .2; seq 1 50 >&2; "
        "head -c 70000 /dev/zero | tr '\\0' y; echo; "
        "for i in $(seq 1 30); do echo same; echo same; sleep .01; done; printf end"
    )
    container = run(script)
    tasks = asyncio.create_task(container.end())
    while not await container.read(engine, most=chance.choice((1, 1, 2, 5))):
        pass
    await tasks
    lines = b"".join(b"o%d\n" % i for i in range(1, 301))
    assert container.stdout == (
        numbers(3000) + lines + b"x" * 200000 + b"y" * 70000 + b"\n" + b"same\n" * 60 + b"end"
    )
    assert container.stderr == b"".join(b"e%d\n" % i for i in range(1, 301)) + numbers(50)
    assert container.missing == []


async def test_lines_of_one_time_stamp_are_told_apart_by_their_number(
    engine: DockerEngine, docker: DockerServer, run: Run
) -> None:
    container = run("seq 1 40")
    await container.end()
    times = [f"2026-01-02T03:04:05.{number // 7:09d}Z" for number in range(40)]
    entries = [
        {"log": f"{number}\n", "stream": "stdout" if number % 3 else "stderr", "time": at}
        for number, at in enumerate(times)
    ]
    container.file.write_text("".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries))
    while not await container.read(engine, most=1):
        pass
    assert container.stdout == b"".join(b"%d\n" % number for number in range(40) if number % 3)
    assert container.stderr == b"".join(b"%d\n" % number for number in range(40) if not number % 3)


async def test_connections_that_are_cut_anywhere_lose_and_repeat_nothing(
    docker: DockerServer, run: Run, tmp_path: Path
) -> None:
    """C019: after so many bytes, in the middle of frames, heads and characters."""
    proxy = Proxy(str(docker.socket), tmp_path / "engine.sock")
    container = run("for i in $(seq 1 120); do echo $i; echo same; echo same; sleep .02; done; seq 1 5000")
    try:
        proxy.faults.cut_after = 1999
        async with await DockerEngine.open(proxy.host) as engine, asyncio.TaskGroup() as tasks:
            tasks.create_task(container.end())
            tasks.create_task(container.persist(engine))
            await asyncio.sleep(2)
            for after in (3001, 20_011, 0):
                proxy.faults.cut_after = after
                proxy.cut()
                await asyncio.sleep(0.5)
    finally:
        proxy.close()
    expected = b"".join(b"%d\nsame\nsame\n" % number for number in range(1, 121)) + numbers(5000)
    assert container.stdout == expected
    assert container.missing == []


async def test_a_connection_that_died_without_a_word_is_left_when_the_container_has_ended(
    docker: DockerServer, run: Run, tmp_path: Path
) -> None:
    """C067: nothing comes any more on it, and nobody closes it."""
    proxy = Proxy(str(docker.socket), tmp_path / "engine.sock")
    container = run("echo first; sleep 2; echo done")
    try:
        async with await DockerEngine.open(proxy.host) as engine, asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(container.persist(engine))
            while not container.stdout:
                await asyncio.sleep(0.02)
            proxy.deafen()
            await container.end()
            async with asyncio.timeout(10):
                await reading
    finally:
        proxy.close()
    assert (container.stdout, container.missing) == (b"first\ndone\n", [])


STEADY = (
    "i=1; while [ $i -le 6000 ]; do j=0; while [ $j -lt 40 ]; do "
    "echo $i; i=$((i+1)); j=$((j+1)); done; sleep .02; done"
)


async def test_new_log_files_are_read_across(engine: DockerEngine, run: Run) -> None:
    """The log is larger than what the engine keeps of it, and is read while it is written."""
    container = run(STEADY, SMALL)
    await container.read_all(engine)
    assert container.stdout == numbers(6000)
    assert container.missing == []


async def test_new_log_files_are_read_across_by_readers_that_are_left_off(
    engine: DockerEngine, run: Run
) -> None:
    container = run(STEADY, SMALL)
    tasks = asyncio.create_task(container.end())
    while not await container.read(engine, most=9):
        pass
    await tasks
    assert container.stdout == numbers(6000)
    assert container.missing == []


async def test_what_the_engine_deleted_before_it_was_read_is_told(engine: DockerEngine, run: Run) -> None:
    container = run("seq 1 200; sleep 1; seq 201 20000", SMALL)
    while container.stdout.count(b"\n") < 200:
        await container.read(engine, most=1)
    await container.end()
    await container.read(engine)
    found = [int(line) for line in container.stdout.split()]
    gaps = [(a, b) for a, b in itertools.pairwise(found) if b != a + 1]
    assert found[-1] == 20000
    assert len(gaps) == 1
    assert gaps[0][0] == 200
    assert container.missing == [-1]


async def test_a_writer_that_is_faster_than_the_engine_reads_loses_what_is_told_to_be_lost(
    engine: DockerEngine, run: Run
) -> None:
    container = run("seq 1 60000", SMALL)
    await container.read_all(engine)
    found = [int(line) for line in container.stdout.split()]
    gaps = sum(b != a + 1 for a, b in itertools.pairwise(found))
    assert found == sorted(set(found))
    assert found[-1] == 60000
    assert len(container.missing) >= gaps


async def test_of_a_container_that_somebody_removes_stays_what_was_read(
    engine: DockerEngine, run: Run
) -> None:
    """C041, C050: while it is followed, and before anybody came to read it."""
    container = run("echo one; sleep .3; echo two; sleep 60")
    while container.stdout != b"one\ntwo\n":
        await container.read(engine, most=1)
    reading = asyncio.create_task(container.read_all(engine))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(container.remove)
    container.ended.set()
    with contextlib.suppress(ExceptionGroup):
        async with asyncio.timeout(10):
            await reading
    assert (container.stdout, container.missing) == (b"one\ntwo\n", [])
    other = run("echo lost; sleep 60")
    other.remove()
    other.ended.set()
    assert await other.read(engine)
    assert (other.stdout, other.missing) == (b"", [-1])


@pytest.mark.parametrize("last", [40, 5000])
async def test_an_entry_that_the_engine_wrote_in_part_is_told(
    engine: DockerEngine, run: Run, last: int
) -> None:
    """As after a full disk: two entries have become one line that is no JSON. The engine may leave out
    more behind it, as much as it had taken from the file."""
    container = run(["seq", "1", str(last)])
    await container.end()
    file = container.file
    lines = file.read_text().splitlines(keepends=True)
    lines[20:22] = [lines[20][:20] + lines[21]]
    file.write_text("".join(lines))
    assert await container.read(engine)
    found = [int(line) for line in container.stdout.split()]
    assert found == [*range(1, 21), *range(found[20], last + 1)]
    assert found[20] == 23 if last == 40 else found[20] < 1500
    assert container.missing == [-1]


async def test_an_entry_that_was_not_written_to_its_end_is_told(engine: DockerEngine, run: Run) -> None:
    container = run("seq 1 30")
    await container.end()
    file = container.file
    file.write_bytes(file.read_bytes()[:-40])
    assert await container.read(engine)
    assert (container.stdout, container.missing) == (numbers(29), [-1])


async def test_a_second_start_begins_with_its_own_output(engine: DockerEngine, run: Run) -> None:
    container = run("echo again; seq 1 100; printf end")
    await container.read_all(engine)
    first = container.stdout
    await asyncio.sleep(0.1)
    since = time.time_ns() // 1000
    container.start()
    container.cursor, container.stdout = None, b""
    container.ended.clear()
    await container.read_all(engine, since=since)
    assert container.stdout == first
    assert container.missing == []


async def test_short_containers_are_read_whole(engine: DockerEngine, run: Run) -> None:
    """C008, C092: twenty at a time, each gone in no time."""
    containers = await asyncio.gather(
        *(asyncio.to_thread(run, "seq 1 5000; printf 'no end of line'; exit 1") for _ in range(20))
    )
    async with asyncio.TaskGroup() as tasks:
        for container in containers:
            tasks.create_task(container.read_all(engine))
    for container in containers:
        assert container.stdout == numbers(5000) + b"no end of line"
        assert container.missing == []


@pytest.mark.time_limit(120)
@pytest.mark.parametrize("hard", [False, True], ids=["stopped", "killed"])
async def test_an_engine_that_comes_back_goes_on_where_it_was(
    start_docker: Callable[..., DockerServer], run: Run, hard: bool
) -> None:
    """With live-restore containers go on; what they write meanwhile waits in their pipes."""
    docker = start_docker(gpus=False)
    container = run("for i in $(seq 1 300); do echo $i; sleep .02; done; echo done", None, docker)
    async with await DockerEngine.open(docker.host) as engine:
        reading = asyncio.create_task(container.persist(engine))
        while container.stdout.count(b"\n") < 50:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(docker.restart, hard=hard)
        await container.end()
        async with asyncio.timeout(30):
            await reading
    assert container.stdout == numbers(300) + b"done\n"
    assert container.missing == []


@pytest.mark.time_limit(120)
async def test_an_engine_without_live_restore_ends_containers_and_keeps_their_output(
    start_docker: Callable[..., DockerServer], run: Run
) -> None:
    docker = start_docker(gpus=False, live_restore=False)
    container = run("i=0; while :; do i=$((i+1)); echo $i; sleep .02; done", None, docker)
    async with await DockerEngine.open(docker.host) as engine:
        reading = asyncio.create_task(container.persist(engine))
        while container.stdout.count(b"\n") < 50:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(docker.restart)
        await container.end()
        async with asyncio.timeout(30):
            await reading
    assert container.stdout == numbers(container.stdout.count(b"\n"))
    written = [json.loads(line)["log"] for line in container.file.read_text().splitlines()]
    assert container.stdout.decode() == "".join(written)
    assert container.missing == []

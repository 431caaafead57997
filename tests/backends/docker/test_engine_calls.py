"""Each call, on a real engine."""

import asyncio
import io
import tarfile
import time
from collections.abc import AsyncIterator

import pytest

from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.pool import Kind
from nemo_jobs.backends.docker.stream import Demultiplexer
from tests.backends.docker.engine_kit import connections
from tests.bed.docker import DockerServer
from tests.bed.docker_images import BUSYBOX

# Engines of busy machines take their time: what hangs is still ended.
pytestmark = pytest.mark.time_limit(180)

LABEL = "test.nemo-jobs.calls"


@pytest.fixture
async def engine(docker: DockerServer) -> AsyncIterator[DockerEngine]:
    async with await DockerEngine.open(docker.host) as made:
        yield made
        for container in await made.containers({"label": [LABEL]}):
            await made.remove(container["Id"], force=True, volumes=True)
        for volume in await made.volume_list({"label": [LABEL]}):
            await made.volume_remove(volume["Name"], force=True)


def body(*command: str, **host: object) -> dict[str, object]:
    return {
        "Image": BUSYBOX,
        "Cmd": list(command),
        "Labels": {LABEL: "1"},
        "HostConfig": {"NetworkMode": "none", **host},
    }


async def output(engine: DockerEngine, container: str, **given: object) -> list[tuple[int, bytes]]:
    taken, frames = Demultiplexer(), []
    async for piece in engine.logs(container, timestamps=False, **given):  # type: ignore[arg-type]
        frames += taken.feed(piece)
    assert taken.pending == 0
    return frames


async def test_the_engine_tells_about_itself(engine: DockerEngine) -> None:
    await engine.ping()
    version, info = await engine.version(), await engine.info()
    assert version["Os"] == "linux"
    assert info["DockerRootDir"].startswith("/")
    major, minor = await engine.api()
    assert (major, minor) >= (1, 41)
    assert abs(await engine.time() - time.time()) < 2
    assert engine.local


async def test_a_container_from_its_creation_to_its_removal(engine: DockerEngine) -> None:
    name = f"calls-{time.time_ns()}"
    made = await engine.create(name, body("sh", "-c", "echo out; echo err >&2; exit 3"))
    with pytest.raises(EngineError, match="already in use") as caught:
        await engine.create(name, body("true"))
    assert caught.value.conflict
    found = await engine.inspect(name)
    assert found is not None
    assert (found["Id"], found["State"]["Status"]) == (made, "created")
    assert await engine.start(made)
    assert [one["StatusCode"] async for one in engine.wait(made)] == [3]
    assert sorted(await output(engine, made)) == [(1, b"out\n"), (2, b"err\n")]
    listed = await engine.containers({"label": [f"{LABEL}=1"], "status": ["exited"]})
    assert made in [one["Id"] for one in listed]
    assert not await engine.kill(made)
    assert not await engine.stop(made, 1)
    await engine.rename(made, name + "-x")
    assert await engine.inspect(name) is None
    assert await engine.remove(name + "-x")
    assert not await engine.remove(made)
    assert await engine.inspect(made) is None
    assert await engine.stats(made) is None
    assert not await engine.kill(made)
    assert not await engine.unpause(made)
    with pytest.raises(EngineError, match="No such container") as caught:
        await engine.start(made)
    assert caught.value.missing


async def test_a_running_container_is_stopped_killed_and_started_again(engine: DockerEngine) -> None:
    made = await engine.create("", body("sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.05; done"))
    assert await engine.start(made)
    assert not await engine.start(made)
    stats = await engine.stats(made)
    assert stats is not None
    assert stats["memory_stats"]
    with pytest.raises(EngineError) as caught:
        await engine.remove(made)
    assert caught.value.conflict
    await engine.update(made, {"PidsLimit": 100})
    assert await engine.stop(made, 10)
    found = await engine.inspect(made)
    assert found is not None
    assert found["State"]["ExitCode"] == 7
    assert await engine.start(made)
    assert await engine.kill(made, "SIGKILL")
    assert [one["StatusCode"] async for one in engine.wait(made)] == [137]
    assert await engine.remove(made, force=True)


async def test_what_is_refused_is_told_in_the_engine_s_words(engine: DockerEngine) -> None:
    for wrong, status, words in (
        ({"Image": "registry.invalid/nothing:1"}, 404, "No such image: registry.invalid/nothing:1"),
        ({**body("true"), "Labels": 7}, (400, 500), "cannot unmarshal"),
        (body("true", Memory=1), (400, 500), "memory limit"),
        (body("true", Binds=["no-path"]), (400, 500), "invalid"),
    ):
        with pytest.raises(EngineError, match=words) as caught:
            await engine.create("", wrong)
        assert caught.value.status in (status if isinstance(status, tuple) else (status,))
        assert "\n" not in caught.value.message
    made = await engine.create("", body("/no/such/program"))
    with pytest.raises(EngineError, match="/no/such/program"):
        await engine.start(made)
    with pytest.raises(EngineError, match="Invalid container name"):
        await engine.rename(made, "/")


async def test_a_quiet_container_s_output_and_events_are_subscribed_at_once(engine: DockerEngine) -> None:
    made = await engine.create("", body("sleep", "30"))
    await engine.start(made)
    began = time.monotonic()
    async with engine.logs(made), engine.wait(made), engine.events({"container": [made]}):
        assert time.monotonic() - began < 5
    await engine.remove(made, force=True)


async def test_events_tell_what_happened_since(engine: DockerEngine) -> None:
    since = await engine.time() - 1
    made = await engine.create("", body("true"))
    await engine.start(made)
    seen = []
    filters = {"type": ["container"], "label": [LABEL], "container": [made]}
    async with asyncio.timeout(20), engine.events(filters, since=str(since)) as events:
        async for event in events:
            seen.append(event["Action"])
            if event["Action"] == "die":
                await engine.remove(made)
            if event["Action"] == "destroy":
                break
    assert seen == ["create", "start", "die", "destroy"]


async def test_output_from_a_moment_on(engine: DockerEngine) -> None:
    made = await engine.create("", body("sh", "-c", "echo one; sleep 0.3; echo two; sleep 0.3; echo three"))
    await engine.start(made)
    async for _ in engine.wait(made):
        pass
    stamps = Demultiplexer()
    lines = [line async for piece in engine.logs(made) for _, line in stamps.feed(piece)]
    assert [line.split()[1] for line in lines] == [b"one", b"two", b"three"]
    moment = lines[1].split()[0].decode()  # 2026-01-01T00:00:00.123456789Z
    head, nanoseconds = moment.rstrip("Z").split(".")
    seconds = int(time.mktime(time.strptime(head, "%Y-%m-%dT%H:%M:%S")) - time.timezone)
    got = await output(engine, made, since=f"{seconds}.{nanoseconds}", follow=False)
    assert [text for _, text in got] == [b"two\n", b"three\n"]
    assert [text for _, text in await output(engine, made, tail="1", follow=False)] == [b"three\n"]


def tar_of(**files: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.uid, info.gid, info.mode = len(data), 1234, 2345, 0o640
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


async def test_files_go_into_a_container_and_come_out(engine: DockerEngine) -> None:
    made = await engine.create("", body("true"))
    big = bytes(range(256)) * 40_000
    await engine.put_archive(made, "/tmp", tar_of(small=b"words", big=big))

    async def in_pieces(data: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(data), 100_001):
            yield data[at : at + 100_001]
            yield b""

    await engine.put_archive(made, "/", in_pieces(tar_of(other=big)))
    got = b"".join([piece async for piece in engine.get_archive(made, "/tmp")])
    with tarfile.open(fileobj=io.BytesIO(got)) as tar:
        member = tar.getmember("tmp/small")
        assert (member.uid, member.gid, member.mode & 0o777) == (1234, 2345, 0o640)
        content = tar.extractfile("tmp/big")
        assert content is not None
        assert content.read() == big
    for path, words in (("/none", "no|not"), ("/other", "not a directory|Cannot copy|to a file")):
        with pytest.raises(EngineError, match=words):
            await engine.put_archive(made, path, tar_of(a=b"b"))
        with pytest.raises(EngineError, match=words):
            await engine.put_archive(made, path, in_pieces(tar_of(a=big)))
    with pytest.raises(EngineError) as caught:
        await engine.get_archive(made, "/nothing/here").__anext__()
    assert caught.value.missing
    async with engine.get_archive(made, "/tmp") as early:
        assert await early.__anext__()
    assert connections(engine) <= 2


async def test_volumes(engine: DockerEngine) -> None:
    name = f"calls-{time.time_ns()}"
    assert await engine.volume_inspect(name) is None
    made = await engine.volume_create(name, labels={LABEL: "1"})
    again = await engine.volume_create(name, labels={LABEL: "2"})
    assert made["Mountpoint"] == again["Mountpoint"]
    assert again["Labels"] == {LABEL: "1"}
    container = await engine.create("", body("true", Binds=[f"{name}:/x"]))
    with pytest.raises(EngineError, match="in use") as caught:
        await engine.volume_remove(name)
    assert caught.value.conflict
    await engine.remove(container)
    assert name in [one["Name"] for one in await engine.volume_list({"label": [LABEL]})]
    assert await engine.volume_remove(name)
    assert not await engine.volume_remove(name)


async def test_networks(engine: DockerEngine) -> None:
    assert await engine.network_inspect("nowhere") is None
    found = await engine.network_inspect("host")
    assert found is not None
    assert found["Driver"] == "host"
    assert not await engine.network_disconnect("nowhere", "nobody", force=True)
    assert not await engine.network_disconnect("none", "nobody", force=False)


async def test_many_calls_at_once(engine: DockerEngine) -> None:
    results = await asyncio.gather(*(engine.inspect(f"nobody-{number}") for number in range(200)))
    assert results == [None] * 200
    assert connections(engine) <= Kind.CALL.value


async def test_an_engine_that_was_killed_is_found_again(docker: DockerServer, engine: DockerEngine) -> None:
    made = await engine.create("", body("sh", "-c", "echo begin; sleep 30"))
    await engine.start(made)
    async with engine.logs(made) as logs, engine.events({}) as events, engine.wait(made) as end:
        assert await logs.__anext__()
        reading: list[asyncio.Future[object]] = [
            asyncio.ensure_future(stream.__anext__()) for stream in (events, end)
        ]
        reading.append(asyncio.ensure_future(logs.__anext__()))
        try:
            await asyncio.to_thread(docker.kill)
            for one in reading:
                with pytest.raises(EngineAway, match="broke off"):
                    await one
            with pytest.raises(EngineAway, match="no Docker engine at"):
                await engine.info()
        finally:
            await asyncio.to_thread(docker.resume)
    found = await engine.inspect(made)
    assert found is not None
    assert found["State"]["Running"]
    assert connections(engine) == 1


@pytest.mark.parametrize("hard", [True, False])
async def test_every_call_ends_when_the_engine_goes_in_its_middle(
    docker: DockerServer, engine: DockerEngine, hard: bool
) -> None:
    base = await engine.create("", body("sleep", "60"))
    await engine.start(base)
    big = tar_of(big=bytes(30 << 20))

    async def starts() -> None:
        while True:
            made = await engine.create("", body("true"))
            await engine.start(made)
            await engine.remove(made, force=True)

    async def puts() -> None:
        while True:
            await engine.put_archive(base, "/tmp", big)

    async def gets() -> None:
        while True:
            async for _ in engine.get_archive(base, "/bin"):
                await asyncio.sleep(0)

    async def looks() -> None:
        while True:
            await engine.containers({})
            await engine.info()

    async def waits() -> None:
        async for _ in engine.wait(base):
            pass

    async def stops() -> None:
        await engine.stop(base, 30)

    tasks = [asyncio.create_task(one()) for one in (starts, starts, starts, puts, gets, looks, waits, stops)]
    await asyncio.sleep(1)
    try:
        await asyncio.to_thread(docker.kill if hard else docker.stop)
        async with asyncio.timeout(20):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, (EngineAway, EngineError)) for result in results), results
        assert sum(isinstance(result, EngineAway) for result in results) >= 6, results
    finally:
        await asyncio.to_thread(docker.resume)
    await engine.ping()
    assert connections(engine) == 1


async def test_an_engine_that_stands_still_is_told_and_asked_again(
    docker: DockerServer, engine: DockerEngine
) -> None:
    await engine.ping()
    docker.freeze()
    try:
        with pytest.raises(EngineAway, match=r"did not answer GET /_ping within 0\.3 s"):
            for _ in range(100):  # it takes a moment to stand still
                await engine.ping(0.3)
    finally:
        docker.thaw()
    await engine.ping()

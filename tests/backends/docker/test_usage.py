"""CPU time and peak memory of containers: what the kernel counts, and what the engine says."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.backends.docker import usage
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.cgroups import Cgroups, Usage
from nemo_jobs.backends.docker.usage import Usages, measured
from tests.bed.docker import DockerServer
from tests.bed.docker_images import BUSYBOX
from tests.bed.proxy import Proxy

BUSY = "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done"
#: Holds about 20 MB at once: tail keeps all of an input without an end of line.
LARGE = "head -c 20000000 /dev/zero | tail -c 20000000 > /dev/null"

Run = Callable[[str], str]


@pytest.fixture
def run(docker: DockerServer) -> Iterator[Run]:
    """Starts a container and gives its id."""
    made: list[str] = []

    def start(script: str) -> str:
        host = {"NetworkMode": "host", "Init": True}
        body = {"Image": BUSYBOX, "Cmd": ["sh", "-c", script], "HostConfig": host}
        made.append(docker.api.post("/containers/create", body)["Id"])
        docker.api.post(f"/containers/{made[-1]}/start")
        return made[-1]

    yield start
    for container in made:
        docker.api.delete(f"/containers/{container}", force=True, v=True)


@pytest.fixture
async def engine(docker: DockerServer) -> AsyncIterator[DockerEngine]:
    async with await DockerEngine.open(docker.host) as engine:
        yield engine


@pytest.fixture
async def usages(engine: DockerEngine) -> AsyncIterator[Usages]:
    usages = Usages(engine, Cgroups())
    yield usages
    await usages.aclose()


async def ended(docker: DockerServer, container: str) -> None:
    await asyncio.to_thread(docker.api.post, f"/containers/{container}/wait")


async def test_the_end_of_a_container_is_measured(docker: DockerServer, run: Run, usages: Usages) -> None:
    container = run(f"{LARGE}; sleep 2.5; {BUSY}")
    usages.began(container, "nj-1")
    usages.began(container, "nj-1")
    await ended(docker, container)
    found = usages.of(container, "nj-1")
    assert found.cpu_seconds is not None
    assert 0.05 < found.cpu_seconds < 30
    assert found.peak_memory_bytes is not None
    assert 20_000_000 < found.peak_memory_bytes < 200_000_000
    assert usages.of(container, "nj-another") == Usage()
    usages.forget(container)
    assert usages.of(container, "nj-1") == Usage()


async def test_a_container_that_is_started_again_is_measured_anew(
    docker: DockerServer, run: Run, usages: Usages
) -> None:
    container = run(f"if mkdir /tmp/once; then {BUSY}; {BUSY}; {BUSY}; fi; sleep 2.5")
    usages.began(container, "nj-1")
    await ended(docker, container)
    first = usages.of(container, "nj-1").cpu_seconds
    docker.api.post(f"/containers/{container}/start")
    usages.began(container, "nj-2")
    await ended(docker, container)
    second = usages.of(container, "nj-2").cpu_seconds
    assert first is not None
    assert second is not None
    assert second < first


async def test_short_containers_are_measured_without_asking_the_engine_for_each(
    docker: DockerServer, run: Run, tmp_path: Path
) -> None:
    proxy = Proxy(str(docker.socket), tmp_path / "engine.sock")
    try:
        async with await DockerEngine.open(proxy.host) as engine:
            usages = Usages(engine, Cgroups())
            containers = []
            for _ in range(10):
                containers.append(await asyncio.to_thread(run, "sleep .5"))
                usages.began(containers[-1], "nj-1")
            for container in containers:
                await ended(docker, container)
            known = [usages.of(container, "nj-1").cpu_seconds for container in containers]
            await usages.aclose()
        measured = [seconds for seconds in known if seconds]
        assert len(measured) > 5  # the others ended too fast for a machine that is this busy
        assert proxy.asked("/containers/") == []
    finally:
        proxy.close()


async def test_elsewhere_the_engine_is_asked_now_and_then(
    docker: DockerServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All containers together cost one question in `APART` seconds at most."""
    monkeypatch.setattr(usage, "FIRST", 0.1)
    monkeypatch.setattr(usage, "APART", 0.2)
    proxy = Proxy(str(docker.socket), tmp_path / "engine.sock")
    try:
        async with await DockerEngine.open(proxy.host) as engine:
            usages = Usages(engine, None)
            containers = [await asyncio.to_thread(run, f"{BUSY}; sleep 60") for _ in range(4)]
            begun = asyncio.get_running_loop().time()
            for container in containers:
                usages.began(container, "nj-1")
            async with asyncio.timeout(30):
                while any(usages.of(c, "nj-1").cpu_seconds is None for c in containers):
                    await asyncio.sleep(0.05)
            took = asyncio.get_running_loop().time() - begun
            known = [usages.of(container, "nj-1") for container in containers]
            await usages.aclose()
        asked = proxy.asked("/stats")
        assert len(asked) <= took / 0.2 + 1
        assert len(asked) == len(proxy.asked("/containers/"))
        for found in known:
            assert found.cpu_seconds is not None
            assert found.peak_memory_bytes is not None
            assert found.cpu_seconds > 0 < found.peak_memory_bytes
    finally:
        proxy.close()


async def test_of_a_container_that_has_ended_the_engine_knows_nothing(
    docker: DockerServer, engine: DockerEngine, run: Run
) -> None:
    container = run("true")
    await ended(docker, container)
    stats = await engine.stats(container)
    assert stats is not None
    assert measured(stats) == Usage()


STATS: dict[str, Any] = {
    "cpu_stats": {"cpu_usage": {"total_usage": 1_500_000_000}},
    "memory_stats": {"usage": 900, "max_usage": 5000, "stats": {}},
}


def test_statistics_of_both_versions_of_control_groups_are_read() -> None:
    assert measured(STATS) == Usage(1.5, 5000)
    second = STATS | {"memory_stats": {"usage": 900, "stats": {"inactive_file": 100}}}
    assert measured(second) == Usage(1.5, 800)
    assert measured({"cpu_stats": {"cpu_usage": {"total_usage": 0}}, "memory_stats": {}}) == Usage()


def host(root: Path, mountinfo: str, files: dict[str, str]) -> Cgroups:
    """A tree that looks like a host's."""
    for name, text in {"proc/self/mountinfo": mountinfo, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Cgroups(root)


def test_version_2_is_read_from_the_groups_of_systemd_as_well(tmp_path: Path) -> None:
    """This machine may have version 1 alone: a tree of files as kernels of version 2 show them."""
    at = "sys/fs/cgroup/system.slice/docker-abc.scope"
    cgroups = host(
        tmp_path,
        "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
        {
            "proc/77/status": "Name:\tinit\nNSpid:\t77\t1\n",
            "proc/78/status": "Name:\tsh\nNSpid:\t78\t7\n",
            f"{at}/cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
            f"{at}/memory.peak": "123456\n",
            f"{at}/memory.current": "99\n",
            f"{at}/cgroup.procs": "78\n77\n",
        },
    )
    accounts = cgroups.find("abc")
    assert accounts is not None
    assert accounts.read() == Usage(2.5, 123456)
    assert accounts.keeps_peak
    assert accounts.first_process(tmp_path) == 77
    assert cgroups.find("abc") == accounts
    assert cgroups.find("other") is None
    (tmp_path / at / "memory.peak").unlink()  # as before Linux 5.19
    assert accounts.read() == Usage(2.5, 99)
    assert not accounts.keeps_peak


def test_an_engine_elsewhere_is_not_searched_for_for_ever(tmp_path: Path) -> None:
    """It may run in a machine of its own: none of its containers has groups here."""
    mounts = "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n"
    mounts += "34 31 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    cgroups = host(tmp_path, mounts, {"sys/fs/cgroup/cpuacct/user/cgroup.procs": ""})
    assert all(cgroups.find(f"abc{number}") is None for number in range(30))
    (tmp_path / "sys/fs/cgroup/cpuacct/docker/late").mkdir(parents=True)
    assert cgroups.find("late") is None
    assert Cgroups(tmp_path).find("late") is None  # without a count of memory it isn't whole

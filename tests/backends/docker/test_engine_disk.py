"""How much room an engine has, where it can be known and where it can't."""

import shutil
from collections.abc import Callable

import pytest

from nemo_jobs.backends.docker import disk
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.disk import Disk
from tests.bed.docker import DockerServer
from tests.bed.proxy import Proxy


async def test_the_disk_of_an_engine_of_this_host(start_docker: Callable[..., DockerServer]) -> None:
    server = start_docker(disk_bytes=48 << 20, images=False)
    async with await DockerEngine.open(server.host) as engine:
        room = await Disk(engine).room()
        folder = server.folder / "data"
        assert room.folder == str(folder)
        assert room.free is not None
        assert abs(room.free - shutil.disk_usage(folder).free) < 4 << 20
        assert room.free < 48 << 20


async def test_of_a_remote_engine_nothing_is_known(docker: DockerServer) -> None:
    proxy = Proxy(str(docker.socket))
    try:
        async with await DockerEngine.open(proxy.host) as engine:
            room = await Disk(engine).room()
            assert room.free is None
            assert "another host" in room.unknown
    finally:
        proxy.close()


def test_the_fullest_place_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that leave images to containerd need room in both folders."""
    info = {"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}
    assert disk._folders(info, "/data") == ["/var/lib/containerd", "/data"]
    assert disk._folders({"DriverStatus": [["Backing Filesystem", "extfs"]]}, "/data") == ["/data"]
    free = {"/a": 5, "/b": 3, "/c": None}
    monkeypatch.setattr(disk.Place, "free", lambda place: free[place.folder])
    room = disk.measure(tuple(disk.Place(name, 1) for name in free))
    assert (room.folder, room.free) == ("/b", 3)

"""Looking for a Docker engine: what is asked, when, and what is said when there is none."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs import containers
from nemo_jobs.clock import SystemClock
from nemo_jobs.config_model import Settings
from nemo_jobs.containers import Containers
from tests.bed.docker import DockerServer


def looking(folder: Path, environ: dict[str, str], **settings: Any) -> Containers:
    async def owner(proposed: str) -> str:
        return proposed

    made = Settings.model_validate(settings)
    return Containers(made, folder, "host", SystemClock(), owner, {"DOCKER_CONFIG": str(folder), **environ})


@pytest.fixture(autouse=True)
def no_usual_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(containers, "USUAL_SOCKET", str(tmp_path / "nobody.sock"))


async def test_without_any_sign_of_an_engine_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    found = looking(tmp_path, {})
    assert found.wanted and not await found.look()
    assert "no Docker engine is named" in found.problem
    assert found.profiles().expected == {("cpu", "default"), ("gpu", "default")}


def test_what_speaks_to_engines_is_not_loaded_for_host_processes_alone() -> None:
    code = "import sys, nemo_jobs.service, nemo_jobs.containers, nemo_jobs.engine.engine\n"
    code += "print([m for m in sys.modules if m.startswith('nemo_jobs.backends.docker')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    early = "import sys, nemo_jobs.service; print('pydantic' in sys.modules)"  # before the cheap checks
    assert subprocess.run([sys.executable, "-c", early], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("runtime", ["none", "kubernetes"])
async def test_where_no_profile_needs_one_nobody_is_asked(tmp_path: Path, runtime: str) -> None:
    environ = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    found = looking(tmp_path, environ, platform={"runtime": runtime})
    assert not found.wanted and not await found.look()
    own = {"executors": [{"backend": "docker", "profile": "box", "config": {}}]}
    found = looking(tmp_path, environ, platform={"runtime": runtime}, jobs=own)
    assert found.wanted and not await found.look()
    assert found.profiles().expected == {("cpu", "box")}
    await found.aclose()


async def test_an_address_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    found = looking(tmp_path, {}, platform={"docker": {"host": f"unix://{tmp_path}/none.sock"}})
    assert not await found.look()
    assert "none.sock" in found.problem
    assert found.profiles().left_out["cpu", "default"] == found.problem
    await found.aclose()


async def test_one_that_never_answers_is_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "ANSWER_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "deaf.sock"))
        deaf.listen()
        found = looking(tmp_path, {}, platform={"docker": {"host": f"unix://{tmp_path}/deaf.sock"}})
        async with asyncio.timeout(10):
            assert not await found.look()
        assert found.problem == "the Docker engine did not answer within 0.2 s"
        await found.aclose()


async def test_it_is_taken_in_when_it_comes(
    docker: DockerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "LOOK_SECONDS", 0.05)
    place = tmp_path / "late.sock"
    found = looking(tmp_path, {}, platform={"docker": {"host": f"unix://{place}"}})
    assert not await found.look()
    came: list[Any] = []

    async def take_in(backend: Any) -> None:
        came.append(backend)
        if len(came) == 1:
            raise OSError("the database is away just now")

    watching = asyncio.create_task(found.watch(take_in))
    await asyncio.sleep(0.2)
    assert not came
    place.symlink_to(docker.socket)
    async with asyncio.timeout(20):
        await watching
    assert came == [found.backend] * 2 and found.backend is not None
    assert {key for key in found.profiles().profiles if key[0] != "subprocess"} == {
        ("cpu", "default"),
        ("gpu", "default"),
    }
    await found.backend.aclose()


async def test_a_network_that_can_not_reach_the_service_is_told(docker: DockerServer, tmp_path: Path) -> None:
    networking = {"docker": {"networking": {"job_container_network": "lab"}}}
    platform = {"docker": {"host": docker.host}}
    found = looking(tmp_path, {}, platform=platform, jobs={"executor_defaults": networking})
    assert await found.look() and found.backend is not None
    said = found.warnings(found.profiles(), "127.0.0.1")
    assert [text.partition(" runs tasks on network 'lab'")[0] for text in said] == [
        "profile cpu/default",
        "profile gpu/default",
    ]
    assert found.warnings(found.profiles(), "0.0.0.0") == []
    await found.backend.aclose()


async def test_services_on_one_database_bear_one_name(docker: DockerServer, tmp_path: Path) -> None:
    asked = []

    async def owner(proposed: str) -> str:
        asked.append(proposed)
        return "agreed"

    settings = Settings.model_validate({"platform": {"docker": {"host": docker.host}}})
    found = Containers(settings, tmp_path, "host", SystemClock(), owner, {})
    assert (await found._with_owner()).host.docker_owner_id == "agreed"
    own = Settings.model_validate({"host": {"docker_owner_id": "mine"}})
    found = Containers(own, tmp_path, "host", SystemClock(), owner, {})
    assert (await found._with_owner()).host.docker_owner_id == "mine"
    assert len(asked) == 1 and len(asked[0]) == 32

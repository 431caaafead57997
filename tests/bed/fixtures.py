"""Servers of the bed as fixtures for every folder of tests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.bed.docker import DockerServer, Missing
from tests.bed.docker_registry import Registry
from tests.e2e.docker_kit import DockerService


@pytest.fixture(scope="session")
def docker() -> Iterator[DockerServer]:
    """One engine for the whole run, with live-restore and the standard images.

    A test that kills it brings it back (`resume`); containers of other tests live through that.
    """
    server = _start()
    yield server
    server.destroy()


@pytest.fixture
def start_docker() -> Iterator[Callable[..., DockerServer]]:
    """Starts engines of a test's own, which are gone after it; parameters as of `DockerServer.start`."""
    started: list[DockerServer] = []

    def start(**given: Any) -> DockerServer:
        started.append(_start(**given))
        return started[-1]

    yield start
    for server in started:
        server.destroy()


@pytest.fixture(scope="session")
def containers(docker: DockerServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerService]:
    """One service with containers for all tests that leave it and its engine running."""
    executors = [
        {"provider": "cpu", "profile": "one", "config": {"max_concurrent": 1}},
        {"provider": "cpu", "profile": "four", "config": {"max_concurrent": 4}},
        {"provider": "cpu", "profile": "short", "config": {"ttl_seconds_active": 1}},
        {"provider": "cpu", "profile": "kept", "config": {"cleanup_completed_jobs_immediately": False}},
        {"provider": "cpu", "profile": "brief", "config": {"ttl_seconds_after_finished": 1}},
    ]
    profile = {"env": {"FROM_PROFILE": "1", "LEVEL": "p"}}
    service = DockerService(tmp_path_factory.mktemp("docker"), docker, executors=executors, profile=profile)
    try:
        yield service.start()
    finally:
        service.close()


@pytest.fixture
def registry(docker: DockerServer) -> Iterator[Registry]:
    """A private registry with a login; the engine knows neither it nor its images."""
    registry = Registry()
    yield registry
    registry.destroy()


def _start(**given: Any) -> DockerServer:
    try:
        return DockerServer.start(**given)
    except Missing as error:
        pytest.skip(str(error))

"""The Docker backend keeps the promises of the protocol, on a real engine."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nemo_jobs.conformance import StopConformance
from nemo_jobs.conformance_results import ResultConformance
from nemo_jobs.testing import BackendConformance, Harness
from tests.backends.docker_harness import DockerHarness
from tests.bed.docker import DockerServer
from tests.bed.proxy import Proxy

# Engines of busy machines take their time: what hangs is still ended.
pytestmark = pytest.mark.time_limit(180)


class TestDockerBackend(BackendConformance):
    @pytest.fixture
    async def harness(self, tmp_path: Path, docker: DockerServer) -> AsyncIterator[Harness]:
        harness = DockerHarness(tmp_path, docker)
        yield harness
        await harness.close()


class TestRemoteDockerBackend(StopConformance, ResultConformance):
    """An engine on another host: over TCP, and nothing of its disk is within reach."""

    @pytest.fixture
    def way(self, docker: DockerServer) -> Iterator[Proxy]:
        proxy = Proxy(str(docker.socket))
        yield proxy
        proxy.close()

    @pytest.fixture
    async def harness(self, tmp_path: Path, docker: DockerServer, way: Proxy) -> AsyncIterator[Harness]:
        harness = DockerHarness(tmp_path, docker, host=way.host, direct=False)
        yield harness
        await harness.close()

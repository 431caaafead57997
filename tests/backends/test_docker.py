"""The Docker backend keeps the promises of the protocol, on a real engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nemo_jobs.testing import BackendConformance, Harness
from tests.backends.docker_harness import DockerHarness
from tests.bed.docker import DockerServer


class TestDockerBackend(BackendConformance):
    @pytest.fixture
    async def harness(self, tmp_path: Path, docker: DockerServer) -> AsyncIterator[Harness]:
        harness = DockerHarness(tmp_path, docker)
        yield harness
        await harness.close()

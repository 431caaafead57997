"""The host backend keeps the promises of the protocol."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nemo_jobs.testing import BackendConformance, Harness
from tests.backends.host import HostHarness


class TestSubprocessBackend(BackendConformance):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[Harness]:
        harness = HostHarness(tmp_path)
        yield harness
        await harness.close()

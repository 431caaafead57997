from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("nemo_jobs.conformance", "nemo_jobs.conformance_harness")

from tests.backends.host import HostHarness  # noqa: E402


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HostHarness]:
    harness = HostHarness(tmp_path)
    yield harness
    await harness.close()

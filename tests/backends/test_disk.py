"""The disk on which the keeper writes."""

import pytest

from nemo_jobs.backends import subprocess
from tests.backends.host import HostHarness


async def test_a_disk_with_too_little_room_is_told_with_what_is_needed(
    host: HostHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was called full, with 11 MiB free, which left open what would do."""
    backend = await host.host()
    assert (await backend.probe()).ok
    monkeypatch.setattr(subprocess, "_LEAST_FREE", 1 << 60)
    health = await backend.probe()
    assert not health.ok
    assert f"MiB left, and {1 << 40} are needed" in health.message

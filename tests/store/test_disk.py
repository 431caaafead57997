"""A disk that is full or read-only, on a small file system of its own."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.domain.model import Unavailable
from nemo_jobs.store import jobs, steps
from nemo_jobs.store.chunks import Chunk, LogBatch
from nemo_jobs.store.db import Database
from tests.store.kit import Store, new_job


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs a file system of its own: run as root where mounting a tmpfs is allowed")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_c095_a_full_disk_refuses_writes_and_loses_nothing(
    small_disk: Path, open_store: Callable[..., Any]
) -> None:
    store: Store = await open_store(f"sqlite:///{small_disk / 'jobs.db'}")
    step = await store.running("first")
    accepted = {"first"}
    line = os.urandom(200_000).replace(b"\n", b" ") + b"\n"

    async def append(number: int) -> None:
        batch = LogBatch((Chunk("task-1", "stdout", 1, 1, line),), {"at": number})
        await store.write(steps.append_logs, store.token, step.id, batch)

    for number in range(3):
        await append(number)
    with pytest.raises(OSError, match="No space"), (small_disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    with pytest.raises(Unavailable, match="the disk is full"):
        for number in range(3, 100):
            await append(number)
    last = (await store.step("first")).log_cursor
    refused = []
    for number in range(40):
        name = f"j-{number}"
        try:
            await store.write(jobs.create_job, new_job(name), store.now(), "t")
            accepted.add(name)
        except Unavailable as error:
            refused.append((name, str(error)))
    assert refused and all("disk" in text for _, text in refused)
    assert store.db.problem is not None and "disk" in store.db.problem
    # Reading goes on, and shows what was accepted alone.
    found, total, _ = await store.read(jobs.list_jobs, jobs.JobQuery("default", page_size=1000))
    assert {job.name for job in found} == accepted and total == len(accepted)
    assert (await store.step("first")).log_cursor == last
    # Space is back: it is found out without anybody asking.
    (small_disk / "filler").unlink()
    async with asyncio.timeout(10):
        while store.db.problem is not None:
            await asyncio.sleep(0.05)
    await store.create("afterwards")
    await store.db.aclose()
    again = Database.open(f"sqlite:///{small_disk / 'jobs.db'}")
    found, _, _ = await again.read(jobs.list_jobs, jobs.JobQuery("default", page_size=1000))
    await again.aclose()
    assert {job.name for job in found} == accepted | {"afterwards"}


async def test_c095_a_read_only_disk_refuses_writes_and_comes_back(
    small_disk: Path, open_store: Callable[..., Any]
) -> None:
    store: Store = await open_store(f"sqlite:///{small_disk / 'jobs.db'}")
    await store.create("first")
    await store.db.aclose()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    try:
        with pytest.raises(Unavailable, match="can't be used"):
            Database.open(f"sqlite:///{small_disk / 'jobs.db'}")
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    again = Database.open(f"sqlite:///{small_disk / 'jobs.db'}")
    await again.aclose()

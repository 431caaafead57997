"""A reader of output that fails: no service can be made to fail so, so it is tried at its seam."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from nemo_jobs.backends.api import Handle, LogPiece
from nemo_jobs.clock import SystemClock
from nemo_jobs.engine.collect import Collector
from nemo_jobs.store.steps import LogBatch


class Torn:
    """Output in three pieces; reading breaks off after the first one as often as `breaks` says."""

    def __init__(self, breaks: int) -> None:
        self.breaks = breaks
        self.asked: list[Any] = []

    async def logs(self, handle: Handle, cursor: Any) -> AsyncIterator[LogPiece]:
        self.asked.append(cursor)
        for number in range(cursor["at"] if cursor else 0, 3):
            yield LogPiece(0, "task-1", "stdout", 1, b"line %d\n" % number, {"at": number + 1})
            if self.breaks:
                self.breaks -= 1
                raise RuntimeError("the far end has gone")


async def read(backend: Any) -> list[bytes]:
    stored: list[LogBatch] = []

    async def store(batch: LogBatch) -> int:
        stored.append(batch)
        return 0

    collector = Collector(backend, Handle("fake", "key", 1, {}), None, store, SystemClock(), 1 << 20)
    collector.start()
    last = await collector.drain(10)
    batches = [*stored, last] if last else stored
    return [line for batch in batches for chunk in batch.chunks for line in chunk.data.splitlines()]


async def test_c050_a_reader_that_fails_goes_on_where_it_was(caplog: pytest.LogCaptureFixture) -> None:
    backend = Torn(breaks=1)
    assert await read(backend) == [b"line 0", b"line 1", b"line 2"]
    assert backend.asked == [None, {"at": 1}]
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "the far end has gone" in record.message

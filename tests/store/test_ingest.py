"""Records from outside, on both databases."""

import asyncio
from typing import Any

import pytest

from nemo_jobs.domain.model import NotFound
from nemo_jobs.store import ingest, logs
from nemo_jobs.store.chunks import Chunk, pack_runs
from nemo_jobs.store.ingest import Incoming, Where
from nemo_jobs.store.logs import LogFilter
from tests.store.kit import Store, batch

NO_LIMIT = 1 << 40


def incoming(of: Any, *texts: str, at: int = 7, **over: str) -> Incoming:
    runs = [(1, at + n, "stdout", (n, 9, "INFO", {"n": n})) for n in range(len(texts))]
    data = "".join(f"{text}\n" for text in texts).encode()
    codec, packed = pack_runs(runs, data)
    named = {"job": of.job, "attempt": of.attempt_id, "step": of.name, "task": "task-1", **over}
    return Incoming(
        **named, chunk=Chunk("", "stdout", at, len(texts), packed, codec, len(data)), records=len(texts)
    )


async def send(store: Store, *items: Incoming, limit: int = NO_LIMIT, fileset: str = "job-fileset-j") -> Any:
    return await store.write(ingest.ingest, Where("default", fileset), items, limit, store.now())


async def texts(store: Store, attempt_id: str) -> list[str]:
    lines, total, more = await store.read(logs.page, attempt_id, LogFilter(), 0, 10_000)
    assert total == len(lines) and not more
    return [line.text for line in lines]


async def test_records_and_output_share_one_order(store: Store) -> None:
    step = await store.running("j")
    assert not await send(store, incoming(step, "a", "b"))
    await store.apply(step, logs=batch("printed", cursor=1))
    assert not await send(store, incoming(step, "c"))
    assert await texts(store, step.attempt_id) == ["a", "b", "printed", "c"]
    lines, _, _ = await store.read(logs.tail, step.attempt_id, LogFilter(), 4)
    assert [line.seq for line in lines] == [0, 1, 2, 3]
    assert [line.facts and line.facts.attributes for line in lines] == [{"n": 0}, {"n": 1}, None, {"n": 0}]


async def test_a_failure_in_the_middle_stores_nothing(store: Store) -> None:
    step = await store.running("j")
    good = incoming(step, "a")
    bad = good._replace(chunk=Chunk("", "stdout", 1, 2, b"one\n"))  # says two lines and has one
    with pytest.raises(ValueError, match="2 lines"):
        await send(store, good, bad)
    assert await texts(store, step.attempt_id) == []


async def test_the_fileset_must_be_there(store: Store) -> None:
    step = await store.running("j")
    for name in ("job-fileset-k", "j", "job-fileset-"):
        with pytest.raises(NotFound, match="fileset"):
            await send(store, incoming(step, "a"), fileset=name)


async def test_one_marker_though_many_reach_the_limit_at_once(store: Store) -> None:
    step = await store.running("j")
    sent = [send(store, incoming(step, "x" * 99), limit=1000) for _ in range(20)]
    refused = sum((await asyncio.gather(*sent)), start=type(await send(store))())
    found = await texts(store, step.attempt_id)
    markers = [text for text in found if "log limit of 1000 bytes" in text]
    assert len(markers) == 1
    assert len(found) - 1 + refused.total() == 20
    assert len(found) - 1 >= 10


async def test_sources_are_told_apart(store: Store) -> None:
    step = await store.running("j", "one", "two")
    refused = await send(
        store,
        incoming(step, "yes"),
        incoming(step, "no", step="two"),  # its turn has not come
        incoming(step, "no", "no", job="k"),
        incoming(step, "no", attempt="x"),
    )
    assert sorted(refused.values()) == [1, 1, 2]
    assert await texts(store, step.attempt_id) == ["yes"]


async def test_a_task_writes_to_the_log_of_its_own_attempt_alone(store: Store) -> None:
    mine, other = await store.running("j"), await store.running("k")
    for step, count in ((mine, 0), (other, 1)):
        where = Where("default", f"job-fileset-{step.job}", mine.attempt_id)
        refused = await store.write(ingest.ingest, where, [incoming(step, "x")], NO_LIMIT, store.now())
        assert refused.total() == count
    assert await texts(store, other.attempt_id) == []

import random
from typing import Any

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.model import LogLine, NotFound
from nemo_jobs.store import chunks, compaction, logs, steps
from nemo_jobs.store.chunks import Chunk, LogBatch
from nemo_jobs.store.logs import LogFilter
from tests.store.kit import STARTED, SUBMITTED, SUCCEEDED, Store, batch

ALL = LogFilter()


async def read_all(store: Store, attempt_id: str, flt: LogFilter = ALL, limit: int = 10_000) -> list[LogLine]:
    found: list[LogLine] = []
    first, more = 0, True
    while more:
        lines, _total, more = await store.read(logs.page, attempt_id, flt, first, limit)
        found += lines
        first = lines[-1].seq + 1 if lines else first
    return found


async def append(store: Store, step: Any, *batches: LogBatch) -> int:
    size = 0
    for one in batches:
        size = await store.write(steps.append_logs, store.token, step.id, one)
    return size


async def test_lines_come_back_in_order_with_all_that_is_known_of_them(store: Store) -> None:
    step = await store.running("j")
    size = await append(
        store, step, batch("one", "", "three", at=5, cursor=1), batch("oops", stream="stderr", at=6, cursor=2)
    )
    assert size == len(b"one\n\nthree\noops\n")
    lines = await read_all(store, step.attempt_id)
    assert [(line.seq, line.at, line.stream, line.text) for line in lines] == [
        (0, 5, "stdout", "one"),
        (1, 5, "stdout", ""),
        (2, 5, "stdout", "three"),
        (3, 6, "stderr", "oops"),
    ]
    assert {(line.job, line.step, line.task) for line in lines} == {("j", "main", "task-1")}
    assert (await store.step("j")).log_cursor == {"at": 2}


async def test_c049_nul_byte_in_a_line(store: Store) -> None:
    step = await store.running("j")
    data = b"a\0b\nnext\n\xff\xfe bad\nhalf \xc3\n\xa9 other half\n"
    await append(store, step, LogBatch((Chunk("task-1", "stdout", 1, 5, data),), {}))
    lines = await read_all(store, step.attempt_id)
    assert [line.text for line in lines] == [
        "a\ufffdb",
        "next",
        "\ufffd\ufffd bad",
        "half \ufffd",
        "\ufffd other half",
    ]


async def test_lines_and_cursor_are_stored_with_the_end_or_not_at_all(store: Store) -> None:
    step = await store.running("j")
    await store.apply(step, SUCCEEDED, logs=batch("last words", cursor=9))
    assert [line.text for line in await read_all(store, step.attempt_id)] == ["last words"]
    assert (await store.step("j")).log_cursor == {"at": 9}
    assert await store.apply(step, logs=batch("too late")) is None
    assert len(await read_all(store, step.attempt_id)) == 1


async def test_a_batch_whose_count_is_wrong_is_refused(store: Store) -> None:
    step = await store.running("j")
    with pytest.raises(ValueError, match="2 lines"):
        await append(store, step, LogBatch((Chunk("task-1", "stdout", 1, 2, b"only one\n"),), {}))
    assert await read_all(store, step.attempt_id) == []


async def _mixed_log(store: Store) -> tuple[str, list[tuple[str, str, str]]]:
    """Two steps and three tasks whose lines are interleaved, in chunks of all sizes."""
    dice = random.Random(7)
    step = await store.running("j", "one", "two")
    expected: list[tuple[str, str, str]] = []
    number = 0
    for name in ("one", "two"):
        for _ in range(30):
            task = dice.choice(["task-a", "task-b", "task-c"])
            texts = [f"line {number + n}" for n in range(dice.choice([1, 1, 2, 3, 50]))]
            number += len(texts)
            stream = dice.choice(["stdout", "stderr"])
            await append(store, step, batch(*texts, task=task, stream=stream, at=number))
            expected += [(name, task, text) for text in texts]
        if name == "one":
            applied = await store.apply(step, SUCCEEDED)
            assert applied is not None and applied.next_step is not None
            step = await store.moved(applied.next_step, SUBMITTED, STARTED)
    await store.apply(step, SUCCEEDED)
    return step.attempt_id, expected


@pytest.mark.parametrize("compacted", [False, True])
async def test_pages_tails_and_windows_agree_with_a_plain_list(store: Store, compacted: bool) -> None:
    attempt_id, expected = await _mixed_log(store)
    before = await read_all(store, attempt_id)
    if compacted:
        while await store.write(logs.compact_ended, 20):
            pass
        assert await read_all(store, attempt_id) == before
    whole = [(seq, *line) for seq, line in enumerate(expected)]
    for flt in (
        ALL,
        LogFilter("one"),
        LogFilter(None, "task-b"),
        LogFilter("two", "task-c"),
        LogFilter("none"),
    ):
        wanted = [x for x in whole if flt.step in (None, x[1]) and flt.task in (None, x[2])]

        async def check(
            fn: Any, *args: Any, part: list[Any], more: bool, flt: LogFilter = flt, n: int = len(wanted)
        ) -> None:
            lines, total, is_more = await store.read(fn, attempt_id, flt, *args)
            assert [(line.seq, line.step, line.task, line.text) for line in lines] == part, (fn, args, flt)
            assert (total, is_more) == (n, more), (fn, args, flt)

        for first in (0, 1, 7, len(whole) // 2, len(whole) - 1, len(whole), len(whole) + 5):
            for limit in (1, 3, 40, 1000):
                rest = [x for x in wanted if x[0] >= first]
                await check(logs.page, first, limit, part=rest[:limit], more=len(rest) > limit)
                older = [x for x in wanted if x[0] < first]
                await check(logs.before, first, limit, part=older[-limit:], more=len(older) > limit)
        for limit in (1, 5, 10_000):
            await check(logs.tail, limit, part=wanted[-limit:], more=len(wanted) > limit)


async def test_filters_take_ids_as_well_as_names(store: Store) -> None:
    step = await store.running("j")
    await append(store, step, batch("x"))
    task = (await store.read(lambda tx: tx.one(sa.text("SELECT id FROM task"))))[0]
    for flt in (LogFilter(step.id), LogFilter(None, task), LogFilter("main", task)):
        lines, total, more = await store.read(logs.page, step.attempt_id, flt, 0, 10)
        assert (len(lines), total, more) == (1, 1, False)
        await store.read(logs.check_filter, step.attempt_id, flt)
    for flt in (LogFilter("other"), LogFilter("platform-job-step-none"), LogFilter(None, "task-none")):
        assert await store.read(logs.page, step.attempt_id, flt, 0, 10) == ([], 0, False)
        with pytest.raises(NotFound):
            await store.read(logs.check_filter, step.attempt_id, flt)


async def test_a_step_whose_turn_has_not_come_is_not_missing(store: Store) -> None:
    step = await store.running("j", "one", "two")
    await store.read(logs.check_filter, step.attempt_id, LogFilter("two"))


async def test_attempts_are_found_by_number_by_id_and_as_the_current_one(store: Store) -> None:
    job = await store.create("j")
    for selector in (None, 0, job.attempt_id):
        assert await store.read(logs.attempt_of, job.id, selector) == job.attempt_id
    for wrong in (1, -1, 10**12, "platform-job-attempt-none"):
        with pytest.raises(NotFound, match="no attempt"):
            await store.read(logs.attempt_of, job.id, wrong)


async def test_compaction_merges_small_chunks_of_ended_attempts_only(store: Store) -> None:
    running = await store.running("a-1")
    ended = await store.running("b-1")
    for number in range(40):
        for step in (running, ended):
            stream = "stderr" if number % 7 == 0 else "stdout"
            await append(store, step, batch(f"line {number}", at=1000 + number, stream=stream))
    await store.apply(ended, SUCCEEDED)
    before = await read_all(store, ended.attempt_id)
    assert await store.write(logs.compact_ended, 20) == 40
    assert await store.write(logs.compact_ended, 20) == 0
    assert await read_all(store, ended.attempt_id) == before
    assert await _chunks(store, ended.attempt_id) == 1
    assert await _chunks(store, running.attempt_id) == 40


async def test_compaction_goes_on_where_it_stopped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "BUDGET", 10)
    step = await store.running("j")
    for number in range(35):
        await append(store, step, batch(f"line {number}"))
    await store.apply(step, SUCCEEDED)
    before = await read_all(store, step.attempt_id)
    rounds = 0
    while await store.write(logs.compact_ended, 20):
        rounds += 1
        assert rounds < 20
    assert rounds > 2 and await _chunks(store, step.attempt_id) == 1
    assert await read_all(store, step.attempt_id) == before


async def test_a_page_of_a_large_log_reads_only_what_it_needs(store: Store) -> None:
    step = await store.running("j")
    block = "".join(f"{number:09d} some more text in this line\n" for number in range(20_000)).encode()
    packed = chunks.pack(LogBatch((Chunk("task-1", "stdout", 1, 20_000, block),), {}))
    assert packed.chunks[0].codec == "zstd" and len(packed.chunks[0].data) < len(block) / 4
    for _ in range(5):
        await append(store, step, packed)
    lines, total, more = await store.read(logs.page, step.attempt_id, ALL, 59_999, 2)
    assert [line.text[:9] for line in lines] == ["000019999", "000000000"]
    assert total == 100_000 and more
    lines, _, _ = await store.read(logs.tail, step.attempt_id, ALL, 500)
    assert [line.seq for line in lines] == list(range(99_500, 100_000))


async def _chunks(store: Store, attempt_id: str) -> int:
    query = sa.text("SELECT count(*) FROM log_chunk WHERE attempt_id = :a")
    row = await store.read(lambda tx: tx.one(query, {"a": attempt_id}))
    return int(row[0])


def test_lines_are_cut_out_of_a_chunk_from_either_end() -> None:
    whole = [f"line {n}" if n % 3 else "" for n in range(23)]
    data = "".join(f"{text}\n" for text in whole).encode()
    runs = [(10, 1, "stdout", None), (1, 2, "stderr", None), (12, 3, "stdout", None)]
    told = [(1, "stdout", None)] * 10 + [(2, "stderr", None)] + [(3, "stdout", None)] * 12
    for start in range(23):
        for stop in range(start + 1, 24):
            assert chunks.texts(data, start, stop, 23) == whole[start:stop]
            assert list(chunks.spread(runs, start, stop)) == told[start:stop]

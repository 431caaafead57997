"""What the store alone can do: job lives, creates, look-ups, lists, logs.

    python bench/store_bench.py [--url URL] [--jobs 5000] [--large 200000]

Without `--url` it uses SQLite in a folder of its own. Every figure is for this one process.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.store import chunks, jobs, logs, steps, workspaces
from nemo_jobs.store.chunks import Chunk, LogBatch
from nemo_jobs.store.db import Database, Tx
from nemo_jobs.store.steps import Outcome, TaskChange

NOW = 1_800_000_000_000_000
STEP: dict[str, Any] = {
    "name": "main",
    "environment": None,
    "config": {},
    "executor": {"provider": "subprocess", "profile": "default", "command": ["true"]},
    "lifecycle": {"staleness_timeout_seconds": 0},
}
PLATFORM_SPEC = {"steps": [STEP], "secrets": None}


def new_job(number: int) -> jobs.NewJob:
    return jobs.NewJob(
        workspace="default",
        name=f"job-{number}",
        source="bench",
        spec='{"input":{"kind":"csv"}}',
        platform_spec=PLATFORM_SPEC,
        fileset=f"job-fileset-job-{number}",
        auth_context='{"principal_id":"","principal_groups":[]}',
    )


class Bench:
    def __init__(self, db: Database) -> None:
        self.db = db
        self.now = NOW
        self.made = 0

    def tick(self) -> int:
        self.now += 1000
        return self.now

    async def create(self) -> None:
        self.made += 1
        await self.db.write(jobs.create_job, new_job(self.made), self.tick(), "bench")

    async def lives(self, count: int, waiting: int) -> float:
        """Whole lives a second: `waiting` creators, one engine that claims in batches."""
        created = 0

        async def creator() -> None:
            nonlocal created
            while created < count:
                created += 1
                await self.create()

        ended = asyncio.Semaphore(0)
        begin = time.perf_counter()
        engine = asyncio.create_task(self.engine(count, ended))
        await asyncio.gather(*(creator() for _ in range(waiting)))
        await engine
        return count / (time.perf_counter() - begin)

    async def engine(self, count: int, ended: asyncio.Semaphore) -> None:
        done = 0
        room = asyncio.Semaphore(64)
        running: set[asyncio.Task[None]] = set()
        while done < count:
            now = self.tick()
            lease: dict[str, Any] = {"owner": "bench", "token": "t", "host": "h", "now": now}
            found = await self.db.write(
                steps.claim_waiting,
                *("subprocess", "default"),
                **lease,
                until=now + 30_000_000,
                limit=64,
                durable=False,
            )
            for step in found:
                await room.acquire()
                task = asyncio.create_task(self.run(step, room))
                running.add(task)
                task.add_done_callback(running.discard)
            done += len(found)
            if not found:
                await asyncio.sleep(0.001)
        await asyncio.gather(*running)

    async def run(self, step: Any, room: asyncio.Semaphore) -> None:
        handle = {"backend": "subprocess", "key": step.key, "version": 1, "data": {"host": "h", "pid": 4711}}
        task = TaskChange("task-0123456789abcdef", 0, State.ACTIVE, {"pid": 4711})
        started = Outcome(
            (Trigger.SUBMITTED, Trigger.STARTED),
            *("running", "running", handle, "h", 0),
            tasks=(task,),
        )
        await self.db.write(steps.apply, "t", step.id, started, self.tick(), durable=False)
        task = TaskChange("task-0123456789abcdef", 0, State.COMPLETED, {"exit_code": 0, "cpu_seconds": 0.001})
        ended = Outcome(
            (Trigger.SUBMITTED, Trigger.STARTED, Trigger.SUCCEEDED),
            *("finished", "finished with code 0"),
            tasks=(task,),
            status_details={"exit_code": 0},
            removal_after=3_600_000_000,
        )
        await self.db.write(steps.apply, "t", step.id, ended, self.tick())
        room.release()

    async def fill(self, count: int) -> None:
        """Ended jobs, quickly: many to a transaction."""

        def some(tx: Tx, first: int, last: int) -> None:
            for number in range(first, last):
                jobs.create_job(tx, new_job(number), self.tick(), "bench")

        while self.made < count:
            last = min(self.made + 500, count)
            await self.db.write(some, self.made + 1, last + 1)
            self.made = last


async def timed(work: Callable[[], Awaitable[Any]], times: int = 30) -> float:
    """Median milliseconds."""
    spent = []
    for _ in range(times):
        begin = time.perf_counter()
        await work()
        spent.append((time.perf_counter() - begin) * 1e3)
    return round(statistics.median(spent), 3)


async def log_figures(db: Database) -> dict[str, float]:
    spec = {"steps": [{**STEP, "executor": {**STEP["executor"], "profile": "logs"}}]}
    await db.write(jobs.create_job, replace(new_job(0), name="log-job", platform_spec=spec), NOW, "bench")
    lease: dict[str, Any] = {"owner": "bench", "token": "log", "host": "h", "now": NOW * 2, "until": NOW * 3}
    (step,) = await db.write(steps.claim_waiting, "subprocess", "logs", **lease, limit=1)
    job = await db.read(jobs.get_job, "default", "log-job")
    line = b"2027-03-01 12:00:00 epoch 17 batch 1234 loss 0.123456 accuracy 0.98765 lr 0.001 and so on\n"
    block = b"".join(line.replace(b"1234", b"%04d" % n) for n in range((1 << 20) // len(line)))
    count = block.count(b"\n")
    begin = time.perf_counter()
    for number in range(100):
        batch = LogBatch((Chunk("task-a", "stdout", NOW, count, block),), {"at": number})
        await db.write(steps.append_logs, "log", step.id, await asyncio.to_thread(chunks.pack, batch))
    spent = time.perf_counter() - begin
    flt = logs.LogFilter()
    return {
        "log_write_mb_s": round(100 * len(block) / 1e6 / spent, 1),
        "log_tail_500_ms": await timed(lambda: db.read(logs.tail, job.attempt_id, flt, 500)),
        "log_page_100_ms": await timed(lambda: db.read(logs.page, job.attempt_id, flt, 500_000, 100)),
    }


async def main(url: str, count: int, large: int) -> dict[str, Any]:
    db = Database.open(url)
    await db.start()
    await db.write(workspaces.ensure_defaults, NOW)
    bench = Bench(db)
    figures: dict[str, Any] = {"url": url.split("@")[-1], "cores": os.cpu_count()}
    figures["write_one_ms"] = await timed(bench.create)
    await bench.lives(300, 16)
    figures["lives_per_s_64_waiting"] = round(await bench.lives(count, 64))
    begin = time.perf_counter()
    await asyncio.gather(*(bench.create() for _ in range(count)))
    figures["creates_per_s"] = round(count / (time.perf_counter() - begin))
    get = "job-17"
    figures["get_point_ms"] = await timed(lambda: db.read(jobs.get_job, "default", get, point=True), 300)
    for size in (20_000, large):
        await bench.fill(size)
        query = jobs.JobQuery("default", page_size=100)
        last = jobs.JobQuery("default", page=bench.made // 100, page_size=100)
        figures[f"list_100_of_{size}_ms"] = await timed(partial(db.read, jobs.list_jobs, query))
        figures[f"list_100_of_{size}_on_loop_ms"] = await timed(
            partial(db.read, jobs.list_jobs, query, point=True)
        )
        figures[f"list_last_100_of_{size}_ms"] = await timed(partial(db.read, jobs.list_jobs, last))
    figures |= await log_figures(db)
    await db.aclose()
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--large", type=int, default=200_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{Path(folder) / 'bench.db'}"
        print(json.dumps(asyncio.run(main(url, given.jobs, given.large)), indent=1))

"""Lists at three sizes. Jobs are copied in the database, since running 200,000 takes minutes."""

import sqlite3
import statistics
import time
from pathlib import Path

from bench.measures import Values
from tests.e2e.service import JOBS, Client, Service

SIZES = (1_000, 20_000, 200_000)
REQUESTS = 200

#: Columns that must differ from job to job, where n is the number of the copy.
FRESH = {
    "job": {
        "id": "id || '-' || n",
        "name": "name || '-' || n",
        "attempt_id": "attempt_id || '-' || n",
        "created_at": "created_at + n * 1000",
        "updated_at": "updated_at + n * 1000",
    },
    "attempt": {"id": "id || '-' || n", "job_id": "job_id || '-' || n"},
    "step": {
        "id": "id || '-' || n",
        "attempt_id": "attempt_id || '-' || n",
        "job_id": "job_id || '-' || n",
    },
    "task": {"id": "id || '-' || n", "step_id": "step_id || '-' || n"},
}


def lists(root: Path, scale: float) -> Values:
    """p50 of a list of 100, first pages, at each size; the sizes take turns."""
    sizes = [max(int(size * scale), 10) for size in SIZES]
    services = {size: Service(root / f"lists-{size}-{time.time_ns()}") for size in sizes}
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    try:
        for size, service in services.items():
            fill(service, size)
            service.start()
        clients = {size: service.client() for size, service in services.items()}
        for number in range(REQUESTS):
            for size in sizes:
                seconds[size].append(list_once(clients[size], size, number))
    finally:
        for service in services.values():
            service.close()
    medians = {size: statistics.median(seconds[size][10:]) * 1000 for size in sizes}
    values = {f"list_100_at_{size}_p50_ms": median for size, median in medians.items()}
    return values | {"largest_to_smallest": max(medians.values()) / min(medians.values())}


def list_once(client: Client, size: int, number: int) -> float:
    began = time.perf_counter()
    answer = client.get(f"{JOBS}?page_size=100&page={number % 5 + 1}")
    seconds = time.perf_counter() - began
    assert answer.status == 200
    assert answer.json["pagination"]["total_results"] == size
    return seconds


def fill(service: Service, size: int) -> None:
    """Run one job, stop, and copy it until there are `size`."""
    service.start()
    service.client().create("seed", ["true"])
    service.client().wait("seed")
    service.stop()
    copy_job(service.data_dir / "nemo-jobs.db", 1, size)


def copy_job(file: Path, there: int, size: int) -> None:
    """Copy the first job with its records until there are `size`."""
    db = sqlite3.connect(file)
    numbers = (
        f"WITH RECURSIVE copy(n) AS (SELECT {there} UNION ALL SELECT n + 1 FROM copy WHERE n + 1 < {size}) "
    )
    for table, fresh in FRESH.items():
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        values = ", ".join(f"{fresh[name]} AS {name}" if name in fresh else name for name in columns)
        first = f"(SELECT * FROM {table} ORDER BY created_at, id LIMIT 1)"
        db.execute(f"INSERT INTO {table} {numbers} SELECT {values} FROM {first}, copy")
    db.execute("UPDATE job_count SET n = n + ? WHERE state = 'completed'", (size - there,))
    db.commit()
    db.close()

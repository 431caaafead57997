"""Filters by state, label and date over many jobs, which are copied as for the lists."""

import sqlite3
import statistics
import time
from pathlib import Path
from urllib.parse import quote

from bench.lists import fill
from bench.machine import cpu_of
from bench.measures import Values
from tests.e2e.service import JOBS, Client, Service

SIZE, REQUESTS = 200_000, 100
#: One job a minute, from here on; every 20th has failed; 50 teams.
FIRST = 1_700_000_000 * 1_000_000
MINUTE, FAILED, TEAMS = 60 * 1_000_000, 20, 50
STATE = 'status:"error"'
LABEL = 'labels.team:"t7"'
DAY = 'created_at>="2023-11-20" AND created_at<"2023-11-21"'
SINCE = 'created_at>="2023-11-20"'
FILTERS = {
    "none": "",
    "state": STATE,
    "label": LABEL,
    "day": DAY,
    "state_and_label": f"{STATE} AND {LABEL}",
    "state_and_day": f"{STATE} AND {DAY}",
    "label_and_day": f"{LABEL} AND {DAY}",
    "all": f"{STATE} AND {LABEL} AND {DAY}",
    "all_since": f"{STATE} AND {LABEL} AND {SINCE}",
    # Most of the jobs: the exact total is what this one costs.
    "since": SINCE,
}


def filters(root: Path, scale: float) -> Values:
    """p50 of a first page of 100 for each filter, which take turns; each total is checked. The
    service's own CPU time tells what a busy machine adds."""
    size = max(int(SIZE * scale), 10)
    service = Service(root / f"filters-{time.time_ns()}")
    seconds: dict[str, list[float]] = {name: [] for name in FILTERS}
    cpu = dict.fromkeys(FILTERS, 0.0)
    try:
        fill(service, size)
        spread(service.data_dir / "nemo-jobs.db")
        client = service.start().client()
        totals = {name: total(service.data_dir / "nemo-jobs.db", name) for name in FILTERS}
        for _ in range(REQUESTS):
            for name, found in totals.items():
                before = cpu_of(service.pid)
                seconds[name].append(filter_once(client, name, found))
                cpu[name] += cpu_of(service.pid) - before
    finally:
        service.close()
    medians = {name: statistics.median(each[5:]) * 1000 for name, each in seconds.items()}
    bare = medians.pop("none")
    values = {f"filter_{name}_p50_ms": median for name, median in medians.items()}
    values |= {f"filter_{name}_cpu_ms": spent / REQUESTS * 1000 for name, spent in cpu.items()}
    return values | {"floor_no_filter_p50_ms": bare}


def filter_once(client: Client, name: str, found: int) -> float:
    asked = f"&filter={quote(FILTERS[name])}" if FILTERS[name] else ""
    path = f"{JOBS}?page_size=100{asked}"
    began = time.perf_counter()
    answer = client.get(path)
    seconds = time.perf_counter() - began
    assert answer.status == 200, answer
    page = answer.json
    assert page["pagination"]["total_results"] == found, (name, page["pagination"], found)
    assert len(page["data"]) == min(found, 100)
    return seconds


def spread(file: Path) -> None:
    """Give the copied jobs their times, states and labels; their number is their rowid."""
    db = sqlite3.connect(file)
    at = f"{FIRST} + rowid * {MINUTE}"
    db.execute(
        f"UPDATE job SET created_at = {at}, updated_at = {at}, "
        f"state = CASE WHEN rowid % {FAILED} = 7 THEN 'error' ELSE state END"
    )
    db.execute(
        "INSERT INTO job_label (job_id, key, value, workspace, job_created_at) "
        f"SELECT id, 'team', 't' || (rowid % {TEAMS}), workspace, created_at FROM job"
    )
    db.execute("DELETE FROM job_count")
    db.execute(
        "INSERT INTO job_count (workspace, state, shard, n) "
        "SELECT workspace, state, 0, count(*) FROM job GROUP BY workspace, state"
    )
    db.commit()
    db.close()


def total(file: Path, name: str) -> int:
    """How many jobs match, by the plain meaning of the filter."""
    text = FILTERS[name]
    begin, end = "unixepoch('2023-11-20') * 1000000", "unixepoch('2023-11-21') * 1000000"
    terms = {
        STATE: "state = 'error'",
        LABEL: "id IN (SELECT job_id FROM job_label WHERE key = 'team' AND value = 't7')",
        DAY: f"created_at >= {begin} AND created_at < {end}",
    }
    where = [term for part, term in terms.items() if part in text]
    where += [f"created_at >= {begin}"] if SINCE in text else []
    where = where or ["true"]
    db = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    (found,) = db.execute(f"SELECT count(*) FROM job WHERE {' AND '.join(where)}").fetchone()
    db.close()
    return int(found)

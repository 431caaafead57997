"""What must be true after a storm, checked against what the jobs themselves wrote down."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.e2e.service import JOBS, Client, Json, Service
from tests.storm.jobs import Job

if TYPE_CHECKING:
    from tests.storm.storm import Report

#: Work that was killed with its keeper or engine may have begun a little after, or ended a little before.
SLACK = 500_000


def problems_of(
    services: list[Service], accepted: dict[str, Job], marks: Path, report: "Report"
) -> list[str]:
    client = services[0].client()
    found = []
    for item in accepted.values():
        try:
            found += [
                f"{item.name} ({item.kind}): {problem}"
                for problem in job_problems(client, item, marks, report)
            ]
        except AssertionError as error:
            found.append(f"{item.name} ({item.kind}): {error}")
    unknown = {file.name for file in marks.iterdir()} - set(accepted)
    found += [f"{name} ran and was never accepted" for name in sorted(unknown)]
    found += list(count_problems(client, accepted, report))
    found += list(process_problems(services))
    found += list(log_problems(services))
    return found


def job_problems(client: Client, item: Job, marks: Path, report: "Report") -> Iterator[str]:
    answer = client.get(f"{JOBS}/{item.name}")
    if answer.status != 200:
        yield f"was accepted and is gone: {answer}"
        return
    tree = client.status(item.name)
    report.states[answer.json["status"]] += 1
    runs = read_marks(marks / item.name)
    lost = was_lost(tree, runs, report)
    report.lost += lost
    if not lost:
        yield from state_problems(item, answer.json, tree)
    yield from run_problems(item, runs, lost)
    if item.lines and (not lost or any(kind == "end" for kind, *_ in runs)):
        messages = [text.replace("[stderr] e ", "e ", 1) for text in client.messages(item.name)]
        report.lines += len(messages)
        yield from line_problems(item, messages)


def was_lost(tree: Json, runs: list[tuple[str, str, int]], report: "Report") -> bool:
    """Whether the job ended as lost, and was at work when a kill took its processes along."""
    step = tree["steps"][-1]
    reason = step["status_details"].get("reason")
    if tree["status"] != "error" or reason not in ("lost", "engine_restarted"):
        return False
    began = max((at // 1000 for kind, name, at in runs if (kind, name) == ("start", step["name"])), default=0)
    began, ended = (began or micros(step["created_at"])) - SLACK, micros(step["updated_at"]) + SLACK
    return any(began <= at <= ended for at in report.deadly_kills)


def state_problems(item: Job, found: Json, tree: Json) -> Iterator[str]:
    state, steps = found["status"], tree["steps"]
    if item.then == "pause" and state == "cancelled":
        return
    if state != item.state:
        yield f"is {state} and not {item.state}: {json.dumps(tree)[:1500]}"
        return
    if tree["status"] != state:
        yield f"is {state} and its tree says {tree['status']}"
    if state == "completed" and [step["status"] for step in steps] != ["completed"] * len(item.steps):
        yield f"is completed with steps {[step['status'] for step in steps]}"
    for step in steps:
        open_tasks = [
            task["name"]
            for task in step["tasks"]
            if task["status"] not in ("completed", "error", "cancelled", "paused")
        ]
        if open_tasks:
            yield f"has ended and its tasks {open_tasks} have not"
    if item.code is not None:
        codes = [task["status_details"].get("exit_code") for task in steps[-1]["tasks"]][-1:]
        if codes != [item.code]:
            yield f"should have exit code {item.code}, has {codes}: {json.dumps(steps[-1])[:800]}"


def run_problems(item: Job, runs: list[tuple[str, str, int]], lost: bool) -> Iterator[str]:
    """Started once a step, ended, and each step after the end of the one before."""
    if not item.marked:
        return
    starts = Counter(step for kind, step, _ in runs if kind == "start")
    for step, count in starts.items():
        twice = item.then == "pause" or (item.kind == "again" and step == "step-2")
        if count > 1 + twice:
            yield f"{step} started {count} times"
    if item.state == "completed" and not lost:
        ends = Counter(step for kind, step, _ in runs if kind == "end")
        expected = {f"step-{n}" for n in range(1, len(item.steps) + 1)}
        if set(starts) != expected or set(ends) != expected:
            yield f"is completed, but by its own marks it started {dict(starts)} and ended {dict(ends)}"
    if item.kind == "broken_chain" and "step-3" in starts:
        yield "its third step started after the second had failed"
    last_end = 0
    for kind, step, at in runs:
        if kind == "start" and at < last_end:
            yield f"{step} started before the step in front had ended"
        last_end = max(last_end, at) if kind == "end" else last_end


def line_problems(item: Job, messages: list[str]) -> Iterator[str]:
    for prefix, count in item.lines.items():
        numbers = [int(text.split()[1]) for text in messages if text.startswith(f"{prefix} ")]
        if numbers != list(range(count)):
            missing = sorted(set(range(count)) - set(numbers))
            doubled = [number for number, times in Counter(numbers).items() if times > 1]
            yield (
                f"stream {prefix}: {len(numbers)} of {count} lines; missing {len(missing)} {missing[:5]}, "
                f"doubled {len(doubled)} {doubled[:5]}" + ("" if missing or doubled else ", out of order")
            )
    foreign = [text for text in messages if text.split(" ")[0] not in item.lines]
    if foreign:
        yield f"{len(foreign)} damaged lines, such as {foreign[0][:100]!r}"


def count_problems(client: Client, accepted: dict[str, Job], report: "Report") -> Iterator[str]:
    """The totals of the list against what is really there."""
    total = client.get(f"{JOBS}?page_size=1").json["pagination"]["total_results"]
    if total != len(accepted):
        yield f"the list says {total} jobs, {len(accepted)} were accepted"
    for state, count in report.states.items():
        counted = client.get(f"{JOBS}?page_size=1&filter%5Bstatus%5D={state}").json["pagination"][
            "total_results"
        ]
        if counted != count:
            yield f"the list says {counted} jobs are {state}, {count} are"
    names = listed_names(client)
    if names != sorted(accepted):
        yield f"walking the list gives {len(names)} names, {len(set(names))} different, of {len(accepted)}"


def listed_names(client: Client) -> list[str]:
    names: list[str] = []
    page = 1
    while True:
        answer = client.get(f"{JOBS}?page_size=1000&page={page}&sort=created_at").json
        names += [found["name"] for found in answer["data"]]
        if page >= answer["pagination"]["total_pages"]:
            return sorted(names)
        page += 1


def process_problems(services: list[Service], patience: float = 20) -> Iterator[str]:
    """Only services and keepers are left while they run, and nothing after a stop."""
    left = settled(lambda: workloads(services), patience)
    if left:
        yield f"processes of ended jobs are left: {left}"
    for service in services:
        if (code := service.stop()) != 0:
            yield f"the service ended with code {code} on SIGTERM"
    left = settled(lambda: {pid for service in services for pid in service.processes()}, patience)
    if left:
        yield f"processes are left after the stop: {describe(left)}"


def workloads(services: list[Service]) -> set[int]:
    known = {service.pid for service in services} | {pid for s in services for pid in s.keepers()}
    return {pid for service in services for pid in service.processes()} - known


def settled(look: Any, patience: float) -> Any:
    deadline = time.monotonic() + patience
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def describe(pids: set[int]) -> str:
    return "; ".join(
        f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes()[:120]!r}"
        for pid in pids
        if Path(f"/proc/{pid}").exists()
    )


def log_problems(services: list[Service]) -> Iterator[str]:
    """A kill may cut the last line; a traceback is a mistake of ours in any case."""
    for service in services:
        text = service.stderr.read_text(errors="replace")
        if count := text.count("Traceback (most recent call last)"):
            first = text[text.index("Traceback (most recent call last)") :][:3000]
            yield f"{count} tracebacks in {service.stderr}, the first:\n{first}"


def read_marks(file: Path) -> list[tuple[str, str, int]]:
    if not file.exists():
        return []
    lines = [line.split() for line in file.read_text().splitlines()]
    return [(kind, step, int(at)) for kind, step, _, at in lines]


def micros(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1e6)

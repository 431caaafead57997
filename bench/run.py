"""`python -m bench.run`: every measure with its floors, medians of alternating rounds.

Prints a Markdown table and leaves it, with all values, in build/bench/.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import machine, measures
from bench.access import auth
from bench.docker import Skipped, docker
from bench.filters import filters
from bench.lists import lists
from bench.measures import Bench, Values
from bench.records import otlp
from bench.table import table
from bench.transfers import files
from tests.e2e.service import Service

OUT = Path(__file__).parent.parent / "build" / "bench"
MEASURES: dict[str, Callable[[Bench], Values]] = {
    "latency": measures.latency,
    "throughput": measures.throughput,
    "creates": measures.creates,
    "gets": measures.gets,
    "flood": measures.flood,
    "readable": measures.readable,
    "otlp": otlp,
    "files": files,
    "auth": auth,
    "starts": measures.starts,
    "lists": lambda bench: lists(bench.root, bench.scale),
    "filters": lambda bench: filters(bench.root, bench.scale),
    "memory": measures.memory_after_jobs,
    "docker": docker,
}
#: Measured once, at the end: they are slow and hardly vary.
ONCE = ("lists", "filters", "memory", "docker")


def main() -> int:
    options = arguments()
    root = Path(tempfile.mkdtemp(prefix="nemo-bench-"))
    began, before = time.monotonic(), machine.load()
    service = Service(root / "service")
    try:
        bench = Bench(service.start(), root, 0.1 if options.quick else 1.0)
        rounds = run(bench, options.only or list(MEASURES), 1 if options.quick else options.rounds)
    finally:
        service.close()
    medians = {name: median_of(values) for name, values in rounds.items()}
    where = machine.describe()
    report = {
        "machine": where,
        "load_before": before,
        "seconds": round(time.monotonic() - began),
        "rounds": rounds,
        "medians": medians,
    }
    text = table(where, medians, max(map(len, rounds.values()), default=0))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "results.json").write_text(json.dumps(report, indent=1))
    (OUT / "results.md").write_text(text)
    print(text)
    shutil.rmtree(root, ignore_errors=True)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round with a tenth of everything")
    options = parser.parse_args()
    if unknown := set(options.only or ()) - set(MEASURES):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    return options


def run(bench: Bench, names: list[str], rounds: int) -> dict[str, list[Values]]:
    """Alternate between the measures, so that noise of the machine falls on all of them."""
    found: dict[str, list[Values]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            if name in ONCE and number < rounds - 1:
                continue
            bench.quiet()
            try:
                found[name].append(MEASURES[name](bench))
            except Skipped as why:
                print(f"{name}: not measured: {why}", file=sys.stderr, flush=True)
                del found[name]
                continue
            shown = ", ".join(f"{key} {value:.4g}" for key, value in found[name][-1].items())
            print(f"round {number + 1}, {name}: {shown}", file=sys.stderr, flush=True)
    return found


def median_of(rounds: list[Values]) -> Values:
    return {key: statistics.median(values[key] for values in rounds) for key in rounds[0]}


if __name__ == "__main__":
    sys.exit(main())

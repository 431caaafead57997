"""`python -m tests.storm --database sqlite|postgresql [--kills N] [--seed N] [--services N]`"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.storm.setting import storm_on


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill the service under load and check every promise.")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--services", type=int, help="how many share the PostgreSQL database (default 2)")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="storm-"))
    print(f"storm on {options.database}: {options.kills} kills, seed {options.seed}, in {root}", flush=True)
    count = options.services or (2 if options.database == "postgresql" else 1)
    with storm_on(options.database, root, options.seed, count) as storm:
        report = storm.run(options.kills, settle=300)
    print(report)
    if report.problems:
        print(f"The data are in {root}.")
    else:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())

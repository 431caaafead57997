"""`python -m tests.storm [--backend docker | --database sqlite|postgresql] [--kills N] [--seed N]`"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.storm.docker_storm import docker_storm
from tests.storm.setting import storm_on


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill the service under load and check every promise.")
    parser.add_argument("--backend", choices=("subprocess", "docker"), default="subprocess")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--kills", type=int, help="default 100; of containers 50")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--services", type=int, help="how many share the PostgreSQL database (default 2)")
    parser.add_argument("--no-live-restore", action="store_true", help="containers die with their engine")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="storm-"))
    containers = options.backend == "docker"
    kills, where = options.kills or (50 if containers else 100), "docker" if containers else options.database
    print(f"storm on {where}: {kills} kills, seed {options.seed}, in {root}", flush=True)
    count = options.services or (2 if options.database == "postgresql" else 1)
    with (
        docker_storm(root, options.seed, live_restore=not options.no_live_restore)
        if containers
        else storm_on(options.database, root, options.seed, count)
    ) as storm:
        report = storm.run(kills, settle=300)
    print(report)
    if report.problems:
        print(f"The data are in {root}.")
    else:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())

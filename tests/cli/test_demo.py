"""`make demo`: the whole product, as a newcomer meets it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.service import all_pids, identity, send

ROOT = Path(__file__).parents[2]


def test_the_demo_runs_a_job_shows_it_and_stops_its_service(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "tools/demo.py"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert ran.returncode == 0, ran.stderr
    assert "epoch  50  loss" in ran.stdout
    assert re.search(r"accuracy \d+\.\d%: \d+ of 30 unseen flowers", ran.stdout)
    assert "percentage_done: 100" in ran.stdout
    assert "status: completed" in ran.stdout
    assert re.search(r"3 classes, accuracy \d+\.\d%\n", ran.stdout)
    assert "What to try next:" in ran.stdout
    mark = os.fsencode(tmp_path)
    left = {pid: seen for pid in all_pids() if mark in (seen := identity(pid))}
    for pid in left:  # the keeper would end by itself, but a while later
        send(pid, signal.SIGKILL)
    assert not any(b"services" in seen for seen in left.values())

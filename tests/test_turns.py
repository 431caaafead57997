"""Tests that run at once let those alone that measure time."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.service import until
from tests.turns import turn

CODE = """
import sys
from tests.turns import turn
with turn(sys.argv[1], bool(sys.argv[2])):
    print(flush=True)
    sys.stdin.read()
"""


class Other:
    """A process that takes its turn and keeps it until it is told to end."""

    def __init__(self, folder: Path, alone: bool) -> None:
        self.said = folder / f"said-{len(list(folder.iterdir()))}"
        with self.said.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CODE, str(folder), "alone" if alone else ""],
                stdin=subprocess.PIPE,
                stdout=out,
                cwd=Path(__file__).parent.parent,
            )

    def has_it(self) -> bool:
        return self.said.stat().st_size > 0

    def waits(self) -> bool:
        """It sleeps in `flock`, as the kernel tells: so it neither has its turn nor is on its way there."""
        lines = Path("/proc/locks").read_text().splitlines()
        return any(f" {self._process.pid} " in line and "->" in line for line in lines)

    def end(self) -> None:
        self._process.communicate(timeout=10)


def test_ordinary_tests_share_and_nobody_overtakes_one_that_wants_to_be_alone(tmp_path: Path) -> None:
    first, second = Other(tmp_path, False), Other(tmp_path, False)
    ready(first.has_it, second.has_it)
    single = Other(tmp_path, True)
    ready(single.waits)
    late = Other(tmp_path, False)
    ready(late.waits)
    first.end()
    assert single.waits() and not single.has_it()
    second.end()
    ready(single.has_it)
    assert late.waits() and not late.has_it()
    single.end()
    ready(late.has_it)
    late.end()


def test_one_process_has_nobody_to_wait_for() -> None:
    with turn(None, True), turn(None, True):
        pass


def ready(*conditions: Callable[[], bool]) -> None:
    for condition in conditions:
        until(condition, 10)

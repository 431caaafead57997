"""What is told of a step that waits for its image, on a terminal and elsewhere."""

import io
from typing import Any

import pytest
from rich.console import Console

from nemo_jobs.cli.live import Painter
from nemo_jobs.cli.progress import PlainProgress, obstacle, summary


def tree(message: str, status: str = "pending", reason: str = "image_pull") -> dict[str, Any]:
    details = {"message": message, "reason": reason}
    step = {"name": "fit", "status": status, "status_details": details, "created_at": "2027-03-04T09:15:27Z"}
    return {"name": "moth", "status": status, "status_details": {}, "steps": [step]}


class Notes:
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def painted(found: dict[str, Any], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    return Painter(colour=False, console=console).paint(found, 3.0)


def test_c003_the_live_line_shows_what_is_pulled_and_how_far() -> None:
    line = painted(tree("pulling busybox:stable: 12.0 MB of 40.0 MB (30 %)"))
    assert "moth/fit" in line and "30%" in line
    assert "pulling busybox:stable: 12.0 MB of 40.0 MB" in line
    assert "%" not in painted(tree("creating the container", reason="starting"))
    assert len(painted(tree("pulling " + "x" * 500 + "\x1b[2J (7 %)"), width=60)) <= 60


def test_what_keeps_a_running_step_is_told_and_what_it_says_of_itself_is_not() -> None:
    assert "its container is paused" in summary(tree("its container is paused", "active", "suspended"))
    assert obstacle(tree("epoch 3", "active", "running")["steps"][0]) == ""


def test_a_log_is_not_filled_with_the_bytes_of_a_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("nemo_jobs.cli.progress.time.monotonic", lambda: now[0])
    notes = Notes()
    told = PlainProgress(notes, lines_to_stdout=True)  # type: ignore[arg-type]
    for second in range(25):
        told.tree(tree(f"pulling busybox:stable: {second * 400.5} kB of 40.0 MB ({second} %)"))
        now[0] += 1
    told.tree(tree("creating the container"))
    told.tree(tree("creating the container"))
    assert [text.partition("(")[2] for text in notes.said] == [
        "pulling busybox:stable: 0.0 kB of 40.0 MB (0 %))",
        "pulling busybox:stable: 4005.0 kB of 40.0 MB (10 %))",
        "pulling busybox:stable: 8010.0 kB of 40.0 MB (20 %))",
        "creating the container)",
    ]

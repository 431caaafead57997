"""The live line, drawn with rich. Imported on terminals only: rich is slow to load."""

import re
from typing import Any

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nemo_jobs.cli.progress import current_step, duration, obstacle, scalars
from nemo_jobs.cli.text import clean

_COLOURS = {
    "completed": "green",
    "active": "cyan",
    "error": "red",
    "cancelled": "yellow",
    "cancelling": "yellow",
    "paused": "yellow",
    "pausing": "yellow",
}
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"


class Painter:
    """Turns a status tree into one line of the terminal's width."""

    def __init__(self, *, colour: bool, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, no_color=not colour, highlight=False, markup=False)
        utf8 = self._console.encoding.lower().startswith("utf")
        self._frames = _FRAMES if utf8 else _PLAIN_FRAMES
        self._turn = 0

    def paint(self, tree: Any, elapsed: float) -> str:
        """The line, without a line break."""
        self._turn += 1
        console = self._console
        with console.capture() as capture:
            console.print(self._grid(tree, elapsed), width=max(console.width - 1, 10), height=1, end="")
        return capture.get().rstrip("\n")

    def _grid(self, tree: Any, elapsed: float) -> Table:
        grid = Table.grid(padding=(0, 1))
        cells: list[Any] = [Text(self._frames[self._turn % len(self._frames)], style="cyan")]
        step = current_step(tree)
        place = f"{tree['name']}/{step['name']}" if step else tree["name"]
        cells.append(Text(clean(place, colours=False), style="bold"))
        state = step["status"] if step else tree["status"]
        cells.append(Text(state, style=_COLOURS.get(state, "")))
        cells.append(Text(duration(elapsed), style="dim"))
        details = dict(scalars(tree.get("status_details") or {}))
        waits_for = obstacle(step) if step else ""
        share = percentage(details) if not waits_for else told_percentage(waits_for)
        if share is not None:
            cells.append(ProgressBar(total=100, completed=share, width=20))
            cells.append(Text(f"{share:.0f}%"))
        rest = ", ".join(f"{key}={value}" for key, value in details.items() if key != "percentage_done")
        cells.append(Text(clean(", ".join(filter(None, (waits_for, rest))), colours=False)))
        for _ in cells:
            grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_row(*cells)
        return grid


def told_percentage(message: str) -> float | None:
    """The share in what a step says while it waits, as of an image that is pulled."""
    found = re.search(r"\b([0-9]{1,3}) ?%", message)
    return min(float(found[1]), 100.0) if found else None


def percentage(details: dict[str, Any]) -> float | None:
    """The task's own progress from 0 to 100, when it tells one."""
    value = details.get("percentage_done")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return min(max(float(value), 0.0), 100.0)
    return None

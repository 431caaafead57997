"""How a job gets on, told on stderr: one live line on a terminal, a line per change elsewhere."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from nemo_jobs.cli.session import Session, flush
from nemo_jobs.cli.text import clean

_SHOWN_DETAILS = 6
#: What the service says about an error in words too.
_TOLD = frozenset({"message", "reason", "exit_code", "signal"})
_TICK = 0.5
#: Seconds between two lines of which only the numbers differ, while a step waits.
_COUNTING = 10.0


class Progress(Protocol):
    """What watching and following report to."""

    def tree(self, tree: Any) -> None: ...
    def line(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self) -> None: ...


def make_progress(session: Session, *, lines_to_stdout: bool) -> Progress:
    """Live where stderr is a terminal that can redraw a line, plain elsewhere."""
    import os

    stderr = sys.stderr
    if stderr is not None and stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveProgress(session, lines_to_stdout=lines_to_stdout)
    return PlainProgress(session, lines_to_stdout=lines_to_stdout)


class PlainProgress:
    """One line on stderr for each change of state or progress. Safe between threads."""

    def __init__(self, session: Session, *, lines_to_stdout: bool) -> None:
        self._session = session
        self._to_stdout = lines_to_stdout
        self._last = ""
        self._said_at = 0.0
        self._lock = threading.Lock()

    def tree(self, tree: Any) -> None:
        text = summary(tree)
        with self._lock:
            now = time.monotonic()
            # A pull that tells its bytes would fill the log of whoever keeps one.
            counts = _of_numbers(tree, text) == _of_numbers(tree, self._last)
            if text == self._last or (counts and now - self._said_at < _COUNTING):
                return
            self._last, self._said_at = text, now
            self._session.note(text)

    def line(self, text: str) -> None:
        with self._lock:
            if self._to_stdout:
                self._session.data(text)
                flush()
            else:
                self._session.note(text)

    def note(self, text: str) -> None:
        with self._lock:
            self._session.note(text)

    def close(self) -> None:
        pass


class LiveProgress:
    """The last line of the terminal shows step, state, time and progress, and is drawn again
    twice a second; everything else is printed above it."""

    def __init__(self, session: Session, *, lines_to_stdout: bool) -> None:
        from nemo_jobs.cli.live import Painter

        self._session = session
        self._to_stdout = lines_to_stdout
        self._painter = Painter(colour=session.settings.colour)
        self._tree: Any = None
        self._drawn = False
        self._drawn_at = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True, name="progress")
        self._ticker.start()

    def tree(self, tree: Any) -> None:
        with self._lock:
            self._tree = tree
            self._draw()

    def line(self, text: str) -> None:
        def write() -> None:
            if self._to_stdout:
                self._session.data(text)
                flush()
            else:
                sys.stderr.write(text + "\n")

        self._above(write)

    def note(self, text: str) -> None:
        self._above(lambda: self._session.note(text))

    def close(self) -> None:
        self._stop.set()
        self._ticker.join(2 * _TICK)
        with self._lock:
            self._erase()
            self._tree = None

    def _above(self, write: Callable[[], None]) -> None:
        with self._lock:
            self._erase()
            write()
            # A flood of lines must not wait for the drawing; the ticker brings the line back.
            if time.monotonic() - self._drawn_at > 0.1:
                self._draw()

    def _tick(self) -> None:
        while not self._stop.wait(_TICK):
            with self._lock:
                self._draw()

    def _erase(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._drawn = False

    def _draw(self) -> None:
        if self._tree is None or self._stop.is_set():
            return
        sys.stderr.write("\r\x1b[2K" + self._painter.paint(self._tree, age(self._tree)))
        sys.stderr.flush()
        self._drawn, self._drawn_at = True, time.monotonic()


def _of_numbers(tree: Any, text: str) -> str:
    """The text without what counts up while the current step waits."""
    import re

    step = current_step(tree)
    return re.sub(r"[0-9][0-9.]*( [kMGT]?B\b)?", "#", text) if step and obstacle(step) else text


def summary(tree: Any) -> str:
    """State of the job, its current step and its progress, in one line."""
    text = f"job {tree['name']}: {tree['status']}"
    step = current_step(tree)
    if step:
        text += f" | step {step['name']}: {step['status']}"
        if reason := obstacle(step):
            text += f" ({reason})"
    details = scalars(tree.get("status_details") or {})
    if details:
        text += " | " + ", ".join(f"{key}={value}" for key, value in details)
    return clean(text, colours=False)


def obstacle(step: Any) -> str:
    """What a step waits for, such as its image, or what keeps it from running; else empty."""
    details = step.get("status_details") or {}
    waits = step["status"] in ("created", "pending", "resuming")
    held_up = details.get("reason") in ("suspended", "backend_unavailable")
    return str(details.get("message") or "") if waits or held_up else ""


def current_step(tree: Any) -> Any:
    """The newest step, or None before the first."""
    return tree["steps"][-1] if tree["steps"] else None


def scalars(details: dict[str, Any]) -> list[tuple[str, Any]]:
    """The first entries that fit into a line."""
    found = [(key, value) for key, value in details.items() if isinstance(value, str | int | float)]
    return found[:_SHOWN_DETAILS]


def age(tree: Any, *, ended: bool = False) -> float:
    """Seconds since the current attempt began, or from then to its end. Clocks of two hosts may differ."""
    from datetime import datetime

    # The steps are the attempt's: after a rerun they are younger than the job. A job that has ended
    # can still be changed, which only `since` doesn't follow.
    began = min((step["created_at"] for step in tree["steps"]), default=tree["created_at"])
    end = (tree.get("reason") or {}).get("since") or tree["updated_at"]
    try:
        created = datetime.fromisoformat(began).timestamp()
        until = datetime.fromisoformat(end).timestamp() if ended else time.time()
    except ValueError:
        return 0.0
    return max(until - created, 0.0)


def closing(tree: Any) -> str:
    """How the job ended, with what it says about its error."""
    text = f"job {tree['name']}: {tree['status']} after {duration(age(tree, ended=True))}"
    error = tree.get("error_details")
    if error:
        text += explained(error)
    return clean(text, colours=False)


def explained(error: dict[str, Any]) -> str:
    """The message, and as JSON whatever it doesn't say already."""
    import json

    message = str(error.get("message") or "")

    def told(key: str, value: Any) -> bool:
        return key in _TOLD or (isinstance(value, str) and value in message)

    rest = {key: value for key, value in error.items() if not message or not told(key, value)}
    text = f": {message}" if message else ""
    return text + (f" {json.dumps(rest, ensure_ascii=False)}" if rest else "")


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"

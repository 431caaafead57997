"""Following a job's output through the event stream, with its progress beside it."""

import threading
import time
from dataclasses import dataclass
from typing import Any

from nemo_jobs.cli.jobs_tail import line_printer, zone_note
from nemo_jobs.cli.progress import Progress, closing, make_progress
from nemo_jobs.cli.session import CommandError, Session, json_text, stdout
from nemo_jobs.cli.text import clean
from nemo_jobs.client import ClientError, NotFound, Retry
from nemo_jobs.client.follow import Selection, follow_logs
from nemo_jobs.client.types import ENDED

_LOOK_EVERY = 1.0
_END_TRIES = 50


@dataclass(frozen=True, slots=True)
class Follow:
    """What to follow. `plain`: messages alone; `decide`: the exit code tells how the job ended."""

    name: str
    tail: int | None = None
    plain: bool = False
    decide: bool = False
    attempt_id: int | str | None = None
    step_id: str | None = None
    task_id: str | None = None


def follow_to_end(session: Session, plan: Follow) -> int:
    """Print lines as they are written until nothing more can come."""
    if session.prints_code:
        which = {"attempt_id": plan.attempt_id, "step_id": plan.step_id, "task_id": plan.task_id}
        session.ask("follow_logs", plan.name, tail=plan.tail, **which)
    place = session.name_hint(plan.name)
    session.hint = f"the job goes on; come back with: nemo jobs tail -f {place}"
    progress = make_progress(session, lines_to_stdout=True)
    lookout = Lookout(session, plan.name, progress)
    try:
        _print_lines(session, plan, progress)
        tree = lookout.final()
    except NotFound as error:
        raise CommandError(f"not found (404): {error}", 3) from error
    finally:
        lookout.close()
        progress.close()
    session.hint = ""
    if tree is None:
        raise CommandError(f"the log has ended but the state of '{plan.name}' is not known", 1)
    session.note(closing(tree))
    return 0 if tree["status"] == "completed" or not plan.decide else 1


def _print_lines(session: Session, plan: Follow, progress: Progress) -> None:
    as_json = session.flags.output_format in ("json", "raw")
    colours = session.settings.colour and stdout().isatty()
    show = line_printer(session)
    if not as_json and not plan.plain:
        progress.note(zone_note())
    which = Selection(plan.name, None, plan.attempt_id, plan.step_id, plan.task_id)
    for line in follow_logs(session.client(), which, tail=plan.tail, warn=progress.note):
        if as_json:
            progress.line(json_text(line, compact=True))
        elif plan.plain:
            progress.line(clean(line["message"], colours=colours))
        else:
            progress.line(show(line))


class Lookout:
    """Asks for the job's status once a second, beside the stream, on a connection of its own."""

    def __init__(self, session: Session, name: str, progress: Progress) -> None:
        self._client = session.client(Retry(repeats=0))
        self._name = name
        self._progress = progress
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True, name="status")
        self._thread.start()

    def final(self) -> Any:
        """The status tree of the ended job; None when it can't be had."""
        self.close()
        tree = None
        for _ in range(_END_TRIES):
            try:
                tree = self._client.get_job_status(self._name)
            except ClientError as error:
                self._progress.note(f"warning: {error}")
                return None
            if tree["status"] in ENDED:
                break
            time.sleep(0.1)
        return tree

    def close(self) -> None:
        self._stop.set()
        self._thread.join(1)

    def _look(self) -> None:
        while True:
            try:
                self._progress.tree(self._client.get_job_status(self._name))
            except ClientError:
                # The stream meets the same trouble, tells it, and waits it out.
                self._stop.wait(_LOOK_EVERY)
            if self._stop.wait(_LOOK_EVERY):
                return

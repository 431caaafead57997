"""From what is known of a container to an observation. Pure."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from nemo_jobs.backends.api import Handle, Json, Observation, Phase, TaskObservation
from nemo_jobs.backends.docker import labels
from nemo_jobs.backends.docker.table import Seen

MOST_STACK = 2048
STACK_LINES = 80
#: Bytes of the last output that are looked at.
MOST_READ = 64 << 10
_SIGNALS = {member.value: member.name for member in signal.Signals}
_KILLED = 128 + signal.SIGKILL
#: What the init process of a container says, and the codes with which it ends, when there is nothing to run.
_NO_PROGRAM = re.compile(r"^\[FATAL +tini \([0-9]+\)\] exec (.{1,200}) failed: (.{1,100})$", re.MULTILINE)
_NOT_RUN = frozenset({1, 126, 127})
#: Codes with which containers end when their engine does.
_BY_ENGINE = frozenset({_KILLED, 128 + signal.SIGTERM, 255})
_SLACK = 2_000_000  # microseconds by which an end may lie outside of a gap that it belongs to


@dataclass(frozen=True, slots=True)
class Asked:
    """What this service asked of a container, and when its engine could not be listened to."""

    stopped: bool = False
    gaps: Sequence[tuple[int, int]] = ()


def observation(handle: Handle, seen: Seen | None, asked: Asked, now: int) -> Observation:
    """What is true about the run of `handle`; `seen` is None when its container isn't there."""
    if seen is not None and is_before(handle, seen):
        if asked.stopped:
            return Observation(Phase.STOPPED, (), "", "it was stopped before it was started again", now)
        return Observation(Phase.WAITING, (), "starting", "the container waits to be started again", now)
    if seen is None or seen.run.key != handle.key or (seen.gone and not _end_was_told(seen)):
        return _missing(handle, seen, asked, now)
    phase = _phase(seen, asked)
    ended = phase not in (Phase.WAITING, Phase.RUNNING)
    task = TaskObservation(
        rank=0,
        name=handle.data["task"],
        phase=phase,
        native_id=seen.id,
        node=handle.data.get("node", ""),
        exit_code=seen.code if ended else None,
        signal=_signal(seen.code) if ended else None,
        oom_killed=ended and seen.oom and seen.code != 0,
        started_at=seen.started_at or None,
        ended_at=max(seen.ended_at, seen.started_at) if ended else None,
        error_stack=(seen.stack or None) if phase is Phase.FAILED else None,
        details=_details(seen, ended=ended),
    )
    reason, message = _words(phase, seen, asked)
    return Observation(phase, (task,), reason, message, now)


def is_before(handle: Handle, seen: Seen) -> bool:
    """Whether the container waits to be started for this run, having ended an earlier one."""
    since = int(handle.data.get("since") or 0)
    return bool(since) and not seen.gone and seen.run.key == handle.key and seen.started_at < since


def _phase(seen: Seen, asked: Asked) -> Phase:
    if seen.ended or seen.gone:
        if asked.stopped:
            return Phase.STOPPED
        return Phase.SUCCEEDED if seen.code == 0 else Phase.FAILED
    return Phase.WAITING if seen.state == "created" else Phase.RUNNING


def _end_was_told(seen: Seen) -> bool:
    """Whether it ended before it was removed. Who removes one that runs kills it first."""
    return seen.code is not None and seen.code != _KILLED


def _missing(handle: Handle, seen: Seen | None, asked: Asked, now: int) -> Observation:
    task = handle.data["task"]
    phase = Phase.STOPPED if asked.stopped else Phase.LOST
    text = "" if asked.stopped else "its container is gone: somebody removed it, or the engine lost it"
    if seen is not None and seen.gone and seen.started_at and not asked.stopped:
        text = "its container was removed by somebody else while it ran"
    native = str(handle.data.get("container") or "")
    found = TaskObservation(0, task, phase, native_id=native, node=handle.data.get("node", ""))
    return Observation(phase, (found,), "" if asked.stopped else "lost", text, now)


def _words(phase: Phase, seen: Seen, asked: Asked) -> tuple[str, str]:
    """Reason and sentence."""
    match phase:
        case Phase.WAITING:
            return "starting", "the container is created and not started yet"
        case Phase.RUNNING if seen.state != "running":
            return (
                "suspended",
                f"the engine says that the container is {seen.state}; nobody here asked for that",
            )
        case Phase.RUNNING:
            note = seen.marks.get(labels.NOTE)
            return "", f"the container is running; {note}" if note else "the container is running"
        case Phase.SUCCEEDED:
            return "", "the container finished with code 0"
        case Phase.FAILED if seen.oom:
            return "", ""
        case Phase.FAILED if seen.code in _NOT_RUN and (found := _NO_PROGRAM.search(seen.stack or "")):
            return "program_not_found", f"the image has no program {found[1]!r} that can be run ({found[2]})"
        case Phase.FAILED if seen.code in _BY_ENGINE and in_a_gap(seen.ended_at, asked.gaps):
            return "engine_restarted", "the container engine was stopped or restarted while it ran"
        case Phase.FAILED if seen.signal and _signal(seen.code) is not None:
            return "signal", "somebody sent a signal to its container"
        case _:
            return "", ""


def in_a_gap(at: int, gaps: Sequence[tuple[int, int]]) -> bool:
    return any(begin - _SLACK <= at <= end + _SLACK for begin, end in gaps)


def _signal(code: int | None) -> str | None:
    return _SIGNALS.get(code - 128) if code is not None and code > 128 else None


def _details(seen: Seen, *, ended: bool) -> Json:
    found: Json = {"container_id": seen.id, "container_name": seen.name, "image": seen.image}
    if ended and seen.code is not None:
        found["exit_code"] = seen.code
    if seen.error:
        found["engine_error"] = seen.error[:500]
    return found


def last_words(text: bytes) -> str:
    """The end of output as whole lines, as much as is kept of it."""
    lines = text.decode("utf-8", "replace").replace("\0", "\ufffd").splitlines()[-STACK_LINES:]
    kept = "\n".join(lines)
    while len(kept) > MOST_STACK and "\n" in kept:
        kept = kept.partition("\n")[2]
    return kept[-MOST_STACK:]

"""What to do next with one step: a pure function of its record, what was seen, and the time.

Nothing here acts. The engine asks `decide`, carries out the answer and records it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_jobs.domain.model import Json, Reason, StepRecord
from nemo_jobs.domain.states import State, Trigger

SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a step may stay where it is, in seconds; None or 0 means no limit."""

    before_active: int | None = None
    active: int | None = None
    step_timeout: int | None = None
    staleness: int | None = None
    grace: float = 10.0


@dataclass(frozen=True, slots=True)
class TaskView:
    """The end of one task, as far as `decide` needs it."""

    exit_code: int | None = None
    signal: str | None = None
    oom_killed: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What a backend said about the step's workload. `phase` is one of
    waiting, running, succeeded, failed, stopped, lost."""

    phase: str
    tasks: Sequence[TaskView] = ()
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Submit:
    """Start the work; `generation` numbers this run of the step."""

    generation: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the work to end, because of `reason`; `mark` says that the reason is new and has to
    be recorded first, so that a restart goes on with it. Look again at `look_at`."""

    grace: float
    reason: Reason
    message: str
    mark: bool
    look_at: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write these triggers; `ended` says that the work is proven to be over."""

    triggers: tuple[Trigger, ...]
    reason: Reason
    message: str
    error: Json | None = None
    ended: bool = False
    look_at: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `look_at`, unless the backend or a request says otherwise."""

    look_at: int


Action = Submit | Stop | Record | Wait

#: The longest time between two looks at a step that works, in microseconds: the safety net
#: under hints that were lost.
RECHECK = 60 * SECOND


#: What is over when the backend shows work that runs as it should.
_PASSING = frozenset({Reason.SUSPENDED, Reason.BACKEND_UNAVAILABLE, Reason.SECRETS_UNAVAILABLE})


@dataclass(frozen=True, slots=True)
class Since:
    """Times that the record doesn't hold. `silent` is the last sign of life of the liveliest active
    task, None when there is nothing to compare; `pending` when the step began to be prepared or
    started without having to wait for devices, None: as the record says."""

    silent: int | None = None
    pending: int | None = None


_AS_RECORDED = Since()


def decide(
    step: StepRecord, view: View | None, limits: Limits, now: int, since: Since = _AS_RECORDED
) -> Action:
    """The next action for `step`.

    `view` is None when nothing was submitted for its present run, which is certain: a pending step
    is being prepared then.
    """
    if step.state in (State.CREATED, State.RESUMING) and view is None:
        return Submit(step.generation + (step.state is State.RESUMING))
    if step.state in (State.CANCELLING, State.PAUSING):
        return _ending(step, view, limits, now)
    if view is None and step.state is State.PENDING:
        return _preparing(step, limits, now, since)
    if view is None:
        return _lost(step, "its workload was never found")
    if view.phase in ("waiting", "running"):
        return _working(step, view, limits, now, since)
    return _ended(step, view)


def _preparing(step: StepRecord, limits: Limits, now: int, since: Since) -> Action:
    overdue = _overdue(step, limits, now, since)
    if overdue is None:
        return Submit(step.generation)
    reason, text = overdue
    if step.message:
        text = f"{text}; last: {step.message}"
    return Record((Trigger.EXPIRED,), reason, text, {"message": text, "reason": str(reason)}, ended=True)


def next_deadline(step: StepRecord, limits: Limits, since: Since) -> int | None:
    """When a limit of a step that is being prepared or started is over; None: none is."""
    return min((at for at, _, _ in _deadlines(step, limits, since)), default=None)


def _ending(step: StepRecord, view: View | None, limits: Limits, now: int) -> Action:
    asked = Reason.CANCELLED_BY_USER if step.state is State.CANCELLING else Reason.PAUSED_BY_USER
    done = "cancelled" if step.state is State.CANCELLING else "paused"
    if view is None:
        return Record((Trigger.STOPPED,), asked, f"{done} before it started", ended=True)
    if view.phase in ("waiting", "running"):
        text = f"asked to end; killed if it has not ended {limits.grace:g} s after that"
        return Stop(
            limits.grace, Reason.STOPPING, text, mark=False, look_at=now + int((limits.grace + 5) * SECOND)
        )
    code = _first_code(view)
    text = f"{done}; the process ended with code {code}" if code is not None else done
    return Record((Trigger.STOPPED,), asked, text, ended=True)


def _working(step: StepRecord, view: View, limits: Limits, now: int, since: Since) -> Action:
    if step.stop_reason:
        text = step.message or "a limit was reached"
        look = now + int((limits.grace + 5) * SECOND)
        return Stop(limits.grace, Reason(step.stop_reason), text, mark=False, look_at=look)
    if view.phase == "running" and step.state is not State.ACTIVE:
        triggers = (Trigger.SUBMITTED, Trigger.STARTED)
        return Record(
            triggers,
            Reason.RUNNING,
            view.message or "running",
            look_at=_next_look(step, limits, now, _AS_RECORDED),
        )
    if view.phase == "waiting" and step.state in (State.CREATED, State.RESUMING):
        return Record(
            (Trigger.SUBMITTED,), Reason(view.reason or Reason.STARTING), view.message or "starting"
        )
    overdue = _overdue(step, limits, now, since)
    if overdue is not None:
        reason, text = overdue
        return Stop(limits.grace, reason, text, mark=True, look_at=now + int((limits.grace + 5) * SECOND))
    told = _told(step, view)
    if told is not None:
        return told
    return Wait(_next_look(step, limits, now, since))


def _told(step: StepRecord, view: View) -> Record | None:
    """What the backend says about work that goes on, where that is new."""
    running = view.phase == "running"
    usual = Reason.RUNNING if running else Reason.STARTING
    reason, text = Reason(view.reason or usual), view.message
    if running and not view.reason:
        # Only an exception is worth a word while it runs, and its end.
        return Record((), usual, text or "running") if step.reason in _PASSING else None
    if not text or (text, reason) == (step.message, step.reason):
        return None
    return Record((), reason, text)


def _overdue(step: StepRecord, limits: Limits, now: int, since: Since) -> tuple[Reason, str] | None:
    for deadline, reason, text in _deadlines(step, limits, since):
        if now >= deadline:
            return reason, text
    return None


def _deadlines(step: StepRecord, limits: Limits, since: Since) -> list[tuple[int, Reason, str]]:
    found: list[tuple[int, Reason, str]] = []
    # A step that waits for devices has as much time as it takes.
    waits = step.reason == Reason.WAITING_FOR_GPUS
    if step.state is State.PENDING and limits.before_active and not waits:
        at = max(step.created_at, since.pending or step.since) + limits.before_active * SECOND
        text = (
            f"it was not running {limits.before_active} s after it was scheduled (ttl_seconds_before_active)"
        )
        found.append((at, Reason.BEFORE_ACTIVE_TIMEOUT, text))
    if step.state is State.ACTIVE and step.active_since is not None:
        start = step.active_since - step.active_used
        for limit, name in (
            (limits.active, "ttl_seconds_active"),
            (limits.step_timeout, "lifecycle.timeout_seconds"),
        ):
            if limit:
                text = f"it ran longer than {limit} s ({name})"
                found.append((start + limit * SECOND, Reason.ACTIVE_TIMEOUT, text))
        if limits.staleness and since.silent is not None:
            text = f"no task reported for {limits.staleness} s (lifecycle.staleness_timeout_seconds)"
            at = max(since.silent, step.active_since) + limits.staleness * SECOND
            found.append((at, Reason.STALE, text))
    return found


def _next_look(step: StepRecord, limits: Limits, now: int, since: Since) -> int:
    soonest = min((at for at, _, _ in _deadlines(step, limits, since)), default=now + RECHECK)
    return max(now, min(soonest, now + RECHECK))


def _ended(step: StepRecord, view: View) -> Action:
    if step.stop_reason:
        reason, text = Reason(step.stop_reason), step.message
        code = _first_code(view)
        error: Json = {"message": text, "reason": str(reason)}
        if code is not None:
            error["exit_code"] = code
        return Record((Trigger.EXPIRED,), reason, text, error, ended=True)
    if view.phase == "succeeded":
        triggers = (Trigger.SUBMITTED, Trigger.STARTED, Trigger.SUCCEEDED)
        return Record(triggers, Reason.FINISHED, view.message or "finished with code 0", ended=True)
    if view.phase == "lost":
        return _lost(step, view.message or "its process is gone and how it ended is not known", view.reason)
    return _failed(step, view)


def _failed(step: StepRecord, view: View) -> Record:
    reason, text, error = explain_failure(step.name, view)
    triggers = (Trigger.SUBMITTED, Trigger.STARTED, Trigger.FAILED)
    return Record(triggers, reason, text, error, ended=True)


def _lost(step: StepRecord, text: str, reason: str = "") -> Record:
    code = Reason(reason or Reason.LOST)
    error: Json = {"message": f"{step.name}: {text}", "reason": str(code)}
    return Record((Trigger.SUBMITTED, Trigger.LOST), code, f"{step.name}: {text}", error, ended=True)


def explain_failure(step_name: str, view: View) -> tuple[Reason, str, Json]:
    """Reason, sentence and error details of work that ended badly by itself."""
    bad = next((task for task in view.tasks if task.exit_code not in (0, None)), None)
    if bad is None:
        text = f"{step_name}: {view.message or 'it failed and no exit code is known'}"
        reason = Reason(view.reason or Reason.LOST)
        return reason, text, {"message": text, "reason": str(reason)}
    reason, text = _explain_code(step_name, bad)
    if view.reason:
        # The backend knows more than the code says.
        reason, text = Reason(view.reason), f"{text}: {view.message}" if view.message else text
    error: Json = {"message": text, "reason": str(reason), "exit_code": bad.exit_code}
    if bad.signal:
        error["signal"] = bad.signal
    return reason, text, error


_SIGNAL_HINTS = {"SIGKILL": "possibly out of memory", "SIGBUS": "often too little shared memory"}


def _explain_code(step_name: str, task: TaskView) -> tuple[Reason, str]:
    if task.oom_killed:
        return Reason.OOM, f"{step_name} was killed because it ran out of memory (code {task.exit_code})"
    if task.signal:
        hint = _SIGNAL_HINTS.get(task.signal)
        extra = f" ({hint})" if hint else ""
        return Reason.SIGNAL, f"{step_name} was killed by {task.signal}{extra}, code {task.exit_code}"
    return Reason.EXIT_NONZERO, f"{step_name} ended with code {task.exit_code}"


def _first_code(view: View) -> int | None:
    return next((task.exit_code for task in view.tasks if task.exit_code is not None), None)

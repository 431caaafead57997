"""The state machine of jobs, attempts, steps and tasks, as data."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """The ten states of the wire. The comment says who moves a step out of it."""

    CREATED = "created"  # the engine, when the profile has a free place
    PENDING = "pending"  # the engine, when the backend says that the work runs or has ended
    ACTIVE = "active"  # the engine, when the work ends or a limit is reached
    PAUSING = "pausing"  # the engine, when the work is proven to have stopped
    PAUSED = "paused"  # a person, by resume or cancel
    RESUMING = "resuming"  # the engine, when the profile has a free place
    CANCELLING = "cancelling"  # the engine, when the work is proven to have stopped
    COMPLETED = "completed"  # nobody
    ERROR = "error"  # nobody
    CANCELLED = "cancelled"  # nobody


class Trigger(StrEnum):
    """What may move a step. The last three come from requests, the others from the engine."""

    SUBMITTED = "submitted"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    EXPIRED = "expired"
    STOPPED = "stopped"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"


TERMINAL = frozenset({State.COMPLETED, State.ERROR, State.CANCELLED})
LIVE = frozenset(State) - TERMINAL
#: States in which a workload may exist outside and somebody has to look at it.
WORKING = frozenset({State.PENDING, State.ACTIVE, State.PAUSING, State.CANCELLING})
#: States in which a step waits for a place on its profile.
WAITING = frozenset({State.CREATED, State.RESUMING})

_T = Trigger
_S = State
TRANSITIONS: Mapping[State, Mapping[Trigger, State]] = MappingProxyType(
    {
        _S.CREATED: {
            _T.SUBMITTED: _S.PENDING,
            _T.STARTED: _S.ACTIVE,
            _T.FAILED: _S.ERROR,
            _T.EXPIRED: _S.ERROR,
            _T.CANCEL: _S.CANCELLED,
            _T.PAUSE: _S.PAUSING,
        },
        _S.PENDING: {
            _T.STARTED: _S.ACTIVE,
            _T.SUCCEEDED: _S.COMPLETED,
            _T.FAILED: _S.ERROR,
            _T.LOST: _S.ERROR,
            _T.EXPIRED: _S.ERROR,
            _T.CANCEL: _S.CANCELLING,
            _T.PAUSE: _S.PAUSING,
        },
        _S.ACTIVE: {
            _T.SUCCEEDED: _S.COMPLETED,
            _T.FAILED: _S.ERROR,
            _T.LOST: _S.ERROR,
            _T.EXPIRED: _S.ERROR,
            _T.CANCEL: _S.CANCELLING,
            _T.PAUSE: _S.PAUSING,
        },
        _S.PAUSING: {
            _T.SUCCEEDED: _S.PAUSED,
            _T.FAILED: _S.PAUSED,
            _T.LOST: _S.PAUSED,
            _T.STOPPED: _S.PAUSED,
            _T.CANCEL: _S.CANCELLING,
        },
        _S.PAUSED: {_T.CANCEL: _S.CANCELLING, _T.RESUME: _S.RESUMING},
        _S.RESUMING: {
            _T.SUBMITTED: _S.PENDING,
            _T.STARTED: _S.ACTIVE,
            _T.FAILED: _S.ERROR,
            _T.EXPIRED: _S.ERROR,
            _T.CANCEL: _S.CANCELLING,
        },
        _S.CANCELLING: {
            _T.SUCCEEDED: _S.CANCELLED,
            _T.FAILED: _S.CANCELLED,
            _T.LOST: _S.CANCELLED,
            _T.STOPPED: _S.CANCELLED,
        },
        _S.COMPLETED: {},
        _S.ERROR: {},
        _S.CANCELLED: {},
    }
)


def advance(state: State, trigger: Trigger) -> State | None:
    """The state after `trigger`; None when the trigger has no meaning there.

    None from an observation means that it is stale; from a request it means a conflict.
    """
    return TRANSITIONS[state].get(trigger)


#: What an outside writer (a task, another controller) may write to a step: the edges of the
#: wire contract, some of which the service itself never uses. Staying put is always allowed.
WRITABLE: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        _S.CREATED: frozenset(
            {_S.PENDING, _S.ACTIVE, _S.PAUSING, _S.PAUSED, _S.CANCELLING, _S.CANCELLED, _S.ERROR}
        ),
        _S.PENDING: frozenset(
            {_S.ACTIVE, _S.COMPLETED, _S.PAUSING, _S.PAUSED, _S.CANCELLING, _S.CANCELLED, _S.ERROR}
        ),
        _S.ACTIVE: frozenset({_S.COMPLETED, _S.PAUSING, _S.PAUSED, _S.CANCELLING, _S.CANCELLED, _S.ERROR}),
        _S.PAUSED: frozenset({_S.RESUMING, _S.ACTIVE, _S.CANCELLING}),
        _S.PAUSING: frozenset({_S.PAUSED, _S.COMPLETED, _S.ERROR, _S.CANCELLING}),
        _S.RESUMING: frozenset({_S.PENDING, _S.ACTIVE, _S.CANCELLING, _S.ERROR}),
        _S.CANCELLING: frozenset({_S.CANCELLED, _S.ERROR}),
        _S.COMPLETED: frozenset(),
        _S.ERROR: frozenset(),
        _S.CANCELLED: frozenset(),
    }
)


def rollup(steps: Sequence[State], total: int) -> State:
    """The state of an attempt, from the states of its existing steps in order.

    `total` is the number of steps in the spec; steps are created one by one, so the last
    existing one is the current one. Between two steps the attempt stays active.
    """
    current = steps[-1]
    if current is State.COMPLETED:
        return State.COMPLETED if len(steps) >= total else State.ACTIVE
    if current in (State.CREATED, State.PENDING) and len(steps) > 1:
        return State.ACTIVE
    return current

"""What the engine does next, case by case."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_jobs.domain.decide import (
    RECHECK,
    SECOND,
    Limits,
    Record,
    Since,
    Stop,
    Submit,
    TaskView,
    View,
    Wait,
    decide,
    explain_failure,
)
from nemo_jobs.domain.model import Reason, StepRecord
from nemo_jobs.domain.states import LIVE, State, Trigger, advance

T0 = 1_800_000_000 * SECOND
STEP = StepRecord(
    id="platform-job-step-x", attempt_id="a", job_id="j", workspace="lab", job="moth", name="fit", ordinal=0,
    steps_total=1, provider="subprocess", profile="default", spec={}, state=State.CREATED, reason="queued",
    message="", since=T0, status_details={}, error_details=None, generation=0, handle=None, host=None,
    due_at=T0,
    lease_token="t", active_since=None, active_used=0, stop_reason=None, log_cursor=None, db_version=1,
    created_at=T0, updated_at=T0, fileset="f", output_location=None, attempt_seq=0, auth_context={},
)  # fmt: skip
LIMITS = Limits(before_active=60, active=100, staleness=30, grace=10)
RUNNING = View("running")


def _step(state: State, **more: Any) -> StepRecord:
    active: dict[str, Any] = {"active_since": T0} if state is State.ACTIVE else {}
    return STEP._replace(state=state, **{**active, **more})


def test_a_created_step_is_submitted_under_its_own_generation() -> None:
    assert decide(_step(State.CREATED, generation=3), None, LIMITS, T0) == Submit(3)


def test_a_resumed_step_is_a_new_run() -> None:
    assert decide(_step(State.RESUMING, generation=3), None, LIMITS, T0) == Submit(4)


def test_running_work_makes_a_waiting_step_active() -> None:
    action = decide(_step(State.CREATED), RUNNING, LIMITS, T0)
    assert isinstance(action, Record)
    assert action.triggers == (Trigger.SUBMITTED, Trigger.STARTED)


def test_a_running_step_waits_for_its_nearest_limit() -> None:
    assert decide(_step(State.ACTIVE), RUNNING, LIMITS, T0) == Wait(T0 + RECHECK)
    assert decide(_step(State.ACTIVE), RUNNING, LIMITS, T0 + 70 * SECOND) == Wait(T0 + 100 * SECOND)


def test_the_active_limit_stops_the_work_before_it_ends_the_step() -> None:
    action = decide(_step(State.ACTIVE), RUNNING, LIMITS, T0 + 100 * SECOND)
    assert isinstance(action, Stop)
    assert action.mark
    assert action.reason is Reason.ACTIVE_TIMEOUT
    assert "100 s" in action.message


def test_paused_time_does_not_count_as_active() -> None:
    step = _step(State.ACTIVE, active_used=95 * SECOND)
    assert isinstance(decide(step, RUNNING, LIMITS, T0 + 4 * SECOND), Wait)
    assert isinstance(decide(step, RUNNING, LIMITS, T0 + 5 * SECOND), Stop)


def test_a_step_that_was_stopped_by_a_limit_ends_as_expired() -> None:
    step = _step(State.ACTIVE, stop_reason="active_timeout", message="it ran longer than 100 s")
    action = decide(step, View("stopped", [TaskView(143, "SIGTERM")]), LIMITS, T0)
    assert isinstance(action, Record)
    assert action.triggers == (Trigger.EXPIRED,)
    assert action.reason is Reason.ACTIVE_TIMEOUT
    assert action.error == {"message": step.message, "reason": "active_timeout", "exit_code": 143}


def test_pending_too_long_is_stopped_and_names_the_limit() -> None:
    action = decide(_step(State.PENDING), View("waiting"), LIMITS, T0 + 60 * SECOND)
    assert isinstance(action, Stop)
    assert action.reason is Reason.BEFORE_ACTIVE_TIMEOUT
    assert "ttl_seconds_before_active" in action.message


def test_staleness_counts_from_the_last_sign_of_life() -> None:
    step = _step(State.ACTIVE)
    assert isinstance(decide(step, RUNNING, LIMITS, T0 + 40 * SECOND, Since(silent=T0 + 20 * SECOND)), Wait)
    action = decide(step, RUNNING, LIMITS, T0 + 50 * SECOND, Since(silent=T0 + 20 * SECOND))
    assert isinstance(action, Stop)
    assert action.reason is Reason.STALE


@pytest.mark.parametrize("phase", ["succeeded", "failed", "stopped", "lost"])
def test_c011_any_end_after_a_cancel_is_cancelled(phase: str) -> None:
    action = decide(_step(State.CANCELLING), View(phase, [TaskView(137, "SIGKILL")]), LIMITS, T0)
    assert isinstance(action, Record)
    assert action.reason is Reason.CANCELLED_BY_USER
    assert advance(State.CANCELLING, action.triggers[0]) is State.CANCELLED


def test_c007_cancelled_before_it_started_needs_no_stop() -> None:
    action = decide(_step(State.CANCELLING), None, LIMITS, T0)
    assert isinstance(action, Record)
    assert action.ended


def test_c063_cancelling_goes_on_asking_until_the_end_is_seen() -> None:
    action = decide(_step(State.CANCELLING), RUNNING, LIMITS, T0 + 10_000 * SECOND)
    assert isinstance(action, Stop)


@pytest.mark.parametrize(
    ("task", "reason", "words"),
    [
        (TaskView(9), Reason.EXIT_NONZERO, "ended with code 9"),
        (TaskView(137, "SIGKILL"), Reason.SIGNAL, "killed by SIGKILL (possibly out of memory)"),
        (TaskView(139, "SIGSEGV"), Reason.SIGNAL, "killed by SIGSEGV"),
        (TaskView(137, "SIGKILL", oom_killed=True), Reason.OOM, "ran out of memory"),
    ],
)
def test_c017_the_reason_of_a_failure_says_what_happened(task: TaskView, reason: Reason, words: str) -> None:
    found, text, error = explain_failure("fit", View("failed", [TaskView(0), task]))
    assert found is reason
    assert words in text
    assert error["exit_code"] == task.exit_code
    assert error.get("signal") == task.signal


@given(
    st.sampled_from(sorted(LIVE - {State.PAUSED})),
    st.one_of(st.none(), st.sampled_from(["waiting", "running", "succeeded", "failed", "stopped", "lost"])),
    st.integers(0, 10**6),
    st.sampled_from([None, "active_timeout", "stale"]),
    st.one_of(st.none(), st.integers(0, 10**6)),
)
def test_every_live_step_gets_an_action_with_a_bounded_wait(
    state: State, phase: str | None, later: int, stop_reason: str | None, silent: int | None
) -> None:
    now = T0 + later * SECOND
    view = View(phase) if phase else None
    step = _step(state, stop_reason=stop_reason)
    action = decide(step, view, LIMITS, now, Since(None if silent is None else T0 + silent * SECOND))
    if isinstance(action, Wait | Stop):
        assert now <= action.look_at <= now + RECHECK
    if isinstance(action, Record) and action.ended:
        ends = [target for trigger in action.triggers if (target := advance(state, trigger)) is not None]
        assert ends, f"{action.triggers} leave {state}"

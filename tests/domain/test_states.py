"""The transition table and the roll-up of steps into an attempt."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_jobs.domain.states import LIVE, TERMINAL, TRANSITIONS, WRITABLE, State, Trigger, advance, rollup


def test_terminal_states_absorb_every_trigger() -> None:
    for state, trigger in itertools.product(TERMINAL, Trigger):
        assert advance(state, trigger) is None


def test_every_live_state_has_a_way_out_by_cancel() -> None:
    for state in LIVE - {State.CANCELLING}:
        assert advance(state, Trigger.CANCEL) in (State.CANCELLED, State.CANCELLING)
    assert advance(State.CANCELLING, Trigger.STOPPED) is State.CANCELLED


def test_every_state_can_be_reached_from_created() -> None:
    seen, todo = {State.CREATED}, [State.CREATED]
    while todo:
        for target in TRANSITIONS[todo.pop()].values():
            if target not in seen:
                seen.add(target)
                todo.append(target)
    assert seen == set(State)


@pytest.mark.parametrize("state", sorted(LIVE))
def test_our_own_edges_are_a_subset_of_the_wire_contract(state: State) -> None:
    ours = set(TRANSITIONS[state].values()) - {state}
    assert ours <= WRITABLE[state]


def test_an_end_seen_after_a_cancel_is_cancelled_never_error() -> None:
    for trigger in (Trigger.SUCCEEDED, Trigger.FAILED, Trigger.LOST, Trigger.STOPPED):
        assert advance(State.CANCELLING, trigger) is State.CANCELLED


def test_pausing_and_cancelling_never_end_as_a_time_out() -> None:
    assert advance(State.PAUSING, Trigger.EXPIRED) is None
    assert advance(State.CANCELLING, Trigger.EXPIRED) is None


@pytest.mark.parametrize(
    ("steps", "total", "expected"),
    [
        ([State.CREATED], 2, State.CREATED),
        ([State.PENDING], 2, State.PENDING),
        ([State.COMPLETED], 2, State.ACTIVE),
        ([State.COMPLETED, State.CREATED], 2, State.ACTIVE),
        ([State.COMPLETED, State.PENDING], 2, State.ACTIVE),
        ([State.COMPLETED, State.PAUSED], 2, State.PAUSED),
        ([State.COMPLETED, State.COMPLETED], 2, State.COMPLETED),
        ([State.COMPLETED, State.ERROR], 3, State.ERROR),
    ],
)
def test_rollup(steps: list[State], total: int, expected: State) -> None:
    assert rollup(steps, total) is expected


@given(st.lists(st.sampled_from(list(Trigger)), max_size=30))
def test_no_history_leaves_a_terminal_state(history: list[Trigger]) -> None:
    state = State.CREATED
    for trigger in history:
        target = advance(state, trigger)
        if state in TERMINAL:
            assert target is None
        state = target or state

"""C058: a clock that is set while the service runs neither ends jobs nor keeps them."""

import pytest

from nemo_jobs.clock import SystemClock
from nemo_jobs.domain.decide import Limits, Since, Stop, View, Wait, decide
from nemo_jobs.domain.states import State
from tests.domain.test_decide import _step

HOUR = 3600.0


class Machine:
    """The two clocks of a machine, moved by hand."""

    def __init__(self) -> None:
        self.wall, self.since_boot = 1_800_000_000.0, 500.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.since_boot += seconds


def clock_of(machine: Machine) -> SystemClock:
    return SystemClock(lambda: machine.wall, lambda: machine.since_boot)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_c058_a_step_of_the_wall_clock_moves_no_time_of_ours(step: float) -> None:
    machine = Machine()
    clock = clock_of(machine)
    before = clock.now()
    machine.wall += step
    machine.pass_by(10)
    assert clock.now() - before == pytest.approx(10e6, abs=2)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_c058_limits_hold_over_a_step_of_the_clock(step: float) -> None:
    machine = Machine()
    clock = clock_of(machine)
    running, limits = View("running"), Limits(active=120, staleness=30)
    started = clock.now()
    work = _step(State.ACTIVE, active_since=started)
    machine.wall += step
    machine.pass_by(20)
    assert isinstance(decide(work, running, limits, clock.now(), Since(started)), Wait)
    machine.pass_by(101)
    assert isinstance(decide(work, running, limits, clock.now(), Since(clock.now())), Stop)


def test_a_slewed_clock_is_followed() -> None:
    machine = Machine()
    clock = clock_of(machine)
    for _ in range(100):
        machine.pass_by(1)
        machine.wall += 0.01
        clock.now()
    assert clock.now() == pytest.approx(machine.wall * 1e6, abs=10)


def test_time_never_stands_still_or_runs_back() -> None:
    machine = Machine()
    clock = clock_of(machine)
    first = clock.now()
    machine.wall -= 0.5
    assert first < clock.now() < clock.now()

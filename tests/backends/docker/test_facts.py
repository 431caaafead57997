"""What is said of a container in each of its states."""

from dataclasses import replace

import pytest

from nemo_jobs.backends.api import Handle, Phase
from nemo_jobs.backends.docker import facts, labels
from nemo_jobs.backends.docker.facts import Asked
from nemo_jobs.backends.docker.handles import Engine, handle_of
from nemo_jobs.backends.docker.table import Seen
from nemo_jobs.domain.model import Reason
from tests.backends.docker.plans import KEY, make_plan

ENGINE = Engine("engine-id", "unix:///run/docker.sock", "node-1", "host-1")
MARKS = labels.container_labels(make_plan(), "me", "host:1")
SECOND = 1_000_000
LATER = KEY.removesuffix("-1") + "-2"


def container(state: str = "running", **known: object) -> Seen:
    given: dict[str, object] = {"started_at": 5 * SECOND, **known}
    return Seen("c1", KEY, MARKS, "image:1", state, **given)  # type: ignore[arg-type]


def handle(name: str = KEY) -> Handle:
    return handle_of(ENGINE, "c1", name, MARKS, "image:1")


def phase_of(seen: Seen | None, asked: Asked | None = None) -> Phase:
    return facts.observation(handle(), seen, asked or Asked(), 0).phase


@pytest.mark.parametrize(
    ("state", "phase", "reason"),
    [
        ("created", Phase.WAITING, "starting"),
        ("running", Phase.RUNNING, ""),
        ("paused", Phase.RUNNING, "suspended"),
        ("restarting", Phase.RUNNING, "suspended"),
        ("removing", Phase.RUNNING, "suspended"),
    ],
)
def test_what_has_not_ended(state: str, phase: Phase, reason: str) -> None:
    seen = facts.observation(handle(), container(state), Asked(), 9)
    assert (seen.phase, seen.reason, seen.at) == (phase, reason, 9)
    task = seen.tasks[0]
    assert (task.exit_code, task.ended_at, task.error_stack) == (None, None, None)
    assert (task.node, task.native_id, task.name) == ("node-1", "c1", MARKS[labels.TASK])
    if reason == "suspended":
        assert state in seen.message


@pytest.mark.parametrize("state", ["exited", "dead"])
@pytest.mark.parametrize(
    ("code", "phase", "signal"),
    [
        (0, Phase.SUCCEEDED, None),
        (1, Phase.FAILED, None),
        (137, Phase.FAILED, "SIGKILL"),
        (139, Phase.FAILED, "SIGSEGV"),
        (255, Phase.FAILED, None),
    ],
)
def test_ends(state: str, code: int, phase: Phase, signal: str | None) -> None:
    seen = container(state, code=code, ended_at=8 * SECOND, stack="words")
    found = facts.observation(handle(), seen, Asked(), 0)
    task = found.tasks[0]
    assert (found.phase, task.exit_code, task.signal) == (phase, code, signal)
    assert (task.started_at, task.ended_at) == (5 * SECOND, 8 * SECOND)
    assert task.error_stack == ("words" if phase is Phase.FAILED else None)
    assert task.details["exit_code"] == code
    stopped = facts.observation(handle(), seen, Asked(stopped=True), 0)
    assert (stopped.phase, stopped.tasks[0].exit_code) == (Phase.STOPPED, code)


def test_out_of_memory_is_named_where_the_end_was_bad() -> None:
    bad = facts.observation(handle(), container("exited", code=137, oom=True), Asked(), 0)
    assert bad.tasks[0].oom_killed
    good = facts.observation(handle(), container("exited", code=0, oom=True), Asked(), 0)
    assert not good.tasks[0].oom_killed


def test_a_program_that_is_not_in_the_image_is_named() -> None:
    stack = "[FATAL tini (8)] exec /no/such failed: No such file or directory"
    found = facts.observation(handle(), container("exited", code=127, stack=stack), Asked(), 0)
    assert (found.phase, found.reason) == (Phase.FAILED, "program_not_found")
    assert "'/no/such'" in found.message
    other = facts.observation(handle(), container("exited", code=3, stack=stack), Asked(), 0)
    assert other.reason == ""


@pytest.mark.parametrize(
    ("code", "at", "told"), [(137, 50, True), (143, 41, True), (1, 50, False), (137, 70, False)]
)
def test_an_end_with_the_engine_is_told_as_such(code: int, at: int, told: bool) -> None:
    gaps = [(10 * SECOND, 20 * SECOND), (42 * SECOND, 60 * SECOND)]
    seen = container("exited", code=code, ended_at=at * SECOND)
    found = facts.observation(handle(), seen, Asked(gaps=gaps), 0)
    assert found.reason == ("engine_restarted" if told else "")
    assert facts.observation(handle(), seen, Asked(stopped=True, gaps=gaps), 0).reason == ""


def test_what_is_not_there_is_lost() -> None:
    found = facts.observation(handle(), None, Asked(), 0)
    assert (found.phase, found.reason, found.tasks[0].exit_code) == (Phase.LOST, "lost", None)
    assert phase_of(None, Asked(stopped=True)) is Phase.STOPPED


def test_what_somebody_removed_while_it_ran_is_lost_and_no_kill() -> None:
    found = facts.observation(handle(), container("gone", code=137), Asked(), 0)
    assert (found.phase, found.tasks[0].exit_code) == (Phase.LOST, None)
    assert "removed by somebody else" in found.message


@pytest.mark.parametrize(("code", "phase"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED)])
def test_an_end_that_was_told_before_the_removal_counts(code: int, phase: Phase) -> None:
    assert phase_of(container("gone", code=code)) is phase


def test_a_container_that_belongs_to_a_later_run_is_not_the_earlier_one() -> None:
    seen = replace(container(), name=labels.name_of(labels.Run(LATER, 3)))
    assert phase_of(seen) is Phase.LOST


def test_a_later_run_waits_until_the_container_was_started_for_it() -> None:
    name = labels.name_of(labels.Run(LATER, 7 * SECOND))
    later = handle(name)
    assert later.key == LATER
    before = replace(container("exited", code=0, started_at=5 * SECOND), name=name)
    assert facts.observation(later, before, Asked(), 0).phase is Phase.WAITING
    stopped = facts.observation(later, before, Asked(stopped=True), 0)
    assert stopped.phase is Phase.STOPPED
    after = replace(container("exited", code=0, started_at=8 * SECOND), name=name)
    assert facts.observation(later, after, Asked(), 0).phase is Phase.SUCCEEDED


def test_an_end_that_may_be_undone_does_not_count_yet() -> None:
    seen = container("exited", code=137, doubtful=True)
    found = facts.observation(handle(), seen, Asked(), 0)
    assert (found.phase, found.reason, found.tasks[0].exit_code) == (Phase.RUNNING, "suspended", None)


def test_all_reasons_are_known_words() -> None:
    stack = "[FATAL tini (8)] exec x failed: no"
    gaps = [(0, SECOND * 100)]
    seen = [
        None,
        *(container(state) for state in ("created", "running", "paused")),
        container("exited", code=137, ended_at=SECOND),
        container("exited", code=127, stack=stack),
        container("gone"),
    ]
    for each in seen:
        found = facts.observation(handle(), each, Asked(gaps=gaps), 0)
        assert not found.reason or Reason(found.reason)


def test_last_words_are_whole_lines() -> None:
    text = b"".join(b"line %d\n" % number for number in range(1000))
    found = facts.last_words(text)
    assert found.splitlines()[-1] == "line 999"
    assert len(found.splitlines()) == facts.STACK_LINES
    long = facts.last_words(b"x" * 1500 + b"\n" + b"y" * 1500 + b"\nend\xff\0\n")
    assert long == "y" * 1500 + "\nend\ufffd\ufffd"
    assert len(facts.last_words(b"z" * 9000)) == facts.MOST_STACK
    assert facts.last_words(b"") == ""


def test_handles_tell_engines_apart() -> None:
    data = handle().data
    assert ENGINE.has(data)
    assert replace(ENGINE, id="made-anew").has(data)
    assert replace(ENGINE, address="tcp://other:1").has(data)
    assert not Engine("other", "unix:///run/docker.sock", "node-2", "host-2").has(data)
    assert "node-1" in Engine("other", "tcp://there:2375").elsewhere(data)
    remote = handle_of(Engine("id", "tcp://there:2375", "node"), "c1", KEY, MARKS, "image:1")
    assert "host" not in remote.data

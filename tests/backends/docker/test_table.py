"""What is known of containers, from events and lists in whatever order they come."""

from typing import Any

import pytest

from nemo_jobs.backends.docker import labels
from nemo_jobs.backends.docker.table import MOST_GONE, Table, micros
from tests.backends.docker.plans import KEY

MARKS = {**labels.OURS, labels.KEY: KEY}
SECOND = 1_000_000


def event(action: str, at: int, container: str = "c1", **attributes: str) -> dict[str, Any]:
    actor = {"ID": container, "Attributes": {**MARKS, "name": KEY, "image": "image:1", **attributes}}
    return {"Type": "container", "Action": action, "Actor": actor, "timeNano": at * 10**9}


def listed(state: str, container: str = "c1", name: str = KEY) -> dict[str, Any]:
    return {"Id": container, "Names": [f"/{name}"], "State": state, "Labels": MARKS, "Image": "image:1"}


def inspected(status: str, began: str = "", ended: str = "", **state: Any) -> dict[str, Any]:
    times = {"StartedAt": began or "0001-01-01T00:00:00Z", "FinishedAt": ended or "0001-01-01T00:00:00Z"}
    return {
        "Id": "c1",
        "Name": f"/{KEY}",
        "Config": {"Labels": MARKS, "Image": "image:1"},
        "State": {"Status": status, "ExitCode": 0, **times, **state},
    }


def told(*events: dict[str, Any]) -> Table:
    table = Table()
    for each in events:
        table.event(each)
    return table


def test_a_life_by_its_events() -> None:
    table = told(event("create", 1), event("start", 2))
    seen = table.get("c1")
    assert seen is not None
    assert (seen.state, seen.started_at, seen.run.key, seen.image) == ("running", 2 * SECOND, KEY, "image:1")
    table.event(event("die", 5, exitCode="0"))
    assert (seen.ended, seen.code, seen.ended_at, seen.certain) == (True, 0, 5 * SECOND, True)
    table.event(event("destroy", 6))
    assert (seen.gone, seen.code) == (True, 0)
    assert table.get("c1") is seen
    assert table.here() == []


def test_of_a_bad_end_more_is_to_be_asked_for() -> None:
    table = told(event("create", 1), event("start", 2), event("oom", 3), event("die", 4, exitCode="137"))
    seen = table.get("c1")
    assert seen is not None
    assert (seen.code, seen.oom, seen.certain) == (137, True, False)


def test_a_start_after_an_end_begins_anew() -> None:
    table = told(
        event("create", 1),
        event("start", 2),
        event("oom", 3),
        event("die", 4, exitCode="1"),
        event("start", 9),
    )
    seen = table.get("c1")
    assert seen is not None
    assert (seen.state, seen.code, seen.oom, seen.started_at, seen.ended_at) == (
        "running",
        None,
        False,
        9 * SECOND,
        0,
    )


def test_pauses_and_names() -> None:
    table = told(event("create", 1), event("start", 2), event("pause", 3))
    seen = table.get("c1")
    assert seen is not None
    assert seen.state == "paused"
    table.event(event("unpause", 4))
    assert seen.state == "running"
    table.event(event("rename", 5, name="by-hand"))
    assert (seen.name, seen.run.key) == ("by-hand", KEY)


def test_events_that_are_told_again_change_nothing() -> None:
    table = told(event("create", 1), event("start", 2), event("die", 4, exitCode="0"))
    assert table.event(event("start", 2)) is None
    seen = table.get("c1")
    assert seen is not None
    assert seen.ended


@pytest.mark.parametrize(
    "action", ["die", "destroy", "kill", "oom", "exec_start: sh", "health_status: healthy"]
)
def test_of_what_was_never_known_only_a_beginning_is_news(action: str) -> None:
    assert told(event(action, 1)).get("c1") is None


def test_what_is_gone_does_not_come_back_by_old_news() -> None:
    table = told(event("create", 1), event("start", 2), event("die", 3, exitCode="0"), event("destroy", 4))
    table.event(event("start", 2))
    table.listed([listed("running")], frozenset())
    assert table.here() == []


def test_an_answer_of_its_removal_that_comes_late_does_not_bring_it_back() -> None:
    table = told(event("create", 1), event("start", 2), event("die", 3, exitCode="137"), event("destroy", 4))
    seen = table.inspected(inspected("removing", "1970-01-01T00:00:02Z"))
    assert (seen.gone, seen.code) == (True, 137)
    assert table.here() == []


def test_a_list_tells_what_there_is_and_what_is_gone() -> None:
    table = Table()
    changed = table.listed([listed("running"), listed("created", "c2")], frozenset())
    assert [(seen.id, seen.state, seen.certain) for seen in changed] == [
        ("c1", "running", False),
        ("c2", "created", True),
    ]
    assert table.listed([listed("running")], frozenset({"c1"})) == []
    changed = table.listed([listed("exited")], frozenset({"c1", "c2"}))
    assert [(seen.id, seen.state, seen.certain) for seen in changed] == [
        ("c1", "exited", False),
        ("c2", "gone", True),
    ]


def test_what_was_made_after_a_list_was_asked_for_is_not_gone() -> None:
    table = told(event("create", 1))
    table.listed([], frozenset())
    assert table.get("c1") in table.here()


def test_a_list_that_lags_does_not_undo_an_end() -> None:
    table = told(event("create", 1), event("start", 2), event("die", 4, exitCode="3"))
    table.listed([listed("running")], frozenset({"c1"}))
    seen = table.get("c1")
    assert seen is not None
    assert (seen.ended, seen.certain) == (True, False)
    table.inspected(inspected("running", "1970-01-01T00:00:02Z"))
    assert (seen.ended, seen.code, seen.certain) == (True, 3, True)
    table.inspected(inspected("running", "1970-01-01T00:00:09Z"))
    assert (seen.state, seen.code) == ("running", None)


def test_asking_for_one_tells_all() -> None:
    table = Table()
    table.listed([listed("exited")], frozenset())
    answer = inspected(
        "exited", "1970-01-01T00:00:02.5Z", "1970-01-01T00:00:07Z", ExitCode=137, OOMKilled=True, Error="why"
    )
    seen = table.inspected(answer)
    assert (seen.code, seen.oom, seen.error, seen.certain) == (137, True, "why", True)
    assert (seen.started_at, seen.ended_at) == (2_500_000, 7 * SECOND)


def test_a_start_is_known_before_its_event_comes() -> None:
    table = Table()
    table.began("c1", KEY, MARKS, "image:1", 7)
    seen = table.get("c1")
    assert seen is not None
    assert (seen.state, seen.started_at) == ("running", 7)


def test_a_start_that_is_noted_late_does_not_undo_the_end() -> None:
    table = told(event("create", 1), event("start", 2), event("die", 3, exitCode="0"))
    table.began("c1", KEY, MARKS, "image:1", 7)
    seen = table.get("c1")
    assert seen is not None
    assert seen.ended
    table.event(event("destroy", 4))
    table.began("c1", KEY, MARKS, "image:1", 8)
    assert table.here() == []


def test_what_is_gone_is_remembered_within_bounds() -> None:
    table = Table()
    for number in range(MOST_GONE + 10):
        table.event(event("create", 1, f"c{number}"))
        table.lose(f"c{number}")
    assert table.get("c9") is None
    assert table.get(f"c{MOST_GONE}") is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T00:00:01.5Z", 1_500_000),
        ("1970-01-01T00:00:01.123456789Z", 1_123_456),
        ("1970-01-01T01:00:01.25+01:00", 1_250_000),
        ("1970-01-01T01:00:01+01:00", 1_000_000),
        ("0001-01-01T00:00:00Z", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_times_of_engines(text: str | None, expected: int) -> None:
    assert micros(text) == expected

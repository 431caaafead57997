"""Input files, table widths, times: the pure parts of the commands."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from nemo_jobs.cli.inputs import parse_object
from nemo_jobs.cli.jobs_create import check_fields
from nemo_jobs.cli.progress import age, closing, duration, explained, summary
from nemo_jobs.cli.render import fit, relative
from tests.cli.scripted import tree


def test_an_input_is_json_or_yaml() -> None:
    assert parse_object('{"a": [1, "x"]}', "-") == {"a": [1, "x"]}
    assert parse_object("a: [1, x]\nb: {c: null}", "-") == {"a": [1, "x"], "b": {"c": None}}
    assert parse_object("base: &b {x: 1}\nother: {<<: *b, y: 2}", "-")["other"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: {b: 1,\n  b: 2}", "job.yaml:1: the key 'b' is written twice"),
        ("a: 1\n\tb: 2", "job.yaml:2: is neither JSON nor YAML"),
        ("!!python/object/apply:os.system [true]", "is neither JSON nor YAML"),
        ("just text", "must be an object"),
        ("", "must be an object"),
    ],
)
def test_what_is_wrong_with_an_input_is_told_with_its_place(text: str, says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        parse_object(text, "job.yaml")


def test_all_problems_of_a_job_are_told_at_once() -> None:
    with pytest.raises(click.UsageError) as caught:
        check_fields({"name": 5, "spec": [], "platform_sepc": {}, "source": "s"})
    text = str(caught.value)
    assert "platform_spec: required, but missing" in text
    assert "platform_sepc: unknown" in text
    assert "name: must be text, not int (5); put it in quotes" in text
    assert "spec: must be an object, not list" in text
    check_fields({"source": "s", "spec": {}, "platform_spec": {}, "project": None})


@pytest.mark.parametrize(
    ("widths", "room", "fitted"),
    [
        ([5, 5], 20, [5, 5]),
        ([30, 10], 30, [20, 10]),
        ([30, 30, 4], 40, [18, 18, 4]),
        ([30, 30], 10, [8, 8]),
    ],
)
def test_columns_give_way_from_the_widest(widths: list[int], room: int, fitted: list[int]) -> None:
    assert fit(widths, room) == fitted


def test_c081_relative_times_know_their_zone() -> None:
    now = 1_804_151_727.0  # 2027-03-04T09:15:27Z
    assert relative("2027-03-04T09:15:20Z", now) == "7s ago"
    assert relative("2027-03-04T14:40:27+05:30", now) == "5m ago"
    assert relative("2027-03-04T06:15:27", now) == "3h ago"
    assert relative("2027-03-02T09:15:27.000001Z", now) == "1d ago"
    assert relative("2027-03-04T09:16:27Z", now) == "in 1m"
    assert relative("nonsense", now) == "nonsense"


def test_durations_read_well() -> None:
    assert [duration(value) for value in (0.42, 12.9, 185, 7800)] == [
        "0.4 s",
        "12 s",
        "3 min 5 s",
        "2 h 10 min",
    ]


def test_a_waiting_job_says_why() -> None:
    waiting = tree("created")
    waiting["steps"][0]["status_details"] = {"message": "waits for a free place", "reason": "queued"}
    assert summary(waiting) == "job moth-sorter: created | step step-0: created (waits for a free place)"


def test_the_last_line_tells_state_time_and_error() -> None:
    times: dict[str, Any] = {"created_at": "2027-03-04T09:15:27.5Z", "updated_at": "2027-03-04T09:15:30.5Z"}
    times["steps"] = 0
    ended = tree("error", error_details={"message": "fit ended\x1b[2J", "log": "fit.txt"}, **times)
    assert closing(ended) == 'job moth-sorter: error after 3.0 s: fit ended {"log": "fit.txt"}'
    assert closing(tree("completed", **times)) == "job moth-sorter: completed after 3.0 s"


def test_the_last_line_says_nothing_twice() -> None:
    message = "run ended with code 7: no such file: model.bin"
    told = {"message": message, "reason": "exit_code", "exit_code": 7, "file": "model.bin"}
    assert explained(told) == f": {message}"
    assert explained({**told, "epoch": 7}) == f': {message} {{"epoch": 7}}'
    assert explained({"exit_code": 7}) == ' {"exit_code": 7}'


def test_the_age_of_a_job_without_steps_counts_from_its_creation() -> None:
    since = datetime.now(UTC) - timedelta(hours=2)
    young = tree("active", steps=0, created_at=since.isoformat(), updated_at=since.isoformat())
    assert 7200 <= age(young) < 7230
    assert age(young, ended=True) == 0
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert age(tree("active", steps=0, created_at=later)) == 0  # this clock is behind the service's

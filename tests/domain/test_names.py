"""Names and ids."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_jobs.domain import names


def follows_the_rule(text: str) -> bool:
    """The rule of names once more, in words instead of a pattern."""
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789-@.+_")
    return (
        2 <= len(text) <= 63
        and text[0] in "abcdefghijklmnopqrstuvwxyz"
        and set(text) <= allowed
        and "--" not in text
        and not text.endswith("-")
    )


@given(st.text(alphabet="ab0-@.+_A é\n", max_size=8) | st.text(max_size=70) | st.from_regex(names.NAME_RE))
def test_a_name_is_what_the_rule_says(text: str) -> None:
    assert names.is_name(text) == follows_the_rule(text)


@pytest.mark.parametrize(
    "text",
    ["ab\n", "a", "ab-", "a--b", "1ab", "Ab", "na\u00efve", "..", "a/b", "ab ", "x" * 64, "x" * 300, ""],
)
def test_c059_odd_names_are_not_names(text: str) -> None:
    assert not names.is_name(text)


@pytest.mark.parametrize("text", ["ab", "a@b+c.d_e-f", "x" * 63, "a1"])
def test_c059_legal_names_are_names(text: str) -> None:
    assert names.is_name(text)


@given(st.text(max_size=80))
def test_a_generated_name_is_a_name_that_leaves_room_for_its_fileset(source: str) -> None:
    name = names.generated_job_name(source)
    assert names.is_name(name)
    assert names.is_name(names.fileset_name(name))
    assert len(name) <= 29


@pytest.mark.parametrize(
    ("source", "stem"),
    [
        ("nightly", "nightly"),
        ("My Source!! x", "my-source-x"),
        ("99 bottles", "bottles"),
        ("a--b", "a-b"),
        ("漢字", "job"),
        ("", "job"),
        ("abcdefghijklmnopqrs tuv", "abcdefghijklmnopqrs"),
    ],
)
def test_a_generated_name_begins_like_its_source(source: str, stem: str) -> None:
    assert re.fullmatch(re.escape(stem) + "-[a-z0-9]{8}", names.generated_job_name(source))


def test_ids_are_long_and_never_the_same() -> None:
    ids = {names.new_id(names.JOB_ID, 1_800_000_000_000_000) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"platform-job-[1-9A-HJ-NP-Za-km-z]{21,22}", item) for item in ids)


def test_ids_sort_by_the_time_at_which_they_were_made() -> None:
    times = [1_000_000_000_000_000, 1_800_000_000_000_000, 1_800_000_000_000_064, 8_000_000_000_000_000]
    ids = [names.new_id(names.STEP_ID, now) for now in times]
    assert ids == sorted(ids)
    assert {len(item) for item in ids} == {len(names.STEP_ID) + 22}


def test_a_tasks_name_depends_on_its_key_alone() -> None:
    assert names.task_name("nj-x-1") == names.task_name("nj-x-1") != names.task_name("nj-x-2")
    assert re.fullmatch(r"task-[0-9a-f]{32}", names.task_name("nj-x-1"))
    assert names.is_name(names.task_name("nj-x-1"))
    assert re.fullmatch(r"att-[a-z]{20}", names.attempt_name())

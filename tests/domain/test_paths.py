"""Paths of files that stay inside wherever they are unpacked."""

import pytest

from nemo_jobs.domain.model import Invalid
from nemo_jobs.domain.paths import MAX_DEPTH, MAX_PATH, MAX_SEGMENT, checked_path


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "notes/a.txt",
        "results/platform-job-attempt-1/weights/model.safetensors",
        ".hidden",
        "..a/b..",
        "...",
        "a b/ü ☃.txt",
        "100%",
        "50%25 done",
        "a%zz",
        "~/x",
        "C:",
        "x" * MAX_SEGMENT,
        "/".join(["a"] * MAX_DEPTH),
    ],
)
def test_ordinary_names_are_taken_as_they_are(path):
    assert checked_path(path) == path


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "is empty"),
        ("/etc/passwd", "empty segment"),
        ("//etc", "empty segment"),
        ("a//b", "empty segment"),
        ("a/", "empty segment"),
        (".", "a segment '.'"),
        ("..", "a segment '..'"),
        ("a/../../b", "a segment '..'"),
        ("../../etc/passwd", "a segment '..'"),
        ("a/./b", "a segment '.'"),
        ("..\\x", "a backslash"),
        ("a\\..\\b", "a backslash"),
        ("%2e%2e", "an encoded segment '..'"),
        ("%2E./x", "an encoded segment '..'"),
        ("%252e%252e", "an encoded segment '..'"),
        ("%25252e%25252e/x", "an encoded segment '..'"),
        ("%2525252525252e", "encoded several times"),
        ("..%2fx", "an encoded slash"),
        ("a%5c..%5cb", "an encoded backslash"),
        ("a%00b", "an encoded control character"),
        ("a\0b", "a control character"),
        ("a\nb", "a control character"),
        ("a\x1b[31m", "a control character"),
        ("a\x7f", "a control character"),
        ("a\x85b", "a control character"),
        ("x" * (MAX_SEGMENT + 1), f"longer than {MAX_SEGMENT} bytes"),
        ("ü" * (MAX_SEGMENT // 2 + 1), f"longer than {MAX_SEGMENT} bytes"),
        ("abc/" * (MAX_PATH // 4) + "a", f"longer than {MAX_PATH} bytes"),
        ("/".join(["a"] * (MAX_DEPTH + 1)), "folders deep"),
    ],
)
def test_c047_paths_that_could_lead_outside_are_refused(path, says):
    with pytest.raises(Invalid, match="path") as caught:
        checked_path(path)
    assert says in str(caught.value)
    assert str(caught.value).isprintable()

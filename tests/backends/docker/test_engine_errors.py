"""The engine's words as one readable line, without what addresses in them hold of secrets."""

import json

import pytest

from nemo_jobs.backends.docker.errors import EngineError, one_line, reason


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "plain"),
        (" two\n\n lines\tand\x00 more\x1b[0m ", "two lines and more [0m"),
        ('Get "https://me:hidden@reg.example/v2/": EOF', 'Get "https://reg.example/v2/": EOF'),
        ("https://s3.example/x?X-Amz-Signature=hidden&a=1: EOF", "https://s3.example/x?… EOF"),
        ("", ""),
        ("ü\u2028ö", "ü ö"),
    ],
)
def test_lines(text: str, line: str) -> None:
    assert one_line(text) == line


def test_a_long_line_is_cut_where_it_shows() -> None:
    line = one_line("word " * 10_000)
    assert len(line) <= 1000
    assert line.endswith("…")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"message":"No such container: a"}', "No such container: a"),
        (b'{"message":"cut off', '{"message":"cut off'),
        (b'{"message":7}', '{"message":7}'),
        (b"404 page not found\n", "404 page not found"),
        (
            b"<!DOCTYPE html><html><body>nginx</body></html>",
            "the engine answered with status 502 and no reason",
        ),
        (b"", "the engine answered with status 502 and no reason"),
        (b'{"message":""}', "the engine answered with status 502 and no reason"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[" * 50_000, "[" * 999 + "…"),
    ],
)
def test_reasons(body: bytes, text: str) -> None:
    assert reason(502, body) == text


def test_what_kind_of_refusal() -> None:
    assert EngineError(404, "x").missing
    assert EngineError(409, "x").conflict
    assert not EngineError(500, "x").missing
    assert json.dumps(str(EngineError(500, "its reason"))) == '"its reason"'

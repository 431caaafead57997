"""Cursors of log pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_jobs.http.cursors import Cursor, Kind, base58, decode, digest, encode, unbase58
from nemo_jobs.http.errors import Refused

NUMBERED = [
    ([1, 0], "nQqaWhXS"),
    ([2, 0], "nQx83Xfi"),
    ([3, 0], "nR4faMoz"),
    ([12, 0], "4TSE6UyGTE"),
    ([2, 1], "nQx83Xk8"),
]


@pytest.mark.parametrize(("value", "text"), NUMBERED)
def test_numbered_cursors_of_older_services_are_read_and_written(value, text):
    cursor = Cursor(Kind.NEWEST_PAGE if value[1] else Kind.PAGE, value[0])
    assert decode(text, "anything") == cursor
    assert encode(cursor, "anything") == text


@given(at=st.integers(0, 2**53 - 1), kind=st.sampled_from([Kind.FROM, Kind.BEFORE]))
def test_a_cursor_comes_back_as_it_was(at, kind):
    of = digest("attempt", "step", None)
    assert decode(encode(Cursor(kind, at), of), of) == Cursor(kind, at)


@given(data=st.binary(max_size=60))
def test_base58_comes_back_as_it_was(data):
    if data:
        assert unbase58(base58(data)) == data


BAD = [
    "",
    "nQj2ysPA",  # [0, 0]
    "0OIl",
    "nQx83Xf!",
    "ünQx83Xfi",
    "x" * 5000,
    *(
        base58(text)
        for text in (
            b"[-1, 0]",
            b"[true, 0]",
            b"[1, true]",
            b"[1, 2]",
            b"[1.5, 0]",
            b"[1]",
            b"[99999999999999999999, 0]",
            b"null",
            b"\xff\xfe",
            b'{"v":1,"t":"x","r":"0","q":"0","e":0}',
            b'{"v":2,"from":-1,"of":"here"}',
            b'{"v":2,"from":true,"of":"here"}',
            b'{"v":2,"of":"here"}',
        )
    ),
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_cursor_of_ours_is_refused_as_clients_expect(text):
    with pytest.raises(Refused) as refused:
        decode(text, "here")
    assert (refused.value.status, refused.value.detail) == (422, "Invalid page cursor")
    assert refused.value.code == "invalid_page_cursor"


def test_c027_a_cursor_belongs_to_one_attempt_and_one_filter():
    text = encode(Cursor(Kind.FROM, 7), digest("attempt-1", None, None))
    for other in (("attempt-2", None, None), ("attempt-1", "step", None), ("attempt-1", None, "task")):
        with pytest.raises(Refused):
            decode(text, digest(*other))


@given(text=st.text(max_size=300))
def test_any_text_is_a_cursor_or_is_refused(text):
    try:
        decode(text, "here")
    except Refused as refused:
        assert refused.status == 422

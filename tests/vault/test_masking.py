"""Values are hidden in output, however it is cut and however they are encoded."""

import base64
import itertools
import json
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_jobs.vault import masking
from nemo_jobs.vault.masking import MASK, MaskedStream, Masks, unmasked

TOKEN = "s3cr3t-T0k3n/+&ü"


def streamed(masks, pieces):
    stream = MaskedStream(masks)
    return b"".join([stream.feed(piece) for piece in pieces] + [stream.finish()])


@pytest.mark.parametrize(
    "shown",
    [
        TOKEN,
        quote(TOKEN, safe=""),
        quote(TOKEN),
        quote_plus(TOKEN),
        quote(TOKEN, safe="").replace("%C3%BC", "%c3%bc").replace("%2F", "%2f").replace("%2B", "%2b"),
        json.dumps(TOKEN),
        json.dumps(TOKEN, ensure_ascii=False),
        base64.b64encode(TOKEN.encode()).decode(),
        base64.urlsafe_b64encode(TOKEN.encode()).decode(),
        base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("="),
        base64.b64encode(TOKEN.encode() + b"\n").decode(),
        base64.b64encode(b"u:" + TOKEN.encode() + b"@host").decode(),
        base64.b64encode(b"user:" + TOKEN.encode()).decode(),
        base64.urlsafe_b64encode(b"x" + TOKEN.encode() + b"yz").decode(),
    ],
)
def test_each_form_of_a_value_is_hidden(shown):
    hidden = Masks([TOKEN]).hide(f"before {shown} after".encode()).decode()
    assert "***" in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    # Of an encoded one at most the characters at its borders are left, which hold bits of neighbours.
    left = hidden.removeprefix("before ").removesuffix(" after").replace("***", "").strip('"')
    assert TOKEN[:4] not in left
    if "%" not in shown:
        assert len(left) <= 16


def test_a_value_alone_in_base64_leaves_nothing():
    for value in ("abcd", "abcde", "abcdef", "abcdefg"):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            assert Masks([value]).hide(encode(value.encode())) == MASK


@pytest.mark.parametrize("width", [64, 76])
def test_a_long_value_is_hidden_in_base64_that_is_wrapped_into_lines(width):
    value = "".join(f"{number:05d}-" for number in range(60))
    for data in (value.encode(), value.encode() + b"\n"):
        encoded = base64.b64encode(data).decode()
        lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]
        hidden = Masks([value]).hide("\n".join(lines).encode()).decode().split("\n")
        assert all(line.startswith("***") and len(line) <= 9 for line in hidden), hidden


def test_a_value_of_several_lines_is_hidden_line_by_line_and_as_a_whole():
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n  kqhkiG9w0BAQEF  \nab\n-----END KEY-----\n"
    masks = Masks([pem])
    assert masks.hide(b"x MIIEvQIBADANBg y\r\nkqhkiG9w0BAQEF\nab\n") == b"x *** y\r\n***\nab\n"
    assert masks.hide(base64.b64encode(pem.encode())) == MASK or len(pem) > 57
    assert b"MIIE" not in masks.hide(json.dumps({"key": pem}).encode())


def test_short_values_are_left_alone_and_known_as_such():
    assert unmasked("abc")
    assert not unmasked("abcd")
    assert not unmasked("äöüß")
    assert not Masks(["abc", "x", ""])
    assert Masks(["abc"]).hide(b"abc") == b"abc"
    assert Masks(["äöüß"]).hide("äöüß".encode()) == MASK


def test_overlapping_values_leave_no_part_of_either():
    assert Masks(["abcdef", "defghi"]).hide(b"-abcdefghi-") == b"-***-"
    assert Masks(["abcd", "abcdefgh"]).hide(b"abcdefgh abcd abcdefg") == b"*** *** ***efg"
    assert streamed(Masks(["abcd", "cdef"]), [b"abcd", b"ef"]) == MASK


def test_nothing_waits_behind_a_line_feed():
    stream = MaskedStream(Masks(["secret-one"]))
    assert stream.feed(b"plain\n") == b"plain\n"
    assert stream.feed(b"half secret-\n") == b"half secret-\n"
    assert stream.feed(b"a secr") == b"a "
    assert stream.held == b"secr"
    assert stream.feed(b"ecy\n") == b"secrecy\n"


def test_a_value_that_breaks_off_at_the_end_is_hidden():
    assert streamed(Masks(["secret-one"]), [b"x secret-on"]) == b"x ***"
    assert streamed(Masks(["secret-one"]), [b"x sec"]) == b"x sec"


def test_the_end_of_a_value_at_the_begin_of_a_text_that_was_cut_is_hidden():
    masks = Masks(["secret-one"])
    assert masks.hide_text("cret-one and secret-one\nmore") == "*** and ***\nmore"
    assert masks.hide_text("one and more") == "one and more"
    assert masks.hide_text("") == ""
    assert masks.hide_text("fine") == "fine"


@pytest.mark.alone
def test_values_and_output_that_repeat_themselves_cost_no_time():
    masks = Masks(["a" * 65536, "a" * 30000 + "b", "abab", "aaaa"])
    began = time.monotonic()
    stream = MaskedStream(masks)
    given = b"".join(stream.feed(b"a" * 65536) for _ in range(16)) + stream.finish()
    assert time.monotonic() - began < 5
    assert b"a" not in given


_ALPHABET = st.sampled_from("ab%+/= é\n")
_VALUES = st.lists(st.text(_ALPHABET, min_size=1, max_size=9), min_size=1, max_size=3)
_CUTS = st.lists(st.integers(0, 200), max_size=12)


@st.composite
def _output(draw):
    values = draw(_VALUES)
    encodings = [
        str.encode,
        lambda v: base64.b64encode(v.encode()),
        lambda v: base64.urlsafe_b64encode(b"z" + v.encode()),
        lambda v: quote(v, safe="").encode(),
        lambda v: json.dumps(v).encode(),
    ]
    parts = draw(
        st.lists(
            st.one_of(
                st.binary(max_size=6),
                st.text(_ALPHABET, max_size=6).map(str.encode),
                st.tuples(st.sampled_from(encodings), st.sampled_from(values)).map(lambda t: t[0](t[1])),
            ),
            max_size=8,
        )
    )
    return values, b"".join(parts) + draw(st.sampled_from([b"", b"\n"]))


@given(_output(), _CUTS)
@settings(max_examples=300, deadline=None)
def test_it_does_not_matter_where_output_is_cut(made, cuts):
    values, data = made
    masks = Masks(values)
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    given_out = streamed(masks, pieces)
    assert given_out == streamed(masks, [data])
    assert given_out == streamed(masks, [bytes([byte]) for byte in data])
    if data.endswith(b"\n"):
        assert given_out == masks.hide(data)
    # Whatever joins across a mask is no output of the task: only what stands between masks counts.
    for between in given_out.split(MASK):
        for value in values:
            for line in value.splitlines():
                if len(line.strip()) >= 4:
                    assert line.strip().encode() not in between


@given(_output(), _CUTS)
@settings(max_examples=200, deadline=None)
def test_thousands_of_forms_are_found_as_a_few_are(made, cuts):
    values, data = made
    few = Masks(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "_MANY", 0)
        many = Masks(values)
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert streamed(many, pieces) == streamed(few, pieces)
    assert many.hide(data) == few.hide(data)


@pytest.mark.alone
def test_lines_that_begin_alike_are_masked_in_bounded_time():
    """Each place of the output was compared with each of them: 20 kB took 20 s."""
    masks = Masks(["\n".join(f"user{number:05d}" for number in range(4_000))])
    stream = MaskedStream(masks)
    began = time.monotonic()
    given = stream.feed(b"user" * 10_000 + b"user03999 user0")
    assert time.monotonic() - began < 3
    assert given == b"user" * 10_000 + b"*** "


@pytest.mark.alone
def test_a_value_of_thousands_of_lines_is_masked_in_bounded_time():
    lines = [f"{number:05d}" for number in range(10_000)]
    masks = Masks(["\n".join(lines)])
    assert masks.count > 10_000
    plain = b"this is an ordinary line of output, with a number 1234\n"
    stream = MaskedStream(masks)
    began = time.monotonic()
    given = stream.feed(plain * 8000 + b"x 04711 y\nx 047")
    assert time.monotonic() - began < 10
    assert given == plain * 8000 + b"x *** y\nx "
    assert stream.feed(b"11\n") == b"***\n"

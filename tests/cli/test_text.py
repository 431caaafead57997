"""What a job prints can't steer the terminal of whoever reads it."""

import subprocess

import pytest

from nemo_jobs.cli.text import clean, clean_block, cut, given_text, pad, width

NASTY = "\x1b[31mred\x1b[0m \x1b]0;pwn\x07 \x1b[2J done"


def test_c036_a_pipe_gets_no_escape_sequences() -> None:
    assert clean(NASTY, colours=False) == "red   done"


def test_c036_a_terminal_gets_colours_and_nothing_else() -> None:
    assert clean(NASTY, colours=True) == "\x1b[31mred\x1b[0m   done"


def test_a_colour_left_open_ends_with_its_line() -> None:
    assert clean("\x1b[1;31mred", colours=True) == "\x1b[1;31mred\x1b[0m"


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ("\x1b[10;20Hat", "at"),  # cursor
        ("\x1b[?25lhidden cursor", "hidden cursor"),
        ("\x1b[38;5;200mmany colours", "many colours"),
        ("\x1b]8;;http://x.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title without end", ""),
        ("\x1bPdevice control\x1b\\after", "after"),
        ("\x1b(Bcharset", "charset"),
        ("\x1bcreset", "reset"),
        ("\x9b31mone byte", "one byte"),
        ("\x9d0;title\x9cafter", "after"),
        ("end \x1b", "end "),
        ("end \x1b[", "end "),
        ("\x1b\x1b[31mtwo escapes", "two escapes"),
        ("back\b\b\bspace", "backspace"),
        ("bell\x07 nul\x00 del\x7f", "bell nul del"),
        ("10%\r20%\r", "10% 20%"),
        ("two\nlines", "two lines"),
        ("tab\tstays", "tab\tstays"),
        ("ö 漢 █ ✔ 🦋", "ö 漢 █ ✔ 🦋"),
    ],
)
def test_only_text_is_left(raw: str, kept: str) -> None:
    assert clean(raw, colours=False) == kept


@pytest.mark.parametrize("colours", [False, True])
def test_removing_a_sequence_never_makes_another(colours: bool) -> None:
    parts = ["\x1b", "\x1b[", "\x1b]", "[2J", "m", "\x07", "31m", "x", "\x9b", "\r"]
    for one in parts:
        for two in parts:
            for three in parts:
                text = clean(one + two + three, colours=colours)
                rest = text.replace("\x1b[m", "").replace("\x1b[31m", "").replace("\x1b[0m", "")
                assert not set(rest) & set("\x1b\x9b\x9d\r\x07"), (one, two, three)


def test_a_long_line_of_unfinished_titles_is_quick() -> None:
    assert clean("\x1b]0;" * 200_000, colours=False) == ""


def test_a_block_keeps_its_lines() -> None:
    assert clean_block("one\n\x1b[2Jtwo\n") == "one\ntwo\n"


def test_width_counts_columns_not_characters() -> None:
    assert [width(text) for text in ("abc", "漢字", "e\u0301", "ö")] == [3, 4, 1, 1]


def test_cut_and_pad_reach_the_column() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert cut("漢字漢字", 5) == "漢字…"
    assert cut("abc", 3) == "abc"
    assert pad("漢", 4) == "漢  "


def test_an_argument_is_utf8_whatever_the_locale_made_of_it() -> None:
    assert given_text("é") == "é"
    assert given_text("caf\udcc3\udca9") == "café"
    with pytest.raises(ValueError, match="utf-8"):
        given_text("\udcff")


def test_the_kernel_agrees_that_nothing_is_left() -> None:
    shown = subprocess.run(
        ["cat", "-v"], input=clean(NASTY, colours=False), capture_output=True, text=True, check=True
    )
    assert shown.stdout == "red   done"

"""Text from jobs and servers, made safe to print: nothing in it can steer the terminal."""

import re
import unicodedata

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # control sequences: colours, cursor, clear
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]).*?(?:\x07|\x1b\\|\x9c|$)"  # titles and other strings
    r"|\x1b[ -/]*[0-~]?"  # short escapes, and a lone ESC
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]",
    re.DOTALL,
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_RESET = re.compile(r"\x1b\[0*m")


def clean(line: str, *, colours: bool) -> str:
    """One line without anything but text; with `colours` also SGR sequences, closed at its end.

    Line breaks inside become blanks, so that a line can't pretend to be several.
    """
    if line.isprintable():
        return line
    open_colour = False

    def keep(match: re.Match[str]) -> str:
        nonlocal open_colour
        found = match[0]
        if colours and _COLOUR.fullmatch(found):
            open_colour = not _RESET.fullmatch(found)
            return found
        return " " if found in "\r\n" else ""

    text = _SEQUENCE.sub(keep, line.rstrip("\r\n"))
    return text + "\x1b[0m" if open_colour else text


def clean_block(text: str, *, colours: bool = False) -> str:
    """The same for text of several lines, which stay lines."""
    return "\n".join(clean(line, colours=colours) for line in text.split("\n"))


def width(text: str) -> int:
    """Columns that a cleaned text takes on a terminal."""
    if text.isascii():
        return len(text)
    total = 0
    for char in text:
        if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me"):
            continue
        total += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return total


def cut(text: str, columns: int, ellipsis: str = "…") -> str:
    """The text, shortened to at most `columns`, with an ellipsis where it was cut."""
    if width(text) <= columns:
        return text
    room = columns - width(ellipsis)
    kept, used = [], 0
    for char in text:
        used += width(char)
        if used > room:
            break
        kept.append(char)
    return ("".join(kept) + ellipsis)[: max(columns, 0)]


def pad(text: str, columns: int) -> str:
    """The text with blanks behind it up to `columns`."""
    return text + " " * (columns - width(text))


def given_text(argument: str) -> str:
    """A command-line argument as text, whatever the locale decoded it with.

    Raises ValueError for bytes that aren't UTF-8: JSON can't carry them.
    """
    if argument.isascii():
        return argument
    import os

    return os.fsencode(argument).decode("utf-8")

"""Paths of files inside a fileset: text that is safe as a path wherever it is unpacked."""

import unicodedata
from urllib.parse import unquote

from nemo_jobs.domain.model import Invalid

MAX_PATH = 1024
MAX_SEGMENT = 255
MAX_DEPTH = 64
#: Levels of percent-encoding that are looked through; nobody encodes a path more often by mistake.
_LEVELS = 4


def checked_path(path: str, what: str = "path") -> str:
    """`path` itself, if it is segments joined by slashes and stays inside wherever it is unpacked.

    Raises Invalid for an empty path, empty, `.` or `..` segments, backslashes, control characters,
    and for percent-encodings that would be one of those when they are decoded once more.
    """
    if not path:
        raise Invalid(f"{what} is empty; name a file")
    if len(path.encode()) > MAX_PATH:
        raise Invalid(f"{what} is longer than {MAX_PATH} bytes")
    segments = path.split("/")
    if len(segments) > MAX_DEPTH:
        raise Invalid(f"{what} is more than {MAX_DEPTH} folders deep")
    for segment in segments:
        problem = _problem(segment)
        if problem:
            raise Invalid(f"{what} {path[:200]!r} can't be used: {problem}")
    return path


def _problem(segment: str) -> str | None:
    if not segment:
        return "it has an empty segment; a path begins and ends with a name, and has single slashes"
    if len(segment.encode()) > MAX_SEGMENT:
        return f"a name in it is longer than {MAX_SEGMENT} bytes"
    seen = segment
    for level in range(_LEVELS):
        problem = _bad(seen, encoded=level > 0)
        if problem or "%" not in seen:
            return problem
        decoded = unquote(seen)
        if decoded == seen:
            return None
        seen = decoded
    return "it is percent-encoded several times over"


def _bad(segment: str, encoded: bool) -> str | None:
    where = "an encoded " if encoded else "a "
    if segment in (".", ".."):
        return f"it has {where}segment {segment!r}"
    if "/" in segment:
        return f"it has {where}slash in a name"
    if "\\" in segment:
        return f"it has {where}backslash"
    if any(unicodedata.category(character) == "Cc" for character in segment):
        return f"it has {where}control character"
    return None

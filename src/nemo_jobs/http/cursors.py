"""Cursors of log pages: opaque to clients, a place in the lines of one attempt to us.

A cursor holds the sequence number of a line, so lines that arrive later never shift what it
shows, and a digest of what was asked for, so it can't be used with another job or filter:

    base58 of  {"v":2,"from":<seq>,"of":<digest>}     lines from seq on, ascending
               {"v":2,"before":<seq>,"of":<digest>}   the window that ends before seq, ascending

Older services gave out `[page, direction]`, which is still read. Direction 0 counts pages from
the first line; direction 1 counts from the newest line and delivers descending.
"""

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum

from nemo_jobs.http.errors import Refused

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_LONGEST = 256
_LARGEST = 2**53


class Kind(StrEnum):
    FROM = "from"  # `at` is the first line's sequence number
    BEFORE = "before"  # `at` is the sequence number behind the last line
    PAGE = "page"  # `at` is a page number counted from the first line
    NEWEST_PAGE = "newest_page"  # `at` is a page number counted from the newest line


@dataclass(frozen=True, slots=True)
class Cursor:
    kind: Kind
    at: int


def bad_cursor() -> Refused:
    return Refused(422, "Invalid page cursor", code="invalid_page_cursor")


def digest(*parts: str | None) -> str:
    """What a cursor is bound to: the attempt and the filters."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def encode(cursor: Cursor, of: str) -> str:
    """The cursor as text; numbered pages keep the old form."""
    match cursor.kind:
        case Kind.PAGE | Kind.NEWEST_PAGE:
            text = json.dumps([cursor.at, int(cursor.kind is Kind.NEWEST_PAGE)])
        case Kind.FROM | Kind.BEFORE:
            text = json.dumps({"v": 2, cursor.kind.value: cursor.at, "of": of}, separators=(",", ":"))
    return base58(text.encode())


def decode(text: str, of: str) -> Cursor:
    """The cursor behind the text. Raises Refused (422) for one that can't be used here."""
    try:
        value = json.loads(unbase58(text))
    except (ValueError, RecursionError):
        raise bad_cursor() from None
    match value:
        case [int(page), 0 | 1 as newest] if _whole(page, 1) and _whole(newest, 0):
            return Cursor(Kind.NEWEST_PAGE if newest else Kind.PAGE, page)
        case {"v": 2, "from": int(at), "of": str(bound)} if bound == of and _whole(at, 0):
            return Cursor(Kind.FROM, at)
        case {"v": 2, "before": int(at), "of": str(bound)} if bound == of and _whole(at, 0):
            return Cursor(Kind.BEFORE, at)
        case _:
            raise bad_cursor()


def base58(data: bytes) -> str:
    number = int.from_bytes(data, "big")
    digits = ""
    while number:
        number, rest = divmod(number, 58)
        digits = _ALPHABET[rest] + digits
    return _ALPHABET[0] * (len(data) - len(data.lstrip(b"\0"))) + digits


def unbase58(text: str) -> bytes:
    """The bytes behind base58 text. Raises ValueError."""
    if not text or len(text) > _LONGEST:
        raise ValueError("no cursor has this length")
    number = 0
    for character in text:
        value = _VALUES.get(character)
        if value is None:
            raise ValueError("not base58")
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip(_ALPHABET[0]))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _whole(value: object, least: int) -> bool:
    """A plain integer in bounds; JSON's `true` is an integer to Python."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < _LARGEST

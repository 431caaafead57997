"""What a call to the engine may raise, and the engine's words made readable."""

import json
import re

#: The longest reason that is passed on, in characters.
MOST_CHARACTERS = 1000

_SPACE = re.compile(r"\s+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_LOGIN = re.compile(r"(://)[^/@\s\"']+@")
_QUERY = re.compile(r"(://[^?\s\"']+\?)[^\s\"']+")


class EngineError(Exception):
    """The engine refused a call: `status` is the HTTP status, `message` its own reason as one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message

    @property
    def missing(self) -> bool:
        """What was asked for isn't there."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """The name is in use, or the thing is in a state that doesn't allow the call."""
        return self.status == 409


class EngineAway(Exception):
    """The engine can't be asked now: no connection, no answer in time, or an answer that can't be read.

    `message` says what happened and where. With `sent` the call may have been carried out.
    """

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.message, self.sent = message, sent


def one_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """Text from outside as one bounded line, without control characters and without what addresses
    in it may hold of secrets: users, passwords, signed queries."""
    line = _SPACE.sub(" ", _CONTROL.sub(" ", text[: most * 4])).strip()
    line = _QUERY.sub(r"\1…", _LOGIN.sub(r"\1", line))
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def reason(status: int, body: bytes) -> str:
    """The engine's reason out of an error answer, whatever its form."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        text = value["message"]
    elif "<html" in text[:400].lower():
        text = ""  # a proxy's page says nothing that the status doesn't
    return one_line(text) or f"the engine answered with status {status} and no reason"

"""Errors as answers: every kind has one status, and its text is written for people."""

import difflib
import json
import logging
import math
from typing import Any

from pydantic import ValidationError

from nemo_jobs.domain.filters import FilterError
from nemo_jobs.domain.model import Conflict, Invalid, NotFound, Unavailable
from nemo_jobs.http.wire import Reply, json_reply

log = logging.getLogger(__name__)

#: A body with thousands of faults is told about the first ones; each repeats a part of the input.
MAX_PROBLEMS = 50
MAX_INPUT = 2048
#: Among how many keys, and how long ones, a misspelt one is looked for.
MAX_KEYS, MAX_KEY = 64, 64
#: The part of a spec whose values are dropped at once.
SECRETS = "secrets"
#: Beside this key of a variable a value should not stand.
FROM_SECRET = "from_secret"  # noqa: S105 - a key
#: The header by which clients know that the same request would fail again.
NO_RETRY = (b"x-should-retry", b"false")


class Refused(Exception):
    """An answer decided in the HTTP layer itself: a status and a sentence."""

    def __init__(
        self, status: int, detail: str, *headers: tuple[bytes, bytes], code: str | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.code = code


class ClientGone(Exception):
    """The client closed the connection before its request was complete; nobody reads an answer."""


class BadInput(Exception):
    """A body or query that does not fit its model; `where` begins each `loc`.

    With `shown` False the answer repeats nothing of the input, which holds something secret.
    """

    def __init__(self, error: ValidationError, *where: str, shown: bool = True) -> None:
        super().__init__("the input does not fit its model")
        self.error = error
        self.where = where
        self.shown = shown


def refuse(status: int, detail: str, *headers: tuple[bytes, bytes], code: str | None = None) -> Reply:
    """An error answer with a string `detail`."""
    body: dict[str, str] = {"detail": detail}
    if code is not None:
        body["code"] = code
    if status == 409:
        headers = (*headers, NO_RETRY)
    return json_reply(body, status, headers)


def answer(error: Exception, what: str) -> Reply:
    """The answer for an error; `what` names the request in the log when the error is ours."""
    match error:
        case NotFound():
            return refuse(404, str(error))
        case Conflict():
            return refuse(409, str(error))
        case Invalid():
            return refuse(422, str(error))
        case FilterError():
            return refuse(400, str(error))
        case Unavailable():
            wait = str(max(1, math.ceil(error.retry_after))).encode()
            return refuse(503, str(error), (b"retry-after", wait))
        case Refused():
            return refuse(error.status, error.detail, *error.headers, code=error.code)
        case BadInput():
            return json_reply({"detail": problems(error.error, *error.where, shown=error.shown)}, 422)
        case _:
            log.error("%s failed", what, exc_info=error)
            return refuse(500, "the service met an unexpected error; its log has the details")


def problems(error: ValidationError, *where: str, shown: bool = True) -> list[dict[str, Any]]:
    """The wire's list of validation problems, bounded in number and size."""
    found = []
    for raw in error.errors(include_url=False)[:MAX_PROBLEMS]:
        item: dict[str, Any] = {
            "type": raw["type"],
            "loc": [*where, *raw["loc"]],
            "msg": raw["msg"] + (_misspelt(raw["input"], raw["loc"]) if raw["type"] == "missing" else ""),
            "input": _short(raw["input"], raw["loc"]) if shown else None,
        }
        if "ctx" in raw:
            item["ctx"] = {key: _plain(value) for key, value in raw["ctx"].items()}
        found.append(item)
    return found


def _misspelt(given: Any, place: tuple[int | str, ...]) -> str:
    """For a missing field: the key of the same object that was probably meant to be it."""
    if not place or not isinstance(given, dict) or len(given) > MAX_KEYS:
        return ""
    keys = [key for key in given if len(key) <= MAX_KEY]
    near = difflib.get_close_matches(str(place[-1]), keys, n=1, cutoff=0.8)
    return f"; '{near[0]}' is no field here, is it meant to be '{place[-1]}'?" if near else ""


def _plain(value: Any) -> Any:
    if isinstance(value, Exception):
        return {}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _short(value: Any, place: tuple[int | str, ...]) -> Any:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if SECRETS in place or f'"{SECRETS}"' in text or f'"{FROM_SECRET}"' in text:
            value = _without_values(value, within=SECRETS in place)
            text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return value if len(text) <= MAX_INPUT else f"({len(text)} characters, left out)"


def _without_values(given: Any, *, within: bool) -> Any:
    """`given` without the values of the list `secrets`, and those that stand beside the name of a
    secret, which may be it: they are never shown again."""
    if isinstance(given, list):
        return [_without_values(item, within=within) for item in given]
    if isinstance(given, dict):
        hidden = within or FROM_SECRET in given
        return {
            key: _without_values(item, within=within or key == SECRETS)
            for key, item in given.items()
            if not (hidden and key == "value")
        }
    return None if within and isinstance(given, str) else given

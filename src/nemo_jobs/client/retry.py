"""What may be sent again, after how long, and how often: the same for both clients."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nemo_jobs.client.connection import quote
from nemo_jobs.client.errors import BadAnswer, ConnectionFailed, HttpError, error_for

_REPEATED = frozenset({408, 409, 429})
_LONGEST_PAUSE = 60.0
#: The server sends a heartbeat every 15 s on a silent stream; three missing ones mean it is gone.
STREAM_SILENCE = 46.0
#: Open connections that a client keeps for later requests.
MOST_KEPT = 8


class Retry(NamedTuple):
    """At most `repeats` further requests. With `refused` off, a server that isn't there is
    reported at once: nothing can have been done, and waiting for it is the caller's choice.
    `warn` is told of the first repeat of a request that has to wait. `sleep` takes seconds; the
    async client has its own."""

    repeats: int = 2
    refused: bool = True
    sleep: Callable[[float], None] = time.sleep
    warn: Callable[[str], None] = lambda text: None


class Tries:
    """The tries of one request: each failure either asks for a pause in seconds or is raised."""

    __slots__ = ("_method", "_retry", "_target", "count", "waits")

    def __init__(self, retry: Retry, method: str, target: str) -> None:
        self._retry, self._method, self._target = retry, method, target
        self.count = 0
        self.waits = 0

    def lost(self, error: ConnectionFailed, *, kept: bool, again: bool = True) -> float:
        """No answer came. `kept`: the connection had served before; `again`: it can be repeated."""
        if self.count > self._retry.repeats or not again or (error.refused and not self._retry.refused):
            raise error
        if kept:  # the server has closed it meanwhile, which needs no pause
            return 0
        return self._wait(str(error), {})

    def refused(self, status: int, headers: Mapping[str, str], body: bytes, *, again: bool = True) -> float:
        """An answer that is no success."""
        refusal = self.error(status, headers, body)
        if self.count > self._retry.repeats or not again or not may_repeat(status, headers):
            raise refusal
        return self._wait(f"the service answered {status}: {refusal}", headers)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> HttpError:
        """The answer as an error."""
        if status < 400:
            place = headers.get("location", "elsewhere")[:300]
            body = json.dumps({"detail": f"the service redirects to {place}; use that address"}).encode()
        found = error_for(status, body, method=self._method, target=self._target, tries=self.count)
        found.retry_after = asked_pause(headers)
        return found

    def _wait(self, why: str, headers: Mapping[str, str]) -> float:
        self.waits += 1
        if self.waits == 1:
            self._retry.warn(f"{why}; trying again")
        return pause(headers, self.count)


def may_repeat(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer asks for the same request again; the server's own word goes first."""
    wish = headers.get("x-should-retry", "").lower()
    if wish in ("true", "false"):
        return wish == "true"
    return status in _REPEATED or status >= 500


def asked_pause(headers: Mapping[str, str]) -> float | None:
    """The seconds that the server asks to wait, up to a minute."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 <= seconds <= _LONGEST_PAUSE:
            return seconds
    return None


def pause(headers: Mapping[str, str], tries: int) -> float:
    """Seconds to wait after `tries` requests: what the server asks, up to a minute, else our own."""
    asked = asked_pause(headers)
    if asked is not None:
        return asked
    import random

    return float(0.5 * 2 ** (tries - 1) * random.uniform(0.75, 1.0))


def encode_query(query: Sequence[tuple[str, Any]]) -> str:
    """`?a=b&…` without the unset ones; objects and lists travel as JSON."""
    pairs = []
    for name, value in query:
        if value is None:
            continue
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, dict | list | tuple):
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        else:
            text = str(value)
        pairs.append(f"{quote(name)}={quote(text)}")
    return "?" + "&".join(pairs) if pairs else ""


def encode_body(body: Any) -> bytes | None:
    """A JSON body; None when there is none. Raises ValueError for what JSON can't carry."""
    if body is None:
        return None
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")


def decode(answer: bytes, method: str, target: str) -> Any:
    """The JSON of an answer; None when it is empty."""
    if not answer:
        return None
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"{method} {target} was answered with something that isn't JSON") from error


def common_headers(token: str | None, extra: Mapping[str, str]) -> dict[str, str]:
    """What every request carries. Raises ValueError for a value that would end its header."""
    headers = {"user-agent": "nemo-jobs", **extra}
    if token:
        headers["authorization"] = f"Bearer {token}"
    for name, value in headers.items():
        if not value.isprintable() or not value.isascii():
            raise ValueError(f"the header {name} can't carry its value: only printable ASCII can be sent")
    return headers

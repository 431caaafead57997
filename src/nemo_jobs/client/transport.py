"""Requests with repeats: what may be sent again, after how long, and how often."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nemo_jobs.client.connection import Connection, Response, parse_address, quote
from nemo_jobs.client.errors import BadAnswer, ConnectionFailed, TimedOut, error_for

Query = Sequence[tuple[str, Any]]
_REPEATED = frozenset({408, 409, 429})
_LONGEST_PAUSE = 60.0
#: The server sends a heartbeat every 15 s on a silent stream; three missing ones mean it is gone.
STREAM_SILENCE = 46.0


class Retry(NamedTuple):
    """At most `repeats` further requests. With `refused` off, a server that isn't there is
    reported at once: nothing can have been done, and waiting for it is the caller's choice.
    `warn` is told of the first repeat of a request that has to wait."""

    repeats: int = 2
    refused: bool = True
    sleep: Callable[[float], None] = time.sleep
    warn: Callable[[str], None] = lambda text: None


class Transport:
    """Sends requests to one server over one kept connection. Not for several threads."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        timeout: float = 60.0,
        ca_file: str | None = None,
        retry: Retry | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.base_url = base_url
        self.address = parse_address(base_url)
        self.timeout = timeout
        self.retry = retry or Retry()
        self._token = token
        self._ca_file = ca_file
        self._trace = trace
        self._kept: Connection | None = None

    def call(self, method: str, path: str, *, query: Query = (), body: Any = None) -> Any:
        """The decoded JSON of a successful answer, None for 204. Raises `ClientError`."""
        target = path + encode_query(query)
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        tries = waits = 0
        while True:
            tries += 1
            fresh = self._kept is None
            headers: Mapping[str, str] = {}
            try:
                status, headers, answer = self._once(method, target, data)
            except ConnectionFailed as error:
                if tries > self.retry.repeats or (error.refused and not self.retry.refused):
                    raise
                if not fresh:  # the server has closed it meanwhile, which needs no pause
                    self.retry.sleep(0)
                    continue
                why = str(error)
            else:
                if status < 400:
                    return _decode(answer, method, target) if status != 204 else None
                refusal = error_for(status, answer, method=method, target=target, tries=tries)
                if tries > self.retry.repeats or not may_repeat(status, headers):
                    raise refusal
                why = f"the service answered {status}: {refusal}"
            waits += 1
            if waits == 1:
                self.retry.warn(f"{why}; trying again")
            self.retry.sleep(pause(headers, tries))

    def stream(
        self, path: str, *, query: Query = (), headers: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """The lines of an event stream, on a connection of its own; not repeated."""
        target = path + encode_query(query)
        connection = Connection(self.address, timeout=self.timeout, ca_file=self._ca_file)
        try:
            extra = {"accept": "text/event-stream", **(headers or {})}
            response = connection.request("GET", target, self._headers(extra), None)
            self._say(f"GET {target} -> {response.status}, streaming")
            if response.status >= 400:
                raise error_for(response.status, response.read(), method="GET", target=target, tries=1)
            connection.set_timeout(STREAM_SILENCE)
            yield from response.lines()
        except TimeoutError as error:
            raise TimedOut(f"{self.base_url} went silent") from error
        except OSError as error:
            raise ConnectionFailed(f"the connection to {self.base_url} broke: {error}") from error
        finally:
            connection.close()

    def close(self) -> None:
        """Let go of the connection; the next call opens another."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _once(self, method: str, target: str, data: bytes | None) -> tuple[int, Mapping[str, str], bytes]:
        started = time.monotonic()
        if self._kept is None:
            self._kept = Connection(self.address, timeout=self.timeout, ca_file=self._ca_file)
        headers = self._headers({"accept": "application/json"})
        if data is not None:
            headers["content-type"] = "application/json"
        done = False
        try:
            response = self._kept.request(method, target, headers, data)
            answer = response.read()
            done = _reusable(response)
        except TimeoutError as error:
            raise TimedOut(f"{self.base_url} didn't answer within {self.timeout:g} s") from error
        except OSError as error:
            raise ConnectionFailed(f"the connection to {self.base_url} broke: {error}") from error
        finally:
            if not done:
                self.close()
        self._say(f"{method} {target} -> {response.status} in {(time.monotonic() - started) * 1e3:.1f} ms")
        return response.status, response.headers, answer

    def _headers(self, extra: Mapping[str, str]) -> dict[str, str]:
        headers = {"user-agent": "nemo-jobs", **extra}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        return headers

    def _say(self, text: str) -> None:
        if self._trace is not None:
            self._trace(text)


def may_repeat(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer asks for the same request again; the server's own word goes first."""
    wish = headers.get("x-should-retry", "").lower()
    if wish in ("true", "false"):
        return wish == "true"
    return status in _REPEATED or status >= 500


def pause(headers: Mapping[str, str], tries: int) -> float:
    """Seconds to wait after `tries` requests: what the server asks, up to a minute, else our own."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 <= seconds <= _LONGEST_PAUSE:
            return seconds
    import random

    return float(0.5 * 2 ** (tries - 1) * random.uniform(0.75, 1.0))


def encode_query(query: Query) -> str:
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


def _reusable(response: Response) -> bool:
    return response.finished and response.headers.get("connection", "").lower() != "close"


def _decode(answer: bytes, method: str, target: str) -> Any:
    if not answer:
        return None
    try:
        return json.loads(answer)
    except ValueError as error:
        raise BadAnswer(f"{method} {target} was answered with something that isn't JSON") from error

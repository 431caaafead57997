"""Requests of the sync client, over a few kept connections."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nemo_jobs.client.ask import Query
from nemo_jobs.client.connection import Connection, Outgoing, Response, parse_address
from nemo_jobs.client.errors import ConnectionFailed, TimedOut
from nemo_jobs.client.retry import (
    MOST_KEPT,
    STREAM_SILENCE,
    Retry,
    Tries,
    common_headers,
    decode,
    encode_body,
    encode_query,
    pause,
)
from nemo_jobs.client.transfer import Download, Source

__all__ = ["Retry", "Transport", "encode_query", "pause"]


class Transport:
    """Sends requests to one server. Threads may share it; each request has its own connection."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        timeout: float = 60.0,
        ca_file: str | None = None,
        retry: Retry | None = None,
        trace: Callable[[str], None] | None = None,
        heads: bool = False,
    ) -> None:
        self.base_url = base_url
        self.address = parse_address(base_url)
        self.timeout = timeout
        self.retry = retry or Retry()
        self.clock: Callable[[], float] = time.monotonic
        self._token = token
        self._ca_file = ca_file
        self._trace = trace
        self._heads = heads
        self._kept: list[Connection] = []
        self._process = os.getpid()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The decoded JSON of a successful answer, None for 204. Raises `ClientError`."""
        data = encode_body(body)
        extra = {"accept": "application/json", **(headers or {})}
        if data is not None:
            extra["content-type"] = "application/json"
        return self._answer(method, path + encode_query(query), extra, data)

    def upload(
        self, method: str, path: str, content: Source, *, query: Query = (), headers: Mapping[str, str]
    ) -> Any:
        """Send content piece by piece; the decoded JSON of the answer. Repeated only if it can be."""
        extra = {"accept": "application/json", **headers}
        return self._answer(method, path + encode_query(query), extra, content)

    def download(
        self, path: str, *, query: Query = (), headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> Download:
        """Open content for reading. The caller closes it."""
        target = path + encode_query(query)

        def reopen(more: Mapping[str, str]) -> Response:
            extra = {"accept": "*/*", **(headers or {}), **more}
            return self._sent(method, target, extra, None, whole=False)[0]

        return Download(reopen({}), reopen)

    def stream(
        self, path: str, *, query: Query = (), headers: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """The lines of an event stream, on a connection of its own; not repeated."""
        target = path + encode_query(query)
        connection = Connection(self.address, timeout=self.timeout, ca_file=self._ca_file)
        try:
            extra = {"accept": "text/event-stream", **(headers or {})}
            response = connection.request("GET", target, common_headers(self._token, extra), None)
            self._say(f"GET {target} -> {response.status}, streaming")
            if response.status >= 300:
                tries = Tries(self.retry, "GET", target)
                tries.count = 1
                raise tries.error(response.status, response.headers, response.read())
            connection.set_timeout(STREAM_SILENCE)
            yield from response.lines()
        except TimeoutError as error:
            raise TimedOut(f"{self.base_url} went silent") from error
        except OSError as error:
            raise ConnectionFailed(f"the connection to {self.base_url} broke: {error}") from error
        finally:
            connection.close()

    def close(self) -> None:
        """Let go of the kept connections; the next call opens another."""
        while self._kept:
            try:
                self._kept.pop().close()
            except IndexError:  # another thread was faster
                return

    def _answer(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | Source | None
    ) -> Any:
        response, answer = self._sent(method, target, headers, body, whole=True)
        return decode(answer, method, target) if response.status != 204 else None

    def _sent(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | Source | None,
        *,
        whole: bool,
    ) -> tuple[Response, bytes]:
        """An answer below 300, with its body if it is wanted `whole`. Raises `ClientError`."""
        tries = Tries(self.retry, method, target)
        again = body.again if isinstance(body, Source) else True
        while True:
            tries.count += 1
            kept = False
            try:
                connection = self._connection()
                kept = connection.used
                response = self._once(connection, method, target, headers, body)
                if not whole and response.status < 300:
                    return response, b""
                answer = self._whole(response)
                if response.status < 300:
                    return response, answer
            except ConnectionFailed as error:
                if kept:
                    self.close()  # the others won't be better
                rest = tries.lost(error, kept=kept, again=again)
            else:
                rest = tries.refused(response.status, response.headers, answer, again=again)
            self.retry.sleep(rest)

    def _connection(self) -> Connection:
        if self._process != os.getpid():  # after a fork the parent's connections are the parent's
            self.close()
            self._process = os.getpid()
        while self._kept:
            try:
                connection = self._kept.pop()
            except IndexError:  # another thread was faster
                break
            if not connection.stale():
                return connection
            connection.close()
        return Connection(self.address, timeout=self.timeout, ca_file=self._ca_file)

    def _once(
        self,
        connection: Connection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | Outgoing | None,
    ) -> Response:
        started = time.monotonic()
        done = False
        try:
            response = connection.request(method, target, common_headers(self._token, headers), body)
            response.release = lambda: self._release(connection, response)
            done = True
        except TimeoutError as error:
            raise self._silent() from error
        except OSError as error:
            raise ConnectionFailed(f"the connection to {self.base_url} broke: {error}") from error
        finally:
            if not done:
                connection.close()
        self._say(f"{method} {target} -> {response.status} in {(time.monotonic() - started) * 1e3:.1f} ms")
        for name, value in response.headers.items() if self._heads else ():
            self._say(f"  {name}: {value}")
        return response

    def _whole(self, response: Response) -> bytes:
        """The body. A break in it counts as no answer, so that the caller's repeats apply."""
        try:
            return response.read()
        except TimeoutError as error:
            raise self._silent() from error
        except OSError as error:
            raise ConnectionFailed(f"the connection to {self.base_url} broke: {error}") from error
        finally:
            response.close()

    def _silent(self) -> TimedOut:
        return TimedOut(f"{self.base_url} didn't answer within {self.timeout:g} s")

    def _release(self, connection: Connection, response: Response) -> None:
        whole = response.finished and not response.interrupted
        if (
            whole
            and response.headers.get("connection", "").lower() != "close"
            and len(self._kept) < MOST_KEPT
        ):
            self._kept.append(connection)
        else:
            connection.close()

    def _say(self, text: str) -> None:
        if self._trace is not None:
            self._trace(text)

"""Requests of the async client, over a few kept connections of one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from nemo_jobs.client.aio_connection import AsyncConnection, AsyncResponse
from nemo_jobs.client.aio_transfer import AsyncDownload, AsyncSource
from nemo_jobs.client.ask import Query
from nemo_jobs.client.connection import parse_address
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
)

#: Requests under way at one time; more wait for their turn. Streams and downloads don't count.
MOST_AT_ONCE = 64


class AsyncTransport:
    """Sends requests to one server, for any number of tasks."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        timeout: float = 60.0,
        ca_file: str | None = None,
        retry: Retry | None = None,
        trace: Callable[[str], None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.base_url = base_url
        self.address = parse_address(base_url)
        self.timeout = timeout
        self.retry = retry or Retry()
        self.sleep = sleep
        self._token = token
        self._ca_file = ca_file
        self._trace = trace
        self._kept: list[AsyncConnection] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def call(
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
        return await self._answer(method, path + encode_query(query), extra, data)

    async def upload(
        self, method: str, path: str, content: AsyncSource, *, query: Query = (), headers: Mapping[str, str]
    ) -> Any:
        """Send content piece by piece; the decoded JSON of the answer. Repeated only if it can be."""
        extra = {"accept": "application/json", **headers}
        return await self._answer(method, path + encode_query(query), extra, content)

    async def download(
        self, path: str, *, query: Query = (), headers: Mapping[str, str] | None = None
    ) -> AsyncDownload:
        """Open content for reading. The caller closes it."""
        target = path + encode_query(query)

        async def reopen(more: Mapping[str, str]) -> AsyncResponse:
            extra = {"accept": "*/*", **(headers or {}), **more}
            return (await self._sent("GET", target, extra, None, whole=False))[0]

        return AsyncDownload(await reopen({}), reopen)

    async def stream(
        self, path: str, *, query: Query = (), headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[str, None]:
        """The lines of an event stream, on a connection of its own; not repeated."""
        target = path + encode_query(query)
        connection = await AsyncConnection.open(self.address, timeout=self.timeout, ca_file=self._ca_file)
        try:
            extra = {"accept": "text/event-stream", **(headers or {})}
            response = await connection.request("GET", target, common_headers(self._token, extra), None)
            self._say(f"GET {target} -> {response.status}, streaming")
            if response.status >= 300:
                tries = Tries(self.retry, "GET", target)
                tries.count = 1
                raise tries.error(response.status, response.headers, await response.read())
            connection.timeout = STREAM_SILENCE
            async for line in response.lines():
                yield line
        except TimeoutError as error:
            raise TimedOut(f"{self.base_url} went silent") from error
        except OSError as error:
            raise ConnectionFailed(f"the connection to {self.base_url} broke: {error}") from error
        finally:
            connection.close()

    async def aclose(self) -> None:
        """Let go of the kept connections; the next call opens another."""
        self._drop()
        await asyncio.sleep(0)

    async def _answer(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | AsyncSource | None
    ) -> Any:
        response, answer = await self._sent(method, target, headers, body, whole=True)
        return decode(answer, method, target) if response.status != 204 else None

    async def _sent(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | AsyncSource | None,
        *,
        whole: bool,
    ) -> tuple[AsyncResponse, bytes]:
        """An answer below 300, with its body if it is wanted `whole`. Raises `ClientError`."""
        self._enter_loop()
        tries = Tries(self.retry, method, target)
        again = body.again if isinstance(body, AsyncSource) else True
        while True:
            tries.count += 1
            kept = False
            try:
                async with self._turns:
                    connection = await self._connection()
                    kept = connection.used
                    response = await self._once(connection, method, target, headers, body)
                    if not whole and response.status < 300:
                        return response, b""
                    answer = await self._whole(response)
                    if response.status < 300:
                        return response, answer
            except ConnectionFailed as error:
                if kept:
                    self._drop()  # the others won't be better
                rest = tries.lost(error, kept=kept, again=again)
            else:
                rest = tries.refused(response.status, response.headers, answer, again=again)
            await self.sleep(rest)

    def _drop(self) -> None:
        while self._kept:
            self._kept.pop().close()

    def _enter_loop(self) -> None:
        """Forget what belonged to a loop that has ended: `asyncio.run` may be called twice."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._kept.clear()
            self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def _connection(self) -> AsyncConnection:
        while self._kept:
            connection = self._kept.pop()
            if not connection.stale():
                return connection
            connection.close()
        return await AsyncConnection.open(self.address, timeout=self.timeout, ca_file=self._ca_file)

    async def _once(
        self,
        connection: AsyncConnection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | AsyncSource | None,
    ) -> AsyncResponse:
        started = time.monotonic()
        done = False
        connection.timeout = self.timeout
        try:
            response = await connection.request(method, target, common_headers(self._token, headers), body)
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
        return response

    async def _whole(self, response: AsyncResponse) -> bytes:
        """The body. A break in it counts as no answer, so that the caller's repeats apply."""
        try:
            return await response.read()
        except TimeoutError as error:
            raise self._silent() from error
        except OSError as error:
            raise ConnectionFailed(f"the connection to {self.base_url} broke: {error}") from error
        finally:
            response.close()

    def _silent(self) -> TimedOut:
        return TimedOut(f"{self.base_url} didn't answer within {self.timeout:g} s")

    def _release(self, connection: AsyncConnection, response: AsyncResponse) -> None:
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

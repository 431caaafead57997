"""The application: guard, route, answer. Started and stopped by whoever serves it."""

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from nemo_jobs.http import (
    attempts,
    bulk,
    errors,
    exchange,
    files,
    filesets,
    gpus,
    jobs,
    logs,
    otlp,
    platform,
    projects,
    rerun,
    results,
    secrets,
    steps,
    stream,
    tokens,
    workspaces,
)
from nemo_jobs.http.errors import ClientGone
from nemo_jobs.http.guard import guard_of
from nemo_jobs.http.parts import Api, Parts
from nemo_jobs.http.request import Message, Receive, Request, Scope, Send
from nemo_jobs.http.routes import Routes
from nemo_jobs.http.stream import Limits, Streams
from nemo_jobs.http.walks import Walks
from nemo_jobs.http.wire import Header, Reply
from nemo_jobs.telemetry import Metrics

if TYPE_CHECKING:
    from nemo_jobs.http.access import Gate

OPERATIONS = (
    *jobs.OPERATIONS,
    *bulk.OPERATIONS,
    *rerun.OPERATIONS,
    *steps.OPERATIONS,
    *attempts.OPERATIONS,
    *results.OPERATIONS,
    *logs.OPERATIONS,
    *stream.OPERATIONS,
    *workspaces.OPERATIONS,
    *projects.OPERATIONS,
    *filesets.OPERATIONS,
    *files.OPERATIONS,
    *otlp.OPERATIONS,
    *secrets.OPERATIONS,
    *tokens.OPERATIONS,
    *gpus.OPERATIONS,
    *exchange.OPERATIONS,
    *platform.OPERATIONS,
)


class App:
    """The ASGI callable. `stop()` ends what would keep a server from stopping."""

    def __init__(self, parts: Parts, limits: Limits | None = None) -> None:
        self._routes = Routes(OPERATIONS)
        self._guard = guard_of(parts.settings)
        self._streams = Streams(parts.db, limits)
        self.metrics = Metrics(parts.db, followers=self._streams.__len__, up=parts.profiles_up)
        self._gate = _gate(parts)
        self._api = Api(parts, self._streams, Walks(parts.clock), self.metrics, OPERATIONS, self._gate)

    async def start(self) -> None:
        """Begin to count what happens to steps."""
        await self.metrics.start()

    def stop(self) -> None:
        """End the log streams and stop listening to the store. Twice is fine."""
        self._streams.stop()
        if self._gate is not None:
            self._gate.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _refuse_protocol(scope, receive, send)
            return
        began = perf_counter()
        label = "refused"
        reply, extra = self._guard.check(scope)
        if reply is None:
            label, reply = await self._handled(scope, receive, send, extra)
        if reply is None:
            return
        headers = [*reply.headers, *extra] if extra else reply.headers
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})
        self.metrics.count_request(label, scope["method"], reply.status, perf_counter() - began)

    async def _handled(
        self, scope: Scope, receive: Receive, send: Send, extra: Sequence[Header]
    ) -> tuple[str, Reply | None]:
        """The route's name and its answer; None when the route answered or nobody listens."""
        label = "unknown"
        started = _Started(send)
        try:
            operation, path = self._routes.find(scope["method"], scope["raw_path"])
            label = operation.path
            request = Request(scope, receive, started, path, extra)
            if self._gate is not None:
                await self._gate.admit(operation, request)
            return label, await operation.handler(self._api, request)
        except ClientGone:
            return label, None
        except Exception as error:
            # The boundary of a request: every error becomes an answer, ours also a log entry.
            if started.yes:
                raise
            return label, errors.answer(error, f"{scope['method']} {label}")


def _gate(parts: Parts) -> "Gate | None":
    """What checks tokens; nothing of it is loaded while nobody needs one."""
    if not parts.settings.auth.enabled:
        return None
    from nemo_jobs.http.access import Gate

    return Gate(parts.db, parts.clock, parts.settings.auth, OPERATIONS)


class _Started:
    """A `send` that knows whether an answer has begun."""

    __slots__ = ("_send", "yes")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.yes = False

    async def __call__(self, message: Message) -> None:
        self.yes = True
        await self._send(message)


def create_app(parts: Parts) -> App:
    return App(parts)


async def _refuse_protocol(scope: Scope, receive: Receive, send: Send) -> None:
    """There are no web sockets here, and nothing to do when a server starts or stops."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
    while scope["type"] == "lifespan":
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return

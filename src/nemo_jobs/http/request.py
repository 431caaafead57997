"""One request, read as far as a handler asks for it."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, TypeAdapter, ValidationError

from nemo_jobs.http.collector import uncollected
from nemo_jobs.http.errors import BadInput, ClientGone, Refused
from nemo_jobs.http.wire import Header

if TYPE_CHECKING:
    from nemo_jobs.http.identity import Access

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")
Q = TypeVar("Q", bound=BaseModel)

MAX_BODY = 8 * 1024 * 1024
BODY_SECONDS = 30.0
MAX_PAIRS = 1000
CLOSE: Header = (b"connection", b"close")
#: Checking more than this takes milliseconds, in which others would wait.
LARGE_BODY = 256 * 1024


class Request:
    """Path values, query, headers and body of a request."""

    __slots__ = ("access", "extra_headers", "path", "receive", "scope", "send")

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        path: dict[str, str],
        extra_headers: Sequence[Header] = (),
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.path = path
        self.extra_headers = extra_headers  # for handlers that answer by themselves
        self.access: Access | None = None  # what the caller's token allows; None without authentication

    def header(self, name: bytes) -> str | None:
        """The value of a header, given in lower case."""
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value.decode("latin-1"))
        return None

    def pairs(self) -> list[tuple[str, str]]:
        """The query as it was sent, repeated keys included."""
        raw = self.scope["query_string"]
        if not raw:
            return []
        try:
            pairs = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=MAX_PAIRS, errors="strict")
        except UnicodeDecodeError:
            raise Refused(422, "the query is not UTF-8 text") from None
        except ValueError:
            raise Refused(422, f"the query has more than {MAX_PAIRS} values") from None
        if any("\0" in key or "\0" in value for key, value in pairs):
            raise Refused(422, "the query has a NUL character in it")
        return pairs

    def query(self, model: type[Q]) -> Q:
        """The known parameters of the query; of a repeated one the last value counts."""
        known = model.model_fields
        given = {key: value for key, value in self.pairs() if key in known}
        try:
            return model.model_validate_strings(given)
        except ValidationError as error:
            raise BadInput(error, "query") from None

    async def body(self) -> bytes:
        """The whole body, within the limits. Raises Refused (408, 413) or ClientGone."""
        length = self.header(b"content-length")
        if length is not None and int(length) > MAX_BODY:
            raise _too_large()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._whole_body()
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {BODY_SECONDS:g} s", CLOSE) from None

    async def parsed(self, adapter: TypeAdapter[T]) -> T:
        """The body as JSON of the adapter's type."""
        return await self.validated(await self.body(), adapter)

    async def validated(self, raw: bytes, adapter: TypeAdapter[T]) -> T:
        """A body that was read before, as JSON of the adapter's type."""
        try:
            if len(raw) > LARGE_BODY:
                return await asyncio.to_thread(_validated, raw, adapter)
            return adapter.validate_json(raw)
        except ValidationError as error:
            raise BadInput(error, "body") from None

    async def _whole_body(self) -> bytes:
        parts, size = [], 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY:
                raise _too_large()
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)


def _validated(raw: bytes, adapter: TypeAdapter[T]) -> T:
    with uncollected():
        return adapter.validate_json(raw)


def _too_large() -> Refused:
    return Refused(413, f"the body is larger than {MAX_BODY // 1024 // 1024} MiB", CLOSE)

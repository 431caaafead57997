"""Calls as such: versions, deadlines, bounded answers, errors. What the calls are is in `calls.py`."""

import asyncio
import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import urlencode

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.errors import EngineAway, EngineError, reason
from nemo_jobs.backends.docker.pool import Exchange, Kind, Pool
from nemo_jobs.backends.docker.stream import ByteStream
from nemo_jobs.backends.docker.transport import Address, dialer

#: The API versions that this was written for; the engines of 20.10 and of 28 speak the two ends.
OLDEST, NEWEST = (1, 41), (1, 51)

MOST_ANSWER = 32 << 20  # bytes of an answer that is taken whole
_MOST_REASON = 64 << 10  # bytes of an error that are read
_CALL = 30.0  # seconds
_UNPACK = 120.0  # for a small tar
_AT_ONCE = 1 << 20  # bytes of a tar that are sent as they are

Query = Mapping[str, str]
NOTHING: Query = {}

_VERSION_REFUSED = re.compile(r"client( API)? version .* is too (new|old)")


@dataclass(frozen=True, slots=True)
class Call:
    """One call; `path` is below the version."""

    method: str
    path: str
    query: Query = field(default_factory=dict)
    headers: Query = field(default_factory=dict)
    body: bytes | AsyncIterable[bytes] = b""
    seconds: float | None = _CALL  # until the answer is here, of a stream its head
    kind: Kind = Kind.CALL
    again: bool = True  # it may be sent twice
    versioned: bool = True

    def head(self, host: str, api: tuple[int, int]) -> bytes:
        version = f"/v{api[0]}.{api[1]}" if self.versioned else ""
        target = f"{version}{self.path}" + (f"?{urlencode(self.query)}" if self.query else "")
        lines = [f"{self.method} {target} HTTP/1.1", f"Host: {host}", "User-Agent: nemo-jobs"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if not isinstance(self.body, bytes):
            lines.append("Transfer-Encoding: chunked")
        elif self.body or self.method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(self.body)}")
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a line break in a head")
        return "\r\n".join((*lines, "", "")).encode("latin-1")

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Negotiated:
    """What was agreed with the engine."""

    api: tuple[int, int]


class Session:
    """An engine at an address; every call goes by one of its methods."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool = Pool(dialer(address))
        self._host = address.host.partition("%")[0] if address.scheme == "tcp" else "docker"
        if ":" in self._host:
            self._host = f"[{self._host}]"
        self._known: Negotiated | None = None
        self._asking = asyncio.Lock()

    @property
    def open_connections(self) -> int:
        return self._pool.open_connections

    async def aclose(self) -> None:
        self._pool.aclose()

    async def negotiated(self) -> Negotiated:
        """The version to speak; asked once, and again when the engine doesn't want it any more."""
        if self._known is None:
            async with self._asking:
                if self._known is None:
                    call = Call("GET", "/version", versioned=False)
                    self._known = self._chosen(_object(call, (await self._whole(call)).body))
        return self._known

    async def time(self) -> float:
        """The engine's clock, in seconds, by whole ones."""
        call = Call("GET", "/_ping", versioned=False)
        date = (await self._whole(call)).headers.get("date", "")
        try:
            return parsedate_to_datetime(date).timestamp()
        except ValueError:
            raise EngineAway(f"the engine's answer to {call} has no date") from None

    async def plain(self, method: str, path: str, *, seconds: float = _CALL) -> bytes:
        """The bytes of an answer to a call that has no version."""
        return (await self._whole(Call(method, path, seconds=seconds, versioned=False))).body

    async def json(
        self,
        method: str,
        path: str,
        query: Query = NOTHING,
        body: Json | None = None,
        *,
        seconds: float = _CALL,
        kind: Kind = Kind.CALL,
    ) -> Json:
        """An object; empty when the answer is."""
        content = b"" if body is None else json.dumps(body).encode()
        headers = NOTHING if body is None else {"Content-Type": "application/json"}
        call = Call(method, path, query, headers, content, seconds, kind)
        return _object(call, (await self._whole(call)).body)

    async def array(
        self, method: str, path: str, query: Query = NOTHING, *, seconds: float = _CALL
    ) -> list[Json]:
        call = Call(method, path, query, seconds=seconds)
        value = _parsed(call, (await self._whole(call)).body)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise EngineAway(f"the engine's answer to {call} isn't a list of objects", sent=True)
        return cast(list[Json], value)

    async def found(self, path: str, query: Query = NOTHING) -> Json | None:
        """An object; None when there is no such thing."""
        try:
            return await self.json("GET", path, query)
        except EngineError as error:
            if error.missing:
                return None
            raise

    async def status(
        self,
        method: str,
        path: str,
        query: Query = NOTHING,
        *,
        seconds: float = _CALL,
        kind: Kind = Kind.WORK,
        again: bool = True,
    ) -> int:
        """The status alone, when it is a good one."""
        call = Call(method, path, query, seconds=seconds, kind=kind, again=again)
        return (await self._whole(call)).status

    async def send(self, method: str, path: str, query: Query, body: bytes | AsyncIterable[bytes]) -> None:
        """Send a tar of any length, as long as it moves."""
        headers = {"Content-Type": "application/x-tar"}
        if isinstance(body, bytes) and len(body) <= _AT_ONCE:
            await self._whole(Call(method, path, query, headers, body, _UNPACK, Kind.TRANSFER))
            return
        pieces = _in_pieces(body) if isinstance(body, bytes) else body
        call = Call(method, path, query, headers, pieces, None, Kind.TRANSFER, again=False)
        await self._whole(call)

    def bytes_stream(
        self,
        path: str,
        query: Query,
        *,
        method: str = "GET",
        headers: Query = NOTHING,
        idle: float | None = None,
        seconds: float | None = _CALL,
        kind: Kind = Kind.FOLLOW,
    ) -> ByteStream:
        """A body as it comes; `idle`: seconds without a byte until it fails, None: for ever."""
        call = Call(method, path, query, headers, seconds=seconds, kind=kind)
        return ByteStream(lambda: self._opened(call), idle, str(call))

    async def _opened(self, call: Call) -> Exchange:
        try:
            async with asyncio.timeout(call.seconds):
                return await self._begin(call)
        except TimeoutError:
            raise self._silent(call) from None

    async def _whole(self, call: Call) -> "_Answer":
        """Make a call and read all of its answer, within its time."""
        try:
            async with asyncio.timeout(call.seconds):
                exchange = await self._begin(call)
                try:
                    body = await _read(exchange, MOST_ANSWER)
                finally:
                    exchange.close()
        except TimeoutError:
            raise self._silent(call) from None
        if len(body) > MOST_ANSWER:
            raise EngineAway(
                f"the engine's answer to {call} is longer than {MOST_ANSWER >> 20} MiB", sent=True
            )
        return _Answer(exchange.status, exchange.headers, body)

    async def _begin(self, call: Call) -> Exchange:
        """Send a call; the exchange when the engine agrees, else EngineError."""
        for last in (False, True):
            api = (await self.negotiated()).api if call.versioned else OLDEST
            head = call.head(self._host, api)
            exchange = await self._pool.begin(call.kind, head, call.body, again=call.again)
            if exchange.status < 300 or exchange.status == 304:
                return exchange
            try:
                text = reason(exchange.status, (await _read(exchange, _MOST_REASON))[:_MOST_REASON])
            finally:
                exchange.close()
            refused = exchange.status == 400 and call.versioned and _VERSION_REFUSED.search(text)
            if not refused or last or not call.again:
                raise EngineError(exchange.status, text)
            self._known = None  # another engine than before answers here
        raise AssertionError("the second time returns or raises")

    def _chosen(self, answer: Json) -> Negotiated:
        newest = _version(answer.get("ApiVersion"))
        oldest = _version(answer.get("MinAPIVersion", "1.0"))
        if newest < OLDEST or oldest > NEWEST:
            ours = f"{_dotted(OLDEST)} to {_dotted(NEWEST)}"
            theirs = f"{_dotted(oldest)} to {_dotted(newest)}"
            raise EngineAway(f"the engine at {self.address} speaks API {theirs}, this service {ours}")
        return Negotiated(min(newest, NEWEST))

    def _silent(self, call: Call) -> EngineAway:
        text = f"the engine at {self.address} did not answer {call} within {call.seconds:g} s"
        return EngineAway(text, sent=True)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def filters_text(filters: Mapping[str, Sequence[str]]) -> str:
    """Filters in the engine's form."""
    return json.dumps({key: list(values) for key, values in filters.items()})


async def _read(exchange: Exchange, most: int) -> bytes:
    """A body; of one that is longer than `most`, somewhat more than that."""
    pieces, size = [], 0
    while size <= most and (piece := await exchange.read()):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


async def _in_pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), _AT_ONCE):
        yield data[at : at + _AT_ONCE]


def _parsed(call: Call, body: bytes) -> Any:
    try:
        return json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise EngineAway(f"the engine's answer to {call} isn't JSON", sent=True) from None


def _object(call: Call, body: bytes) -> Json:
    value = _parsed(call, body)
    if not isinstance(value, dict):
        raise EngineAway(f"the engine's answer to {call} isn't an object", sent=True)
    return cast(Json, value)


def _version(text: object) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,4})", text) if isinstance(text, str) else None
    if match is None:
        raise EngineAway("what answers there is no Docker engine: it names no API version")
    return int(match[1]), int(match[2])


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"

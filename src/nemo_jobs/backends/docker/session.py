"""Calls as such: versions, deadlines, bounded answers, errors. What the calls are is in `calls.py`."""

import json
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.errors import EngineAway
from nemo_jobs.backends.docker.stream import ByteStream, JsonStream
from nemo_jobs.backends.docker.transport import Address

Query = Mapping[str, str]
NOTHING: Query = {}


@dataclass(frozen=True, slots=True)
class Negotiated:
    api: tuple[int, int]


class Session:
    """An engine at an address; every call by one of its methods."""

    def __init__(self, address: Address) -> None:
        self.address = address

    async def aclose(self) -> None: ...

    async def negotiated(self) -> Negotiated:
        raise EngineAway("not connected")

    async def time(self) -> float:
        raise EngineAway("not connected")

    async def plain(self, method: str, path: str, *, seconds: float = 30.0) -> bytes:
        raise EngineAway("not connected")

    async def json(
        self,
        method: str,
        path: str,
        query: Query = NOTHING,
        body: Json | None = None,
        *,
        seconds: float = 30.0,
    ) -> Json:
        raise EngineAway("not connected")

    async def array(
        self, method: str, path: str, query: Query = NOTHING, *, seconds: float = 30.0
    ) -> list[Json]:
        raise EngineAway("not connected")

    async def found(self, path: str, query: Query = NOTHING) -> Json | None:
        raise EngineAway("not connected")

    async def status(
        self, method: str, path: str, query: Query = NOTHING, *, seconds: float = 30.0, again: bool = True
    ) -> int:
        raise EngineAway("not connected")

    async def send(self, method: str, path: str, query: Query, body: bytes | AsyncIterable[bytes]) -> None:
        raise EngineAway("not connected")

    def bytes_stream(self, path: str, query: Query, *, idle: float | None) -> ByteStream:
        raise EngineAway("not connected")

    def json_stream(self, method: str, path: str, query: Query, headers: Query = NOTHING) -> JsonStream:
        raise EngineAway("not connected")


def filters_text(filters: Mapping[str, Sequence[str]]) -> str:
    """Filters in the engine's form."""
    return json.dumps({key: list(values) for key, values in filters.items()})

"""The calls to a Docker engine, one method each.

Every call has a deadline and a bounded answer, and raises `EngineError` (the engine refused: its own
reason) or `EngineAway` (it can't be asked now). Calls may be made at the same time without limit:
they wait for one of a bounded number of connections. A cancelled call leaves nothing open.
"""

from types import TracebackType

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.calls_containers import ContainerCalls, Filters, OutputCalls
from nemo_jobs.backends.docker.calls_stores import StoreCalls
from nemo_jobs.backends.docker.session import Session, filters_text
from nemo_jobs.backends.docker.stream import JsonStream
from nemo_jobs.backends.docker.transport import Address, Tls

__all__ = ["DockerEngine"]


class DockerEngine(ContainerCalls, OutputCalls, StoreCalls):
    """One Docker engine. Made by `open`, which asks nothing yet: the engine may be away then."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @classmethod
    async def open(cls, address: str | None = None, *, tls: Tls | None = None) -> "DockerEngine":
        """The engine at `unix://…`, `tcp://…` or `ssh://…`; without an address the one that the
        docker command would use (DOCKER_HOST, DOCKER_CONTEXT, the current context, the usual socket).
        Raises ValueError with a sentence when the address can't be used."""
        from nemo_jobs.backends.docker.contexts import find  # imports what it needs when it is needed

        return cls(Session(await find(address, tls)))

    async def __aenter__(self) -> "DockerEngine":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; streams that are read end with `EngineAway`."""
        await self._session.aclose()

    @property
    def address(self) -> Address:
        """Where the engine is; `str()` of it can be shown to people."""
        return self._session.address

    @property
    def local(self) -> bool:
        """Whether it is reached by a socket file of this host."""
        return self._session.address.local

    @property
    def open_connections(self) -> int:
        """How many connections stand, with and without a call on them."""
        return self._session.open_connections

    async def api(self) -> tuple[int, int]:
        """The API version spoken, as (1, 41): the lower one of the engine's newest and ours."""
        return (await self._session.negotiated()).api

    # The engine as a whole

    async def ping(self, seconds: float = 5.0) -> None:
        """Return when the engine answers."""
        await self._session.plain("GET", "/_ping", seconds=seconds)

    async def time(self) -> float:
        """The engine's clock, seconds since 1970 UTC in whole seconds: what `since` of `events` and
        `logs` is measured by."""
        return await self._session.time()

    async def version(self) -> Json:
        """`Version`, `ApiVersion`, `Os`, `Arch`, `KernelVersion`, …"""
        return await self._session.json("GET", "/version")

    async def info(self) -> Json:
        """`ID`, `Name`, `NCPU`, `MemTotal`, `DockerRootDir`, `CgroupVersion`, `SecurityOptions`, …"""
        return await self._session.json("GET", "/info")

    def events(self, filters: Filters, *, since: str = "", until: str = "") -> JsonStream:
        """What happens in the engine, from `since` (its clock, seconds as text; see `time`) and on
        without end, or up to `until`. Entering it (`async with`) returns when the engine has taken
        the subscription."""
        query = {"filters": filters_text(filters)} | ({"since": since} if since else {})
        query |= {"until": until} if until else {}
        return JsonStream(self._session.bytes_stream("/events", query))

"""The calls to a Docker engine, one method each.

Every call has a deadline and a bounded answer, and raises `EngineError` (the engine refused: its own
reason) or `EngineAway` (it can't be asked now). Calls may be made at the same time without limit:
they wait for one of a bounded number of connections. A cancelled call leaves nothing open.
"""

from collections.abc import AsyncIterable, Mapping, Sequence
from types import TracebackType
from urllib.parse import quote

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.errors import EngineError
from nemo_jobs.backends.docker.pool import Kind
from nemo_jobs.backends.docker.session import Session, filters_text
from nemo_jobs.backends.docker.stream import ByteStream, JsonStream
from nemo_jobs.backends.docker.transport import Address, Tls

__all__ = ["DockerEngine"]

#: A filter of a list or of events: {"label": ["a=b", "c"], "status": ["running"]}.
Filters = Mapping[str, Sequence[str]]

MOVING = 60.0  # seconds without a byte, of what is on its way
_SLOW = 120.0  # seconds for what the engine may do long: create, start, remove


class DockerEngine:
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

    # Containers

    async def create(self, name: str, body: Json, *, platform: str | None = None) -> str:
        """Create a container and give its id. 404: no such image; 409: the name is in use; 400: the
        body is wrong. `HostConfig` and `NetworkingConfig` are keys of `body`."""
        query = {"name": name} | ({"platform": platform} if platform else {})
        answer = await self._session.json(
            "POST", "/containers/create", query, body, seconds=_SLOW, kind=Kind.WORK
        )
        return str(answer["Id"])

    async def start(self, container: str) -> bool:
        """Start it, also again after its end; False when it runs already."""
        path = f"/containers/{_one(container)}/start"
        return await self._session.status("POST", path, seconds=_SLOW) != 304

    async def stop(self, container: str, seconds: int) -> bool:
        """SIGTERM (or the image's own signal), then SIGKILL after `seconds`; returns at the end of it,
        False when it had ended already."""
        path, query = f"/containers/{_one(container)}/stop", {"t": str(seconds)}
        status = await self._session.status("POST", path, query, seconds=seconds + 60.0, kind=Kind.FOLLOW)
        return status != 304

    async def kill(self, container: str, signal: str = "SIGKILL") -> bool:
        """Send a signal; False when it doesn't run or isn't there. Returns before it has an effect."""
        path = f"/containers/{_one(container)}/kill"
        try:
            await self._session.status("POST", path, {"signal": signal}, again=False)
        except EngineError as error:
            if error.missing or error.conflict:
                return False
            raise
        return True

    async def inspect(self, container: str, *, size: bool = False) -> Json | None:
        """All that is known of a container by id or name; None when it isn't there."""
        query = {"size": "1"} if size else {}
        return await self._session.found(f"/containers/{_one(container)}/json", query)

    async def containers(self, filters: Filters, *, all: bool = True) -> list[Json]:
        """Containers in short (`Id`, `Names`, `Labels`, `State`, `Status`, …), without `all` only the
        running ones."""
        query = {"all": "1" if all else "0", "filters": filters_text(filters)}
        return await self._session.array("GET", "/containers/json", query)

    async def remove(self, container: str, *, force: bool = False, volumes: bool = False) -> bool:
        """Remove it, with `force` also while it runs, with `volumes` its nameless volumes too; False
        when it isn't there or is being removed already. 409: it runs."""
        query = {"force": "1" if force else "0", "v": "1" if volumes else "0"}
        try:
            await self._session.status("DELETE", f"/containers/{_one(container)}", query, seconds=_SLOW)
        except EngineError as error:
            if error.missing or (error.conflict and "already in progress" in error.message):
                return False
            raise
        return True

    async def rename(self, container: str, name: str) -> None:
        await self._session.status("POST", f"/containers/{_one(container)}/rename", {"name": name})

    async def update(self, container: str, body: Json) -> None:
        """Change limits of a container (`Memory`, `NanoCpus`, `RestartPolicy`, …)."""
        await self._session.json("POST", f"/containers/{_one(container)}/update", {}, body)

    async def unpause(self, container: str) -> bool:
        """Let a container run on that somebody froze; False when it isn't frozen or isn't there."""
        try:
            await self._session.status("POST", f"/containers/{_one(container)}/unpause")
        except EngineError as error:
            if error.missing or error.conflict or "is not paused" in error.message:
                return False
            raise
        return True

    def wait(self, container: str, condition: str = "not-running") -> JsonStream:
        """One object `{"StatusCode": …}` when the condition holds (`not-running`, `next-exit`,
        `removed`); as long as that takes. 404: no such container."""
        path = f"/containers/{_one(container)}/wait"
        return JsonStream(self._session.bytes_stream(path, {"condition": condition}, method="POST"))

    async def put_archive(self, container: str, path: str, tar: bytes | AsyncIterable[bytes]) -> None:
        """Unpack a tar (plain or gzip) below the folder `path`, which must exist. Owners and modes are those
        in the tar. Any length; fails when nothing moves for a minute. 404: no container or no folder;
        400: `path` is no folder; 403: it is read-only."""
        await self._session.send("PUT", f"/containers/{_one(container)}/archive", {"path": path}, tar)

    def get_archive(self, container: str, path: str) -> ByteStream:
        """A tar of the file or folder at `path`, in pieces; links in it are not followed. 404: no
        container or nothing there. Any length; fails when nothing comes for a minute."""
        place = f"/containers/{_one(container)}/archive"
        return self._session.bytes_stream(place, {"path": path}, idle=MOVING, kind=Kind.TRANSFER)

    def logs(
        self,
        container: str,
        *,
        since: str = "0",
        until: str = "",
        follow: bool = True,
        timestamps: bool = True,
        stdout: bool = True,
        stderr: bool = True,
        tail: str = "all",
    ) -> ByteStream:
        """Output as the engine sends it: frames of 8 bytes head and content, many a piece, cut
        anywhere (`stream.Demultiplexer` takes them apart). `since` and `until` are seconds with up to
        nine decimals, as text. With `follow` it ends with the container."""
        query = {
            "follow": "1" if follow else "0",
            "stdout": "1" if stdout else "0",
            "stderr": "1" if stderr else "0",
            "timestamps": "1" if timestamps else "0",
            "since": since,
            "tail": tail,
        }
        if until:
            query["until"] = until
        idle = None if follow else MOVING
        return self._session.bytes_stream(f"/containers/{_one(container)}/logs", query, idle=idle)

    def attach(self, container: str) -> ByteStream:
        """Output as it is written from now on, in frames as of `logs`, without waiting for ends of
        lines. It must be read: the container waits when a megabyte isn't."""
        query = {"stream": "1", "stdout": "1", "stderr": "1"}
        path = f"/containers/{_one(container)}/attach"
        return self._session.bytes_stream(path, query, method="POST", kind=Kind.GLANCE)

    async def stats(self, container: str) -> Json | None:
        """One measurement of a running container, without waiting for a second one; None when it isn't
        there. Of one that has ended all is zero."""
        return await self._session.found(
            f"/containers/{_one(container)}/stats", {"stream": "0", "one-shot": "1"}
        )

    def events(self, filters: Filters, *, since: str = "", until: str = "") -> JsonStream:
        """What happens in the engine, from `since` (its clock, seconds as text; see `time`) and on
        without end, or up to `until`. Entering it (`async with`) returns when the engine has taken
        the subscription."""
        query = {"filters": filters_text(filters)} | ({"since": since} if since else {})
        query |= {"until": until} if until else {}
        return JsonStream(self._session.bytes_stream("/events", query))

    # Images

    async def image(self, name: str) -> Json | None:
        """`Id`, `Config` (`User`, `Entrypoint`, `Cmd`, `Env`), `Architecture`, `Os`, …; None when it
        isn't there."""
        return await self._session.found(f"/images/{_path(name)}/json")

    def pull(
        self, name: str, auth: str = "", *, tag: str = "", platform: str = "", seconds: float | None = 300.0
    ) -> JsonStream:
        """Progress of a pull, object by object; one with `error` tells the failure and is the last
        one. `auth` is the value of X-Registry-Auth (see `auth.py`). The engine may answer only when
        the registry has: `seconds` are for that, None: as long as it takes. Use `pull.Pulls` instead."""
        query = {"fromImage": name}
        query |= {key: value for key, value in (("tag", tag), ("platform", platform)) if value}
        headers = {"X-Registry-Auth": auth} if auth else {}
        return JsonStream(
            self._session.bytes_stream(
                "/images/create", query, method="POST", headers=headers, seconds=seconds
            )
        )

    # Volumes

    async def volume_create(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        driver: str = "local",
    ) -> Json:
        """Create a volume, or give the one of this name that is there already, whatever its labels."""
        body = {
            "Name": name,
            "Driver": driver,
            "Labels": dict(labels or {}),
            "DriverOpts": dict(options or {}),
        }
        return await self._session.json("POST", "/volumes/create", {}, body)

    async def volume_inspect(self, name: str) -> Json | None:
        """`Name`, `Labels`, `Mountpoint` (a path of the engine's host), …; None when it isn't there."""
        return await self._session.found(f"/volumes/{_one(name)}")

    async def volume_list(self, filters: Filters) -> list[Json]:
        answer = await self._session.json("GET", "/volumes", {"filters": filters_text(filters)})
        return list(answer.get("Volumes") or [])

    async def volume_remove(self, name: str, *, force: bool = False) -> bool:
        """Remove it with its content; False when it isn't there. 409: a container uses it."""
        try:
            query = {"force": "1" if force else "0"}
            await self._session.status("DELETE", f"/volumes/{_one(name)}", query, seconds=_SLOW)
        except EngineError as error:
            if error.missing:
                return False
            raise
        return True

    # Networks

    async def network_inspect(self, name: str) -> Json | None:
        return await self._session.found(f"/networks/{_one(name)}")

    async def network_disconnect(self, network: str, container: str, *, force: bool = False) -> bool:
        """Take a container off a network; False when either isn't there."""
        body = {"Container": container, "Force": force}
        try:
            await self._session.json("POST", f"/networks/{_one(network)}/disconnect", {}, body)
        except EngineError as error:
            if error.missing:
                return False
            raise
        return True


def _one(name: str) -> str:
    """A name or id as one segment of a path; raises ValueError when it can't be one."""
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name")
    return quote(name, safe="")


def _path(name: str) -> str:
    """The name of an image, whose slashes are its own."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is no name of an image")
    return quote(name, safe="/:@")

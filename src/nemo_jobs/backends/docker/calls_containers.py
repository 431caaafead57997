"""The calls about containers, their files and their output."""

from collections.abc import AsyncIterable, Mapping, Sequence
from urllib.parse import quote

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.errors import EngineError
from nemo_jobs.backends.docker.pool import Kind
from nemo_jobs.backends.docker.session import Session, filters_text
from nemo_jobs.backends.docker.stream import ByteStream, JsonStream

#: A filter of a list or of events: {"label": ["a=b", "c"], "status": ["running"]}.
Filters = Mapping[str, Sequence[str]]

MOVING = 60.0  # seconds without a byte, of what is on its way
SLOW = 120.0  # seconds for what the engine may do long: create, start, remove


class ContainerCalls:
    """Part of `DockerEngine`."""

    _session: Session

    async def create(self, name: str, body: Json, *, platform: str | None = None) -> str:
        """Create a container and give its id. 404: no such image; 409: the name is in use; 400: the
        body is wrong. `HostConfig` and `NetworkingConfig` are keys of `body`."""
        query = {"name": name} | ({"platform": platform} if platform else {})
        answer = await self._session.json(
            "POST", "/containers/create", query, body, seconds=SLOW, kind=Kind.WORK
        )
        return str(answer["Id"])

    async def start(self, container: str) -> bool:
        """Start it, also again after its end; False when it runs already. Never sent twice: work that
        has ended meanwhile would run again."""
        path = f"/containers/{one(container)}/start"
        return await self._session.status("POST", path, seconds=SLOW, again=False) != 304

    async def stop(self, container: str, seconds: int) -> bool:
        """SIGTERM (or the image's own signal), then SIGKILL after `seconds`; returns at the end of it,
        False when it had ended already."""
        path, query = f"/containers/{one(container)}/stop", {"t": str(seconds)}
        status = await self._session.status("POST", path, query, seconds=seconds + 60.0, kind=Kind.FOLLOW)
        return status != 304

    async def kill(self, container: str, signal: str = "SIGKILL") -> bool:
        """Send a signal; False when it doesn't run or isn't there. Returns before it has an effect."""
        path = f"/containers/{one(container)}/kill"
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
        return await self._session.found(f"/containers/{one(container)}/json", query)

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
            await self._session.status("DELETE", f"/containers/{one(container)}", query, seconds=SLOW)
        except EngineError as error:
            if error.missing or (error.conflict and "already in progress" in error.message):
                return False
            raise
        return True

    async def rename(self, container: str, name: str) -> None:
        await self._session.status("POST", f"/containers/{one(container)}/rename", {"name": name})

    async def update(self, container: str, body: Json) -> None:
        """Change limits of a container (`Memory`, `NanoCpus`, `RestartPolicy`, …)."""
        await self._session.json("POST", f"/containers/{one(container)}/update", {}, body)

    async def unpause(self, container: str) -> bool:
        """Let a container run on that somebody froze; False when it isn't frozen or isn't there."""
        try:
            await self._session.status("POST", f"/containers/{one(container)}/unpause")
        except EngineError as error:
            if error.missing or error.conflict or "is not paused" in error.message:
                return False
            raise
        return True


class OutputCalls:
    """Part of `DockerEngine`."""

    _session: Session

    def wait(self, container: str, condition: str = "not-running") -> JsonStream:
        """One object `{"StatusCode": …}` when the condition holds (`not-running`, `next-exit`,
        `removed`); as long as that takes. 404: no such container."""
        path = f"/containers/{one(container)}/wait"
        return JsonStream(self._session.bytes_stream(path, {"condition": condition}, method="POST"))

    async def put_archive(self, container: str, path: str, tar: bytes | AsyncIterable[bytes]) -> None:
        """Unpack a tar (plain or gzip) below the folder `path`, which must exist. Owners and modes are those
        in the tar. Any length; fails when nothing moves for a minute. 404: no container or no folder;
        400: `path` is no folder; 403: it is read-only."""
        await self._session.send("PUT", f"/containers/{one(container)}/archive", {"path": path}, tar)

    def get_archive(self, container: str, path: str) -> ByteStream:
        """A tar of the file or folder at `path`, in pieces; links in it are not followed. 404: no
        container or nothing there. Any length; fails when nothing comes for a minute."""
        place = f"/containers/{one(container)}/archive"
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
        return self._session.bytes_stream(f"/containers/{one(container)}/logs", query, idle=idle)

    def attach(self, container: str) -> ByteStream:
        """Output as it is written from now on, in frames as of `logs`, without waiting for ends of
        lines. It must be read: the container waits when a megabyte isn't."""
        query = {"stream": "1", "stdout": "1", "stderr": "1"}
        path = f"/containers/{one(container)}/attach"
        return self._session.bytes_stream(path, query, method="POST", kind=Kind.GLANCE)

    async def stats(self, container: str) -> Json | None:
        """One measurement of a running container, without waiting for a second one; None when it isn't
        there. Of one that has ended all is zero."""
        return await self._session.found(
            f"/containers/{one(container)}/stats", {"stream": "0", "one-shot": "1"}
        )


def one(name: str) -> str:
    """A name or id as one segment of a path; raises ValueError when it can't be one."""
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name")
    return quote(name, safe="")

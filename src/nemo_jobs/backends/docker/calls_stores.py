"""The calls about images, volumes and networks."""

from collections.abc import Mapping
from urllib.parse import quote

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.calls_containers import SLOW, Filters, one
from nemo_jobs.backends.docker.errors import EngineError
from nemo_jobs.backends.docker.session import Session, filters_text
from nemo_jobs.backends.docker.stream import JsonStream


class StoreCalls:
    """Part of `DockerEngine`."""

    _session: Session

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
        return await self._session.found(f"/volumes/{one(name)}")

    async def volume_list(self, filters: Filters) -> list[Json]:
        answer = await self._session.json("GET", "/volumes", {"filters": filters_text(filters)})
        return list(answer.get("Volumes") or [])

    async def volume_remove(self, name: str, *, force: bool = False) -> bool:
        """Remove it with its content; False when it isn't there. 409: a container uses it."""
        try:
            query = {"force": "1" if force else "0"}
            await self._session.status("DELETE", f"/volumes/{one(name)}", query, seconds=SLOW)
        except EngineError as error:
            if error.missing:
                return False
            raise
        return True

    # Networks

    async def network_inspect(self, name: str) -> Json | None:
        return await self._session.found(f"/networks/{one(name)}")

    async def network_disconnect(self, network: str, container: str, *, force: bool = False) -> bool:
        """Take a container off a network; False when either isn't there."""
        body = {"Container": container, "Force": force}
        try:
            await self._session.json("POST", f"/networks/{one(network)}/disconnect", {}, body)
        except EngineError as error:
            if error.missing:
                return False
            raise
        return True


def _path(name: str) -> str:
    """The name of an image, whose slashes are its own."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is no name of an image")
    return quote(name, safe="/:@")

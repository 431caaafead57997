"""How much room the engine has for images, as far as that can be known.

The engine's interface tells where it keeps images, but not how much is free there. For an engine on
this host, reached by a socket file, the folder is looked at through the engine's own view of the
file system. Of any other engine nothing is known, and of a quota below the file system neither.
"""

import asyncio
import os
import socket
import struct
from dataclasses import dataclass

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.calls import DockerEngine

#: Where engines that leave images to containerd have them, unless it was set up otherwise.
_CONTAINERD = "/var/lib/containerd"


@dataclass(frozen=True, slots=True)
class Room:
    """`free` bytes in `folder`; None when it can't be known, `unknown` says why."""

    folder: str = ""
    free: int | None = None
    unknown: str = ""


class Disk:
    """The disk of one engine."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine

    async def places(self) -> tuple["Place", ...]:
        """Where images are, to be measured again and again while the engine lives. Raises
        EngineError, EngineAway."""
        info = await self._engine.info()
        folder = str(info.get("DockerRootDir") or "")
        if not folder or not self._engine.local:
            return ()
        pid = await asyncio.to_thread(_peer, self._engine.address.path)
        if pid <= 0:
            return ()
        return tuple(Place(name, pid) for name in _folders(info, folder))

    async def room(self) -> Room:
        """The least of what is free where images are. Raises EngineError, EngineAway."""
        return await asyncio.to_thread(measure, await self.places())


@dataclass(frozen=True, slots=True)
class Place:
    """A folder as the process `pid` sees it."""

    folder: str
    pid: int

    def free(self) -> int | None:
        # As another user than root the engine's own view is closed; ours is the same one unless
        # the engine runs in a container, of which there is no sign then.
        for path in (f"/proc/{self.pid}/root{self.folder}", self.folder):
            try:
                found = os.statvfs(path)
            except OSError:
                continue
            return found.f_bavail * found.f_frsize
        return None


def measure(places: tuple[Place, ...]) -> Room:
    """The place with the least room: an image needs it in each."""
    rooms = [Room(place.folder, free) for place in places if (free := place.free()) is not None]
    if rooms:
        return min(rooms, key=lambda one: one.free or 0)
    return Room(unknown="the engine is on another host, or its files can't be seen from here")


def _folders(info: Json, folder: str) -> list[str]:
    status = info.get("DriverStatus")
    if isinstance(status, list) and any("io.containerd.snapshotter" in str(line) for line in status):
        return [_CONTAINERD, folder]
    return [folder]


def _peer(path: str) -> int:
    """The process that listens on a socket file; 0 when it is of another process namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(2)
        try:
            sock.connect(path)
            found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return 0
    return int(struct.unpack("3i", found)[0])

"""Which user an image runs as, by number: that user's are the folders of a task."""

import io
import tarfile
from collections.abc import Iterable

from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineError
from nemo_jobs.backends.docker.volumes import Owner

_MOST_BYTES = 4 << 20  # of a file of accounts
_MOST_IMAGES = 256
_MOST_ID = 2**31 - 1


class Users:
    """Looks into an image once."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._known: dict[tuple[str, str], Owner] = {}

    async def owner(self, image_id: str, user: str, container: str) -> Owner:
        """The numbers of `user`, as an image names it; `container` is made of that image. One that
        the image doesn't know is root here: the engine refuses it at the start, and says so."""
        name, _, group = user.partition(":")
        if not name or name in ("0", "root"):
            return Owner(0, _number(group) or 0)
        if (number := _number(name)) is not None and (not group or group.isdigit()):
            return Owner(number, _number(group) or 0)
        key = (image_id, user)
        if key not in self._known:
            if len(self._known) >= _MOST_IMAGES:
                self._known.clear()
            self._known[key] = await self._look_up(container, name, group)
        return self._known[key]

    async def _look_up(self, container: str, name: str, group: str) -> Owner:
        number = _number(name)
        uid, gid = number or 0, 0
        for line in await self._lines(container, "/etc/passwd"):
            fields = line.split(":")
            if len(fields) > 3 and (fields[0] == name or _number(fields[2]) == number is not None):
                uid, gid = _number(fields[2]) or 0, _number(fields[3]) or 0
                break
        if group:
            gid = _number(group) or 0
            for line in await self._lines(container, "/etc/group"):
                fields = line.split(":")
                if len(fields) > 2 and fields[0] == group:
                    gid = _number(fields[2]) or 0
                    break
        return Owner(uid, gid)

    async def _lines(self, container: str, path: str) -> Iterable[str]:
        """The lines of a file; none when it isn't there or is no file. Links inside /etc are few, and
        whoever makes one has to name users by number."""
        data = b""
        try:
            async with self._engine.get_archive(container, path) as pieces:
                async for piece in pieces:
                    data += piece
                    if len(data) > _MOST_BYTES:
                        return []
        except EngineError as error:
            if error.missing:
                return []
            raise
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            entry = tar.next()
            file = tar.extractfile(entry) if entry is not None and entry.isreg() else None
            return file.read().decode("utf-8", "replace").splitlines() if file else []


def _number(text: str) -> int | None:
    return min(int(text), _MOST_ID) if text.isascii() and text.isdigit() and len(text) < 12 else None

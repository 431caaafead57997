"""Whether the service that created a container still is about to start it.

Each open backend holds a socket without a file under a name of its own, which the system takes away
with the process. Whoever finds a container that was created and not started asks for that name.
"""

import contextlib
import secrets
import socket


class Creator:
    """The mark of one open backend, as `host:name`."""

    def __init__(self, host_id: str) -> None:
        self._host = host_id
        name = secrets.token_hex(8)
        self.mark = f"{host_id}:{name}"
        self._held: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):  # no system but Linux has such names
            self._held.bind(_address(name))

    def lives(self, mark: str) -> bool:
        """Whether another one than this is there; True also where that can't be known."""
        host, _, name = mark.partition(":")
        if mark == self.mark or not name:
            return False
        if host != self._host:
            return True
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(_address(name))
            except OSError:
                return False
        return True

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


def _address(name: str) -> str:
    return f"\0nemo-jobs-{name}"

"""A bounded number of connections, kept open between calls."""

from nemo_jobs.backends.docker.errors import EngineAway


class Exchange:
    """One call under way: its answer's head is here, its body comes by `read`."""

    status = 0
    headers: dict[str, str]

    async def read(self) -> bytes:
        """The next piece of the body; empty at its end. Raises EngineAway."""
        raise EngineAway("not connected")

    def close(self) -> None:
        """Give the connection back, or close it when the answer wasn't read to its end."""

"""Wake-ups between services on one PostgreSQL, gathered for a moment and sent together.

They are sent after the commit, beside it: NOTIFY inside a transaction would make all commits
wait for each other. A lost one costs time only, since everybody also looks by time.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Any

import psycopg

from nemo_jobs.store.driver import Wakes

log = logging.getLogger(__name__)

CHANNEL = "nemo_jobs"
GATHER_SECONDS = 0.002
PAYLOAD = 7900  # bytes in a NOTIFY, at most
RETRY_SECONDS = 0.5
_ALL = (("work", ""), ("job", ""), ("logs", ""))


class Notes:
    """Sends this process's wake-ups to others and theirs to those who listen here."""

    def __init__(
        self,
        options: dict[str, Any],
        wakes: Wakes,
        send: Callable[[str], None],
        doubt: Callable[[object], None],
    ) -> None:
        self._options, self._wakes, self._send, self._doubt = options, wakes, send, doubt
        self._sender = secrets.token_hex(6)
        self._waiting: dict[tuple[str, str], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, wakes: Iterable[tuple[str, str]]) -> None:
        """Tell everybody here now, and the others in a moment."""
        told = list(wakes)
        self._wakes.send(told)
        self._waiting.update(dict.fromkeys(told))
        if self._timer is None and self._waiting:
            self._timer = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._flush)

    def _flush(self) -> None:
        self._timer = None
        lines, size = [self._sender], len(self._sender)
        for topic, key in self._waiting:
            line = f"{topic} {key}"
            if size + len(line) + 1 > PAYLOAD:
                self._send("\n".join(lines))
                lines, size = [self._sender], len(self._sender)
            lines.append(line)
            size += len(line) + 1
        self._waiting.clear()
        self._send("\n".join(lines))

    def missed(self) -> None:
        """What was told meanwhile may be lost: everybody looks."""
        self._wakes.send(_ALL)

    async def listen(self) -> None:
        """Pass on what others tell, for ever; the end of the connection is news as well."""
        first = True
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(**self._options)
                async with connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    if not first:
                        self.missed()
                    first = False
                    async for note in connection.notifies():
                        self._received(note.payload)
            except (psycopg.Error, OSError) as error:
                log.warning("lost the connection for wake-ups: %s", str(error).strip())
                self._doubt(error)
            await asyncio.sleep(RETRY_SECONDS)

    def _received(self, payload: str) -> None:
        sender, *lines = payload.split("\n")
        if sender != self._sender:
            pairs = (line.partition(" ") for line in lines)
            self._wakes.send([(topic, key) for topic, _, key in pairs])

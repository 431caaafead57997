"""What the two kinds of database have in common: the driver's protocol, wake-ups, errors."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nemo_jobs.domain.model import NemoJobsError

log = logging.getLogger(__name__)

T = TypeVar("T")
WakeUp = Callable[[str, str], None]

#: No call waits longer than this for the database, in seconds.
PATIENCE = 4.5


class Locked(NemoJobsError):
    """Another service has this data directory."""


class SchemaTooNew(NemoJobsError):
    """The database was written by a newer program."""


class Driver(Protocol):
    """A kind of database."""

    dialect: str
    problem: str | None
    warnings: tuple[str, ...]

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def write(self, fn: Callable[..., T], args: Any, kw: Any, durable: bool) -> T: ...

    async def read(self, fn: Callable[..., T], args: Any, kw: Any, point: bool) -> T: ...

    def backup(self, path: Path) -> None: ...


class Wakes:
    """Who wants to know of committed changes. A callback must be quick and is only a hint."""

    def __init__(self) -> None:
        self._callbacks: dict[object, WakeUp] = {}

    def subscribe(self, callback: WakeUp) -> Callable[[], None]:
        token = object()
        self._callbacks[token] = callback
        return lambda: self._callbacks.pop(token, None) and None

    def send(self, wakes: Iterable[tuple[str, str]]) -> None:
        for topic, key in wakes:
            for callback in tuple(self._callbacks.values()):
                try:
                    callback(topic, key)
                except Exception:
                    log.exception("a wake-up for %s %s failed", topic, key)


def off_loop(fn: Callable[..., T]) -> Callable[..., T]:
    """Mark a store function that may take long: its statements never run on the event loop."""
    fn.off_loop = True  # type: ignore[attr-defined]
    return fn

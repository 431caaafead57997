"""uvicorn, set up for this service: on a socket that is bound already, signals left alone."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from nemo_jobs.http.transport import OneWriteProtocol


def make_config(app: Any) -> uvicorn.Config:
    """For the ASGI callable `app`. httptools parses about twice as fast as h11; uvloop brought
    nothing here."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return uvicorn.Config(
        app,
        http=OneWriteProtocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=2048,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
    )


def _is_news(record: logging.LogRecord) -> bool:
    """Transfers that a stop of the service cut need no trace each: the server says how many."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class Server(uvicorn.Server):
    """Tells when it can serve, and leaves signals to the service."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def run_on(self, listener: socket.socket) -> None:
        await self.serve(sockets=[listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

"""The service's side of a keeper: find it or start it, ask it, hear of ends.

The truth is in the keeper and its journal; what is remembered here only saves questions.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from nemo_jobs.backends import keeper, keeper_journal
from nemo_jobs.backends.api import Json, Unavailable
from nemo_jobs.backends.keeper_connection import encode
from nemo_jobs.backends.keeper_loop import VERSION

ENDED_STATES = frozenset({"exited", "stopped", "lost", "forgotten"})
_REMEMBERED = 512  # ended jobs whose facts are kept here
_CALL_SECONDS = 10.0
_START_SECONDS = 5.0
_ACK_SECONDS = 0.05  # ends are confirmed in groups
_RETRY_SECONDS = (0.02, 0.1, 0.5, 1.0)


def start_keeper(directory: str) -> None:
    """Run the keeper program; returns when a keeper listens, or holds the lock already.
    Raises Unavailable."""
    Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    library = os.environ.get("LD_LIBRARY_PATH")
    command = [sys.executable, "-I", "-S", "-X", "utf8", keeper.__file__, directory]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"LD_LIBRARY_PATH": library} if library else {},
            cwd="/",
            start_new_session=True,
            timeout=_START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the keeper can't be started: {error}") from error
    if done.returncode not in (0, keeper.LOCKED):
        text = done.stderr.decode(errors="replace").strip().splitlines()
        raise Unavailable(f"the keeper can't be started: {text[-1] if text else 'see keeper.log'}")


class KeeperMemory:
    """What a keeper has told. `hint` is called with each key whose state may have changed."""

    def __init__(self, hint: Callable[[str], None]) -> None:
        self.running: dict[str, Json] = {}
        self._ended: OrderedDict[str, Json] = OrderedDict()
        self._hint = hint

    def known(self, key: str) -> Json | None:
        """What is remembered of a key: exact while connected."""
        return self.running.get(key) or self._ended.get(key)

    def learn(self, key: str, facts: Json) -> None:
        """Facts from an answer, taken at once so that an end told right behind them fits."""
        if facts["state"] in ENDED_STATES:
            self.running.pop(key, None)
            self._remember(key, facts)
        else:
            self.running[key] = facts

    def ended(self, key: str, end: Json) -> None:
        if (facts := self.running.pop(key, None)) is not None:
            self._remember(key, facts | end)
        self._hint(key)

    def greeted(self, jobs: dict[str, Json]) -> list[str]:
        """All that a keeper has in memory; the keys of those that have ended."""
        before = set(self.running)
        self.running.clear()
        for key, facts in jobs.items():
            self.learn(key, facts)
        ended = [key for key in jobs if key not in self.running]
        for key in before.union(ended).difference(self.running):
            self._hint(key)
        return ended

    def forget(self, key: str) -> None:
        self._ended.pop(key, None)

    def _remember(self, key: str, facts: Json) -> None:
        self._ended[key] = facts
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)


class KeeperClient(KeeperMemory):
    """The keeper of one directory."""

    def __init__(self, directory: str, hint: Callable[[str], None]) -> None:
        super().__init__(hint)
        self.directory = directory
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()
        self._again: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def exists(self) -> bool:
        return os.path.isdir(self.directory)

    @property
    def connected(self) -> bool:
        return self._link is not None

    async def connect(self) -> "_Link":
        """Be connected to a keeper, started if there is none; raises Unavailable."""
        async with self._connecting:
            if self._closed:
                raise Unavailable("the backend is closed")
            if self._link is None:
                self._link = await self._connected()
            return self._link

    async def call(self, op: str, *, timeout: float = _CALL_SECONDS, **fields: Any) -> Json:
        """Ask and wait for the answer; raises Unavailable."""
        link = self._link or await self.connect()
        return await link.ask({"op": op, **fields}, timeout)

    async def find(self, keys: Iterable[str]) -> dict[str, Json]:
        """The facts of keys that are known to the keeper or stand in its journal."""
        await self.connect()
        found = {key: facts for key in keys if (facts := self.known(key)) is not None}
        missing = [key for key in keys if key not in found]
        if missing:
            answer = await self.call("look", keys=missing)
            found |= answer["jobs"]
            missing = [key for key in missing if key not in found]
        if missing:
            path = os.path.join(self.directory, keeper_journal.NAME)
            found |= await asyncio.to_thread(keeper_journal.fold, path, frozenset(missing))
        return found

    async def everything(self) -> dict[str, Json]:
        """The facts of all that was started and not removed."""
        path = os.path.join(self.directory, keeper_journal.NAME)
        return await asyncio.to_thread(keeper_journal.fold, path)

    def lost(self) -> None:
        """The connection has gone; the processes have not."""
        self._link = None
        if not self._closed and (self._again is None or self._again.done()):
            self._again = asyncio.get_running_loop().create_task(self._reconnect())

    async def aclose(self) -> None:
        self._closed = True
        if self._again is not None:
            self._again.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._again
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _reconnect(self) -> None:
        """Find the keeper again, or start another one, which takes over what runs."""
        delays = iter(_RETRY_SECONDS)
        while not self._closed and self._link is None:
            try:
                await self.connect()
            except Unavailable:
                await asyncio.sleep(next(delays, _RETRY_SECONDS[-1]))

    async def _connected(self) -> "_Link":
        for _ in range(3):
            link = await self._linked()
            if link is not None:
                return link
            await asyncio.to_thread(start_keeper, self.directory)
        raise Unavailable(f"no keeper answers in {self.directory}; its log is keeper.log there")

    async def _linked(self) -> "_Link | None":
        """Connect and greet; None when there is no keeper."""
        loop = asyncio.get_running_loop()
        try:
            place = os.open(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            # A socket's path may have 107 bytes; the directory's own may be longer.
            path = f"/proc/self/fd/{place}/{keeper.SOCKET}"
            async with asyncio.timeout(_START_SECONDS):
                _, link = await loop.create_unix_connection(lambda: _Link(self), path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"the keeper in {self.directory} can't be reached: {error}") from error
        finally:
            os.close(place)
        try:
            self._check(link, await link.ask({"op": "hello"}, _START_SECONDS))
        except Unavailable:
            link.close()
            if link.refused:  # it was just ending
                return None
            raise
        return link

    def _check(self, link: "_Link", answer: Json) -> None:
        if link.peer_uid() not in (os.geteuid(), 0):
            raise Unavailable(f"the socket in {self.directory} belongs to another user")
        if answer["version"] != VERSION:
            raise Unavailable(
                f"a keeper of another version ({answer['version']}, here {VERSION}) still has jobs in "
                f"{self.directory}; it ends after them"
            )


class _Link(asyncio.Protocol):
    """One connection: requests numbered, answers matched, ends passed on."""

    def __init__(self, client: KeeperClient) -> None:
        self.refused = False
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._number = 0
        self._asked: dict[int, tuple[asyncio.Future[Json], str | None]] = {}
        self._queue: list[bytes] = []
        self._acknowledged: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.refused = True
        self._transport = None
        for future, _ in self._asked.values():
            if not future.done():
                future.set_exception(Unavailable("the keeper has gone; another one takes over", 0.2))
        self._asked.clear()
        if self._client._link is self:
            self._client.lost()

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "end" in message:
                key = message.pop("end")
                self._client.ended(key, message)
                self.acknowledge(key)
            else:
                self._answered(message)

    def peer_uid(self) -> int:
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is None:
            return -1
        return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])

    async def ask(self, request: Json, timeout: float) -> Json:
        """Send and wait; raises Unavailable when no answer comes in time."""
        if self._transport is None:
            raise Unavailable("the keeper has gone; another one takes over", 0.2)
        self._number += 1
        number = self._number
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Json] = loop.create_future()
        self._asked[number] = (future, request.get("key"))
        self._send(encode({"id": number, **request}))
        limit = loop.call_later(timeout, _give_up, future, timeout)
        try:
            return await future
        finally:
            limit.cancel()
            self._asked.pop(number, None)

    def acknowledge(self, key: str) -> None:
        if not self._acknowledged:
            asyncio.get_running_loop().call_later(_ACK_SECONDS, self._send_acknowledged)
        self._acknowledged.append(key)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _answered(self, message: Json) -> None:
        future, key = self._asked.pop(message.pop("id"), (None, None))
        if key is not None and "job" in message:
            self._client.learn(key, message["job"])
        if message.get("version") == VERSION:
            for ended in self._client.greeted(message["jobs"]):
                self.acknowledge(ended)
        else:
            for other, facts in message.get("jobs", {}).items():
                self._client.learn(other, facts)
        if future is not None and not future.done():
            future.set_result(message)

    def _send_acknowledged(self) -> None:
        keys, self._acknowledged = self._acknowledged, []
        self._send(encode({"op": "ack", "keys": keys}))

    def _send(self, line: bytes) -> None:
        """Queue a line; all of one turn of the loop leave in one write."""
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._flush)
        self._queue.append(line)

    def _flush(self) -> None:
        data = b"".join(self._queue)
        self._queue.clear()
        if self._transport is not None:
            self._transport.write(data)


def _give_up(future: asyncio.Future[Json], seconds: float) -> None:
    if not future.done():
        future.set_exception(Unavailable(f"the keeper did not answer within {seconds:g} s"))

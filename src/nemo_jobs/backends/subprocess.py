"""Work as processes of this host, started and waited for by a keeper that outlives the service.

No isolation and no limits: for trusted work. Output goes straight to files beside the keeper's
journal, so nothing is lost while the service is away.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_jobs.backends import keeper_files, keeper_journal, subprocess_results, subprocess_storage
from nemo_jobs.backends.api import (
    Capabilities,
    Handle,
    Health,
    Json,
    Left,
    LeftChanged,
    LeftFile,
    LogPiece,
    Observation,
    Phase,
    Plan,
    Rejected,
    Unavailable,
)
from nemo_jobs.backends.environment import INHERITED
from nemo_jobs.backends.hints import Hints
from nemo_jobs.backends.keeper_client import ENDED_STATES, KeeperClient
from nemo_jobs.backends.keeper_process import boot_id
from nemo_jobs.backends.subprocess_facts import observation
from nemo_jobs.backends.subprocess_files import erase, release
from nemo_jobs.backends.subprocess_identity import VARIABLE, erase_token, write_token
from nemo_jobs.backends.subprocess_output import OutputReader, OutputWatcher, Waker, WipesOutput
from nemo_jobs.backends.subprocess_plan import start_request
from nemo_jobs.domain.clock import Clock

NAME = "subprocess"
HANDLE_VERSION = 1
_LEAST_FREE = 16 << 20  # bytes of the data directory's disk below which no work is taken
_ERASE_SECONDS = 30.0
_KILL_SECONDS = 15.0
_LOOK_SECONDS = 120.0
_ELSEWHERE_TRIES = 3


class HostProcesses(WipesOutput):
    """What is known here of the processes of keepers, and their output."""

    def __init__(
        self, data_dir: Path, *, host_id: str, clock: Clock, inherited: Mapping[str, str] = os.environ
    ) -> None:
        self.name = NAME
        self._inherited = {name: inherited[name] for name in INHERITED if name in inherited}
        self._keeper_dir = os.path.join(os.path.abspath(data_dir), "keeper")
        self._host = host_id
        self._boot = boot_id()
        self._node = socket.gethostname()
        self._clock = clock
        self._keepers: dict[str, KeeperClient] = {}
        self._watcher = OutputWatcher()
        self._wakers: dict[str, set[Waker]] = {}
        self._hints = Hints()

    async def start(self) -> None:
        await self._keeper(self._keeper_dir).connect()

    async def aclose(self) -> None:
        for keeper in self._keepers.values():
            await keeper.aclose()
        self._watcher.close()
        self._hints.close()

    def changes(self) -> AsyncIterator[str]:
        """Keys as soon as they end; also those that a new keeper knows nothing of."""
        return self._hints.changes()

    def running(self) -> int:
        return sum(len(keeper.running) for keeper in self._keepers.values())

    async def logs(self, handle: Handle, cursor: Json | None) -> AsyncIterator[LogPiece]:
        out = handle.data["out"]
        reader = OutputReader(handle.data["task"], out, cursor, self._clock)
        try:
            if await self._has_ended(handle):  # nothing to watch: all that will come is there
                while pieces := list(reader.read()):
                    for piece in pieces:
                        yield piece
                return
            with self._watcher.watching(out) as waker, self._waking(handle.key, waker):
                while True:
                    waker.clear()
                    ended = await self._has_ended(handle)
                    pieces = list(reader.read())
                    for piece in pieces:
                        yield piece
                    if ended and not pieces:
                        return
                    if not pieces:
                        await waker.wait()
        finally:
            reader.close()

    async def left(self, handle: Handle, most_bytes: int) -> Left | None:
        directory = self._results_of(handle)
        if directory is None or subprocess_results.is_empty(directory):  # nearly always: no thread
            return None
        try:
            root = handle.data["root"]
            async with asyncio.timeout(_LOOK_SECONDS):
                return await asyncio.to_thread(subprocess_results.look_through, root, directory, most_bytes)
        except TimeoutError as error:
            raise Unavailable(f"looking through {directory} takes more than {_LOOK_SECONDS:g} s") from error
        except OSError as error:
            return Left((), (f"the directory of results can't be read: {error.strerror}",))

    async def read_left(self, handle: Handle, file: LeftFile) -> AsyncIterator[bytes]:
        directory = self._results_of(handle)
        if directory is None:
            raise LeftChanged("it is on another host")
        pieces = subprocess_results.read(handle.data["root"], directory, file)
        try:
            while piece := await asyncio.to_thread(next, pieces, b""):
                yield piece
        finally:
            with contextlib.suppress(ValueError):  # a thread still reads it, and closes it when done
                pieces.close()

    def _results_of(self, handle: Handle) -> str | None:
        here = handle.data["host"] == self._host
        return os.path.join(handle.data["task_dir"], keeper_files.RESULTS_NAME) if here else None

    async def trim(self, handle: Handle, cursor: Json) -> None:
        for suffix, position in cursor.items():
            path = f"{handle.data['out']}.{suffix}"
            with contextlib.suppress(OSError):
                if os.stat(path).st_blocks * 512 > 1 << 20:
                    await asyncio.to_thread(release, path, int(position))

    def _keeper(self, directory: str) -> KeeperClient:
        if directory not in self._keepers:
            self._keepers[directory] = KeeperClient(directory, self._hint)
        return self._keepers[directory]

    def _hint(self, key: str) -> None:
        for waker in self._wakers.get(key, ()):
            waker.wake()
        self._hints.tell(key)

    @contextlib.contextmanager
    def _waking(self, key: str, waker: Waker) -> Iterator[None]:
        wakers = self._wakers.setdefault(key, set())
        wakers.add(waker)
        try:
            yield
        finally:
            wakers.discard(waker)
            if not wakers and self._wakers.get(key) is wakers:
                del self._wakers[key]

    async def _has_ended(self, handle: Handle) -> bool:
        try:
            facts = await self._facts([handle])
        except Unavailable:
            return False  # the processes live on and write
        return handle.key not in facts or facts[handle.key]["state"] in ENDED_STATES

    async def _facts(self, handles: Sequence[Handle]) -> dict[str, Json]:
        """What the keepers know of these; a key is missing when nothing is known."""
        found: dict[str, Json] = {}
        asked: dict[str, list[str]] = {}
        for handle in handles:
            directory = handle.data["keeper_dir"]
            keeper = self._keeper(directory)
            facts = keeper.known(handle.key) if keeper.connected else None
            if facts is not None:
                found[handle.key] = facts
            else:
                asked.setdefault(directory, []).append(handle.key)
        for directory, keys in asked.items():
            keeper = self._keeper(directory)
            if keeper.exists:
                found |= await keeper.find(keys)
        return found


class SubprocessBackend(HostProcesses):
    """The host backend. Handles name the keeper that knows the work, so that one object here
    serves the work of every service of this host."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(persistent_storage=True, on_host=True)

    async def probe(self) -> Health:
        try:
            free = shutil.disk_usage(os.path.dirname(self._keeper_dir)).free
            if free < _LEAST_FREE:
                few = f"has {free >> 20} MiB left, and {_LEAST_FREE >> 20} are needed; make room"
                return Health(False, f"the disk of {self._keeper_dir} {few}")
            await self._keeper(self._keeper_dir).connect()
        except (Unavailable, OSError) as error:
            return Health(False, str(error))
        return Health(True, version=f"keeper {HANDLE_VERSION}")

    def render(self, plan: Plan) -> Json:
        request = start_request(plan, self._inherited)
        env = {name: value for name, value in request["env"].items() if name not in plan.secret_env}
        return {**request, "env": env}

    async def submit(self, plan: Plan) -> Handle:
        request = start_request(plan, self._inherited)
        if plan.earlier:
            await self._take_over(plan, request["root"], keeper_files.attempt_of(request["dir"]))
        if plan.token:
            await self._give_token(plan, request["env"])
        try:
            return await self._start(plan, request)
        except Rejected:
            erase_token(self._keeper_dir, plan.key)
            raise

    async def _start(self, plan: Plan, request: Json) -> Handle:
        for attempt in range(_ELSEWHERE_TRIES):
            answer = await self._keeper(self._keeper_dir).call("start", **request)
            if answer.get("kind") != "exists":
                return self._handle(plan.key, request, self._keeper_dir, answer)
            found = await self._started_elsewhere(plan.key, request)
            if found is not None:
                return found
            await asyncio.sleep(0.1 * attempt)  # another keeper may be taking a failed start back
        # Its directory is there and nobody knows why: it must not run again, and is seen as lost.
        return self._handle(plan.key, request, self._keeper_dir, {"job": {"state": "forgotten"}})

    async def _give_token(self, plan: Plan, env: dict[str, str]) -> None:
        try:
            env[VARIABLE] = await asyncio.to_thread(write_token, self._keeper_dir, plan.key, plan.token)
        except OSError as error:
            raise Unavailable(f"the token of the task can't be written: {error}") from error

    async def _take_over(self, plan: Plan, root: str, attempt_dir: str) -> None:
        """Move the storage of an earlier attempt here, once nothing of that one runs any more."""
        places: list[str] = []
        ran: list[Handle] = []
        for each in plan.earlier:
            place, handle = f"{os.path.dirname(attempt_dir)}/{each.attempt_id}", each.handle
            if handle is not None and handle.data["host"] == self._host:
                ran.append(handle)
                # Another profile shares its storage with this one if their directories are the same.
                place = handle.data["attempt_dir"] if each.own else place
            places.append(place)
        known = any(each.own or each.handle.data["root"] == root for each in plan.earlier if each.handle)
        facts = await self._facts([handle for handle in ran if handle.data["boot"] == self._boot])
        busy = [key for key, fact in facts.items() if fact["state"] not in ENDED_STATES]
        if busy:
            raise Unavailable(f"work of an earlier attempt is still ending ({busy[0]})", retry_after=0.5)
        await asyncio.to_thread(
            subprocess_storage.take_over, attempt_dir, root, places, needed=plan.needs_storage and known
        )

    async def find(self, plan: Plan) -> Handle | None:
        """Looks at every keeper of this host that has served the profile's working directory."""
        try:
            request = start_request(plan, self._inherited)
        except Rejected:
            return None  # what can't be started was not started
        for directory in {self._keeper_dir, *keeper_files.registered(request["root"])}:
            path = os.path.join(directory, keeper_journal.NAME)
            if not os.path.exists(path):
                continue
            if plan.key in await asyncio.to_thread(keeper_journal.fold, path, frozenset({plan.key})):
                facts = (await self._keeper(directory).find([plan.key])).get(plan.key)
                if facts is not None:
                    return self._handle(plan.key, request, directory, {"job": facts})
        return None

    async def observe(self, handles: Sequence[Handle]) -> dict[str, Observation]:
        here = [handle for handle in handles if handle.data["host"] == self._host]
        facts = await self._facts(here)
        now = self._clock.now()
        seen = {}
        for handle in handles:
            if handle.data["host"] != self._host:
                message = f"The process is on the host {handle.data.get('node', '?')}; this is {self._node}."
                seen[handle.key] = Observation(Phase.WAITING, (), "host_unreachable", message, now)
                continue
            restarted = handle.data["boot"] != self._boot
            seen[handle.key] = observation(handle, facts.get(handle.key), now, restarted=restarted)
        return seen

    async def stop(self, handle: Handle, grace: float) -> None:
        if self._is_here(handle):
            await self._keeper(handle.data["keeper_dir"]).call("stop", key=handle.key, grace=grace)

    async def remove(self, handle: Handle, *, wipe_storage: bool = False) -> None:
        data = handle.data
        if data["host"] != self._host:
            raise Unavailable(f"the files of {handle.key} are on another host", retry_after=60.0)
        keeper = self._keeper(data["keeper_dir"])
        if keeper.exists:
            await self._asked(keeper, "kill", handle.key)
        await asyncio.to_thread(_erase, data, time.monotonic() + _ERASE_SECONDS, wipe_storage)
        erase_token(data["keeper_dir"], handle.key)
        if keeper.exists:
            await self._asked(keeper, "forget", handle.key)
        keeper.forget(handle.key)
        self._hint(handle.key)

    async def handles(self) -> AsyncIterator[Handle]:
        for key, facts in (await self._keeper(self._keeper_dir).everything()).items():
            yield self._handle(key, facts, self._keeper_dir, {"job": facts})

    def _is_here(self, handle: Handle) -> bool:
        return handle.data["host"] == self._host and self._keeper(handle.data["keeper_dir"]).exists

    async def _asked(self, keeper: KeeperClient, op: str, key: str) -> None:
        answer = await keeper.call(op, key=key, timeout=_KILL_SECONDS)
        if "error" in answer:
            raise Unavailable(answer["error"], retry_after=1.0)

    async def _started_elsewhere(self, key: str, request: Json) -> Handle | None:
        """The same start at the keeper of another service that has begun it."""
        for directory in keeper_files.registered(request["root"]):
            path = os.path.join(directory, keeper_journal.NAME)
            if directory == self._keeper_dir:
                continue
            if key in await asyncio.to_thread(keeper_journal.fold, path, frozenset({key})):
                answer = await self._keeper(directory).call("start", **request)
                if answer.get("kind") != "exists":
                    return self._handle(key, request, directory, answer)
        return None

    def _handle(self, key: str, request: Mapping[str, Any], directory: str, answer: Json) -> Handle:
        if "error" in answer:
            if answer["kind"] == "unavailable":
                raise Unavailable(answer["error"])
            raise Rejected(answer["error"], answer.get("reason", "rejected"))
        facts = answer["job"]
        data = {
            "host": self._host,
            "node": self._node,
            "boot": facts.get("boot", self._boot),
            "keeper_dir": directory,
            "task": request["task"],
            "root": request["root"],
            "task_dir": request["dir"],
            "attempt_dir": keeper_files.attempt_of(request["dir"]),
            "out": keeper_files.out_of(directory, request["task"]),
            "pid": facts.get("pid"),
            "pid_start": facts.get("start"),
        }
        return Handle(NAME, key, HANDLE_VERSION, data)


def _erase(data: Json, deadline: float, storage: bool) -> None:
    """Delete what a task left, with `storage` also what its attempt's steps shared."""
    own = os.path.dirname(os.path.dirname(data["task_dir"])) == data["attempt_dir"]
    if storage and own and data["attempt_dir"].startswith(data["root"] + "/"):
        subprocess_storage.wipe(data["attempt_dir"], data["root"], deadline)
    erase(data["task_dir"], data["out"], data["attempt_dir"], data["root"], deadline)

"""The keeper's loop: requests in, processes started, their ends written down and told.

    start ---> S in the journal -> directories -> spawn -> R in the journal -> answer
    SIGCHLD -> wait4 -> E in the journal -> told to every client, again at each greeting until
               one has confirmed it
    stop ----> SIGTERM to the whole tree ... SIGKILL after the grace ... gone -> E, told

One thread, nothing blocks: what takes long (removing directories) is the client's. Standard
library only.
"""

import errno
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from nemo_jobs.backends import keeper_files as files
from nemo_jobs.backends import keeper_journal as journals
from nemo_jobs.backends import keeper_process as proc
from nemo_jobs.backends.keeper_connection import Closed, Connection, encode
from nemo_jobs.backends.keeper_ends import Ends
from nemo_jobs.backends.keeper_trees import Job

Json = dict[str, Any]

VERSION = 1
STARTS_PER_TURN = 2
MAX_CLIENTS = 64
_ASKED = frozenset({"task", "root", "dir", "grace"})
_SOCKET_LOOK = 1.0  # seconds between looks whether the socket is still there, while nobody is connected
_QUIET = 0.5  # seconds without requests before the journal is compacted
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS})


class Keeper:
    """Serves the jobs of one directory until nothing is left to keep."""

    def __init__(self, directory: str, idle: float) -> None:
        self.directory = directory
        self.identity = files.identity_of(directory)
        self.idle = idle
        self.boot = proc.boot_id()
        files.make_out(directory)
        self.journal = journals.Journal(directory)
        self.ends = Ends(self.journal, self._tell)
        self._started = proc.StartTimes()
        self._roots: set[str] = set()
        self._places: set[str] = set()
        self._starts: deque[tuple[Connection, Json]] = deque()
        self._clients: set[Connection] = set()
        self._selector = self.ends.selector
        self._child_ended = True
        self._terminated = False
        self._seen_at = 0.0
        self._active_at = time.monotonic()

    def serve(self, listener: socket.socket, path: str, again: Callable[[], socket.socket]) -> None:
        """Run until nothing runs and nobody is connected for `idle` seconds.

        The socket at `path` is made `again` when somebody removed it: the lock is held until all jobs
        have ended, so a service that can't find this keeper could not start another one either.
        """
        self._listen(listener)
        self._path, self._again = path, again
        while not self._may_end():
            try:
                self._turn()
            except Exception:  # a fault must not cost the exit codes of all jobs
                _log_fault()
                time.sleep(0.05)
        if self.journal.worth_compacting():
            self.journal.compact()

    def _turn(self) -> None:
        wait = 0.0 if self._starts else self._next_look()
        for event, _ in self._selector.select(wait):
            event.data()
        self._reap()
        for _ in range(min(STARTS_PER_TURN, len(self._starts))):
            connection, request = self._starts.popleft()
            self._answer(connection, request, self._start)
        self._reap()
        self.ends.attend()
        if not self._clients:
            self._see_to_socket()
        for connection in list(self._clients):
            if connection.waiting:
                self._flush(connection)
        quiet = not self._starts and time.monotonic() - self._active_at > _QUIET
        if quiet and self.journal.worth_compacting():
            self.journal.compact()

    def _reap(self) -> None:
        if self._child_ended:
            self._child_ended = False
            self.ends.reap()

    def _listen(self, listener: socket.socket) -> None:
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: setattr(self, "_child_ended", True))
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_terminated", True))
        self._selector.register(read, selectors.EVENT_READ, lambda: os.read(read, 4096))
        self._await_clients(listener)

    def _await_clients(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def _see_to_socket(self) -> None:
        """Nobody is connected, so whoever comes needs the socket."""
        now = time.monotonic()
        if now < self._seen_at + _SOCKET_LOOK:
            return
        self._seen_at = now
        if not os.path.lexists(self._path):
            listener = self._again()
            self._selector.unregister(self._listener)
            self._listener.close()
            self._await_clients(listener)

    def _may_end(self) -> bool:
        if self.ends.busy or self._starts:
            return False
        if self._terminated:
            return True
        return not self._clients and time.monotonic() - self._active_at > self.idle

    def _next_look(self) -> float:
        """Seconds until something is due by itself."""
        now = time.monotonic()
        due = self.ends.next_look(now)
        if not self._clients:
            due = min(due, self._seen_at + _SOCKET_LOOK)
            if not self.ends.busy:
                due = min(due, self._active_at + self.idle + 0.01)
        if self.journal.worth_compacting():
            due = min(due, now + _QUIET)
        return max(0.0, due - now)

    # -- clients -----------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (os.geteuid(), 0) or len(self._clients) >= MAX_CLIENTS:
            sock.close()
            return
        sock.setblocking(False)
        connection = Connection(sock)
        self._clients.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._ready(connection))

    def _ready(self, connection: Connection) -> None:
        operations = {
            "hello": self._hello, "look": self._look, "stop": self._stop,
            "kill": self._kill, "ack": self._ack, "forget": self._forget,
        }  # fmt: skip
        self._active_at = time.monotonic()
        try:
            for request in connection.receive():
                operation = str(request.get("op"))
                if operation == "start":
                    self._starts.append((connection, request))
                else:
                    self._answer(connection, request, operations.get(operation, _unknown))
        except Closed:
            self._drop(connection)
            return
        self._flush(connection)

    def _answer(self, connection: Connection, request: Json, operation: "Operation") -> None:
        """The boundary of a request: a fault in it is told and logged, and the keeper lives on."""
        try:
            answer = operation(connection, request)
        except Exception as error:
            _log_fault()
            answer = {"error": f"the keeper failed: {error!r}", "kind": "unavailable"}
        if answer is not None:
            connection.put(encode({"id": request.get("id"), **answer}))

    def _flush(self, connection: Connection) -> None:
        try:
            connection.flush()
        except Closed:
            self._drop(connection)
            return
        if connection.waiting != connection.blocked:
            connection.blocked = connection.waiting
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.blocked else 0)
            known = self._selector.get_key(connection.sock)
            self._selector.modify(connection.sock, events, known.data)

    def _drop(self, connection: Connection) -> None:
        if connection in self._clients:
            self._clients.discard(connection)
            self._selector.unregister(connection.sock)
            connection.sock.close()
            self._active_at = time.monotonic()

    def _tell(self, key: str, end: Json) -> None:
        line = encode({"end": key, **end})
        for connection in self._clients:
            if connection.greeted:
                connection.put(line)

    # -- requests ----------------------------------------------------------------------------

    def _hello(self, connection: Connection, request: Json) -> Json:
        connection.greeted = True
        jobs = {key: job.facts for key, job in self.ends.jobs.items()}
        return {"version": VERSION, "pid": os.getpid(), "boot": self.boot, "jobs": jobs}

    def _look(self, connection: Connection, request: Json) -> Json:
        jobs = self.ends.jobs
        return {"jobs": {key: jobs[key].facts for key in request["keys"] if key in jobs}}

    def _stop(self, connection: Connection, request: Json) -> Json:
        self.ends.stop(request["key"], float(request["grace"]))
        return {}

    def _kill(self, connection: Connection, request: Json) -> None:
        number = request["id"]
        self.ends.kill(request["key"], lambda: connection.put(encode({"id": number})))

    def _ack(self, connection: Connection, request: Json) -> None:
        for key in request["keys"]:
            self.ends.confirm(key)

    def _forget(self, connection: Connection, request: Json) -> Json:
        key = request["key"]
        self.ends.confirm(key)
        if key in self.ends.jobs:
            return {"error": "it has not ended", "kind": "unavailable"}
        self.journal.append(journals.FORGOTTEN, key, {})
        return {}

    def _start(self, connection: Connection, request: Json) -> Json:
        key = request["key"]
        if (known := self._known(key, request["dir"])) is not None:
            return known
        try:
            if request["root"] not in self._roots:
                files.check_root(request["root"])
                files.register(request["root"], self.directory, self.identity)
                self._roots.add(request["root"])
            return {"job": _told(self._start_new(key, request))}
        except FileExistsError:
            return {"error": "its directory exists already", "kind": "exists"}
        except files.Refused as error:
            return {"error": str(error), "kind": "rejected"}
        except OSError as error:
            return self._failure(error, request["program"])

    def _known(self, key: str, task_dir: str) -> Json | None:
        """The answer for a key that has been started before, also by an earlier keeper."""
        if (job := self.ends.jobs.get(key)) is not None:
            return {"job": _told(job.facts)}
        recent = key in self.ends.recent
        if recent or os.path.lexists(task_dir):
            facts = self.journal.recall(key)
            if facts is not None or recent:
                return {"job": _told(facts or {"state": "forgotten"})}
            return {"error": "its directory exists already", "kind": "exists"}
        return None

    def _start_new(self, key: str, request: Json) -> Json:
        out = files.out_of(self.directory, request["task"])
        facts: Json = {name: request[name] for name in ("task", "root", "dir", "grace")}
        facts |= {"boot": self.boot, "state": "starting"}
        self.journal.append(journals.STARTING, key, facts)
        try:
            files.make_task(request["root"], request["dir"], request["config"], self.identity)
            if (place := os.path.dirname(out)) not in self._places:
                os.makedirs(place, exist_ok=True)
                self._places.add(place)
            os.chdir(request["dir"])
            mark = proc.mark_of(request["task"])
            self._started.before()
            pid = proc.spawn(request["argv"], request["program"], request["env"], out, mark)
        except BaseException as error:
            if not isinstance(error, FileExistsError):
                files.take_back(request["root"], request["dir"], out, self.identity)
            self.journal.append(journals.VOID, key, {})
            raise
        finally:
            os.chdir("/")
        ran: Json = {"state": "running", "pid": pid, "start": self._started.of(pid)}
        ran["began"] = time.time_ns() // 1000
        facts |= ran
        self.ends.started(Job(key, facts))
        try:
            self.journal.append(journals.RUNNING, key, ran)
        except OSError as error:  # found by its marker, should this keeper be killed
            print(f"journal: {error}", file=sys.stderr, flush=True)
        return facts

    def _failure(self, error: OSError, program: str) -> Json:
        """What an error of the operating system at a start means for the plan."""
        text = f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
        if error.errno in _FULL or not all(map(os.path.isdir, self._places)):
            self._places.clear()
            return {"error": f"the host can't start work now: {text}", "kind": "unavailable"}
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            return {"error": f"the host could not make another process: {text}", "kind": "rejected"}
        if error.errno == errno.E2BIG:
            text = "the command and the environment are larger than the system allows"
            return {"error": text, "kind": "rejected"}
        if error.filename not in (None, program):
            return {"error": f"the task's directory can't be made: {text}", "kind": "rejected"}
        if error.errno == errno.ENOENT and os.path.exists(program):
            text = "the interpreter that its first line names was not found"
        text = f"the program {program!r} could not be started: {text}"
        return {"error": text, "kind": "rejected", "reason": "program_not_found"}


def _told(facts: Json) -> Json:
    """The facts without those that whoever asks for the start has himself."""
    return {name: value for name, value in facts.items() if name not in _ASKED}


def _log_fault() -> None:
    import traceback  # rarely needed, and large

    traceback.print_exc(file=sys.stderr)


Operation = Callable[[Connection, Json], Json | None]


def _unknown(connection: Connection, request: Json) -> Json:
    return {"error": f"unknown operation {request.get('op')!r}", "kind": "unavailable"}

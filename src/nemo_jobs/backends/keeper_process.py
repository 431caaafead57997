"""Processes as the keeper sees them: starting one, reading /proc, signalling without mistakes.

A pid is only a number until it is compared with the start time of its process. Standard library
only: the keeper runs this.
"""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Json = dict[str, Any]

MARKER = b"NEMO_JOB_TASK="


class Process(NamedTuple):
    """One line of /proc. `start` is in clock ticks since boot and tells apart users of a pid."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    state: str
    start: int

    @property
    def alive(self) -> bool:
        return self.state not in ("Z", "X")


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def ticks_now() -> int:
    """The present in the unit of `Process.start`."""
    with open("/proc/uptime") as file:
        return int(float(file.read().split()[0]) * os.sysconf("SC_CLK_TCK"))


class StartTimes:
    """The start times of our own children, from the clock that the kernel takes them from.

    Two readings around a spawn that fall into one tick say what `/proc` would; reading it there
    costs as much as a fifth of the spawn. The first one is read, and shows whether both agree.
    """

    def __init__(self) -> None:
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._trusted: bool | None = None
        self._before = 0

    def before(self) -> None:
        """Call right before the spawn."""
        self._before = self._now()

    def of(self, pid: int) -> int:
        """The start time of the child that was spawned since; 0 when it can't be known."""
        after = self._now()
        if self._trusted and self._before == after:
            return after
        found = process(pid)
        start = found.start if found else 0
        if start and self._before == after:
            self._trusted = start == after
        return start

    def _now(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * self._ticks // 1_000_000_000


def process(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    # The program's name stands in parentheses and may itself contain any byte.
    rest = text[text.rfind(b")") + 2 :].split()
    if len(rest) < 20:
        return None
    return Process(pid, int(rest[1]), int(rest[2]), int(rest[3]), rest[0].decode(), int(rest[19]))


def processes() -> dict[int, Process]:
    """Every process of the machine."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {p.pid: p for p in found if p is not None}


def has_children_files() -> bool:
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def children(pid: int) -> list[int]:
    """The children of every thread of `pid`; needs `has_children_files`."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.read().split())
    return found


def own_children() -> list[int]:
    """The same for this process, which has one thread."""
    pid = os.getpid()
    with open(f"/proc/self/task/{pid}/children", "rb", buffering=0) as file:
        return [int(word) for word in file.read().split()]


def any_child() -> bool:
    """Whether there is a child at all, the cheapest question of all."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class Family:
    """Who descends from whom, by the kernel's lists of children or else by one look at everything."""

    def __init__(self, everything: dict[int, Process] | None = None) -> None:
        self._by_parent: dict[int, list[int]] | None = None
        if everything is not None:
            self._by_parent = {}
            for p in everything.values():
                self._by_parent.setdefault(p.ppid, []).append(p.pid)

    def children(self, pid: int) -> list[int]:
        return children(pid) if self._by_parent is None else self._by_parent.get(pid, [])

    def tree(self, roots: Iterable[int]) -> Iterator[Process]:
        """The living processes among `roots` and everything below them."""
        seen: set[int] = set()
        todo = list(roots)
        while todo:
            pid = todo.pop()
            if pid in seen:
                continue
            seen.add(pid)
            if (found := process(pid)) is not None:
                if found.alive:
                    yield found
                todo += self.children(pid)


def mark_of(task: str) -> int:
    """The number that every process of a task carries as its limit of real time.

    Unlike its environment, session and open files a process rarely changes it, and nothing else
    depends on it: it is more than 35 years in any case.
    """
    number = 0
    for byte in task.encode():
        number = (number * 0x100000001B3 ^ byte) % (1 << 44)
    return (1 << 50) + number


def marks_of(pid: int) -> tuple[int, str]:
    """The number and the task's name in the environment that a process carries; 0 and "" if none."""
    number, name = 0, ""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/limits", "rb") as file:
        for line in file:
            if line.startswith(b"Max realtime timeout"):
                number = int(line.split()[3])
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        for word in file.read().split(b"\0"):
            if word.startswith(MARKER):
                name = word[len(MARKER) :].decode("ascii", "replace")
    return number, name


def send(target: Process, number: int) -> None:
    """Signal exactly this process; a pid that was given to another one since is left alone."""
    try:
        handle = os.pidfd_open(target.pid)
    except OSError:
        return
    try:
        now = process(target.pid)
        if now is not None and now.start == target.start:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return  # it has just gone, or belongs to another user
    finally:
        os.close(handle)


def spawn(argv: list[str], program: str, env: dict[str, str], out: str, mark: int) -> int:
    """Start `program` in the present directory as leader of a session of its own; its pid.

    The child itself opens the two files: as long as they are missing, it never ran.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    if hard == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark, hard))
    try:
        return os.posix_spawn(
            program,
            argv,
            env,
            file_actions=(
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, out + ".out", append, 0o600),
                (os.POSIX_SPAWN_OPEN, 2, out + ".err", append, 0o600),
            ),
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))


def how_it_ended(status: int) -> Json:
    """Exit code as a shell gives it, with the signal's name beside it."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return {"code": code, "signal": None}
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"SIG{-code}"
    return {"code": 128 - code, "signal": name}

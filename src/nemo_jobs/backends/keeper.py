"""The keeper: a small process that starts jobs, waits for them and writes down how they ended.

    python -I -S -X utf8 keeper.py DIRECTORY [IDLE_SECONDS]

One for a data directory and host. It outlives the service, is found again over the socket in its
directory, and ends by itself when nothing runs and nobody has been connected for a while. Run as
a program it exits with 0 once a keeper listens, 3 when another one has the lock, 1 on an error.
Standard library only, so that it is small and starts fast.
"""

import contextlib
import ctypes
import fcntl
import functools
import os
import signal
import socket
import sys
import time

SOCKET = "socket"
LOCKED = 3
_LOCK_SECONDS = 1.0
_IDLE_SECONDS = 5.0
_LOG_BYTES = 256 << 10
_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """Detach and keep; the first process returns when the second one listens."""
    directory = os.path.abspath(arguments[0])
    idle = float(arguments[1]) if len(arguments) > 1 else _IDLE_SECONDS
    os.umask(0o077)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    ready, tell = os.pipe()
    if os.fork() > 0:
        os.close(tell)
        answer = os.read(ready, 1)
        return answer[0] if answer else 1
    os.close(ready)
    os.setsid()
    return _keep(directory, idle, tell)


def _keep(directory: str, idle: float, tell: int) -> int:
    from nemo_jobs.backends.keeper_loop import Keeper
    from nemo_jobs.backends.keeper_recover import recover

    lock = _lock(directory)
    if lock is None:
        os.write(tell, bytes([LOCKED]))
        return LOCKED
    _detach(directory, keep={lock, tell})
    keeper = Keeper(directory, idle)
    recover(keeper.ends, keeper.boot, directory, keeper.identity)
    listener = _listener(directory)
    again = functools.partial(_listener, directory)
    with contextlib.suppress(BrokenPipeError):  # whoever started us may be gone
        os.write(tell, b"\0")
    os.close(tell)
    keeper.serve(listener, os.path.join(directory, SOCKET), again)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory, SOCKET))
    return 0


def _lock(directory: str) -> int | None:
    """The lock of the directory, waiting a moment for one that is just ending."""
    lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)


def _detach(directory: str, keep: set[int]) -> None:
    """Nothing of the service is held on to, and orphans of jobs come to us."""
    path = os.path.join(directory, "keeper.log")
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if os.fstat(log).st_size > _LOG_BYTES:
        os.ftruncate(log, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for number, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                continue  # the one that listed the directory
    os.chdir("/")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "can't become the reaper of orphans")


def _listener(directory: str) -> socket.socket:
    """A socket in the directory, bound by its bare name: its whole path may be too long."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.chdir(directory)
    try:
        if os.path.lexists(SOCKET):
            os.unlink(SOCKET)
        listener.bind(SOCKET)
    finally:
        os.chdir("/")
    listener.listen(64)
    listener.setblocking(False)
    return listener


if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    sys.exit(main(sys.argv[1:]))

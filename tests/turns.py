"""Who may run when several tests run at once, in processes that share a folder and nothing else."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def turn(folder: str | None, alone: bool) -> Iterator[None]:
    """Hold the shared lock in `folder` meanwhile, or have it alone; without a folder there are no others.

    Everybody passes a gate on the way to the lock. Who wants it alone keeps the gate closed until the
    end, so nobody overtakes him.
    """
    if folder is None:
        yield
        return
    with Path(folder, "gate").open("w") as gate, Path(folder, "lock").open("w") as lock:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield

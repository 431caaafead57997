"""Large JSON and Python's collector of cycles."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_readers, _was_on = 0, False


@contextmanager
def uncollected() -> Iterator[None]:
    """No cycles are looked for meanwhile, in the whole process.

    What is read from JSON has none, but may be a million objects. The collector would walk through
    all of them again and again while they become more, and every thread stands still for it."""
    global _readers, _was_on
    with _lock:
        if not _readers:
            _was_on = gc.isenabled()
            gc.disable()
        _readers += 1
    try:
        yield
    finally:
        with _lock:
            _readers -= 1
            if not _readers and _was_on:
                gc.enable()

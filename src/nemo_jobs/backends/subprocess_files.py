"""The output files and directories of tasks: the end of an output, its space, their removal."""

import contextlib
import ctypes
import os
import stat
import time
from typing import Final

from nemo_jobs.backends.api import Unavailable
from nemo_jobs.backends.keeper_files import remove_empty

STREAMS: Final = {"stdout": ".out", "stderr": ".err"}
ERROR_STACK = 2048  # characters
_KEEP = 16 << 10  # bytes before the cursor that stay, for the end of an output
_WORTH = 1 << 20  # bytes that must be won before a hole is made
_BLOCK = 4096
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_LOOK_EVERY = 256


def error_stack(out: str) -> str | None:
    """The last whole lines of stderr, or of stdout if that is empty."""
    for suffix in (".err", ".out"):
        if text := _last_lines(out + suffix):
            return text
    return None


def release(path: str, position: int) -> int:
    """Give back the space of everything before `position`; how many bytes that were."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0
    try:
        there = os.fstat(file)
        length = (position - _KEEP) // _BLOCK * _BLOCK
        # What is behind that stays; the file never shrinks, so that its writers go on appending.
        taken = there.st_blocks * 512 - max(0, there.st_size - length)
        if length <= 0 or taken < _WORTH:
            return 0
        libc = ctypes.CDLL(None, use_errno=True)
        punch = getattr(libc, "fallocate64", None) or libc.fallocate
        zero, size = ctypes.c_int64(0), ctypes.c_int64(length)
        done = punch(file, _KEEP_SIZE | _PUNCH_HOLE, zero, size) == 0
        return taken if done else 0  # without holes the space comes back with the removal
    finally:
        os.close(file)


def wipe(out: str) -> None:
    """Empty the output files of a task that has ended."""
    for suffix in STREAMS.values():
        try:
            file = os.open(out + suffix, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # removed, or never written
        try:
            os.ftruncate(file, 0)
        finally:
            os.close(file)


def erase(task_dir: str, out: str, attempt_dir: str, root: str, deadline: float) -> None:
    """Delete what a task left, and its empty parents. Raises `Unavailable` when time runs out."""
    if not task_dir.startswith(root + "/") or os.path.dirname(os.path.dirname(task_dir)) != attempt_dir:
        return
    for suffix in STREAMS.values():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(out + suffix)
    delete_tree(task_dir, deadline)
    step_dir = os.path.dirname(task_dir)
    with contextlib.suppress(OSError):
        os.rmdir(step_dir)
    remove_empty(attempt_dir, root)


def delete_tree(path: str, deadline: float) -> None:
    """Delete a directory with all in it, never following a link.

    Each directory found is moved to the top before it is emptied, so that no path grows too long
    and a second call goes on where the first one ran out of time.
    """
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(there.st_mode):
        os.unlink(path)
        return
    try:
        _empty(path, deadline)
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unavailable(f"{path} can't be deleted: {error}", retry_after=60.0) from error


def _empty(top: str, deadline: float) -> None:
    todo, number = [top], 0
    while todo:
        directory = todo.pop()
        os.chmod(directory, 0o700)
        with os.scandir(directory) as entries:
            for count, entry in enumerate(entries):
                if count % _LOOK_EVERY == 0 and time.monotonic() > deadline:
                    raise Unavailable(f"deleting {top} takes long; it goes on later", retry_after=1.0)
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                path = entry.path
                if directory != top:
                    os.chmod(path, 0o700)
                    while os.path.lexists(path := f"{top}/.deleting-{number}"):
                        number += 1
                    os.rename(entry.path, path)
                todo.append(path)
        if directory != top:
            os.rmdir(directory)


def _last_lines(path: str) -> str:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(0, size - 4 * ERROR_STACK)
            file.seek(begin)
            data = file.read(4 * ERROR_STACK).replace(b"\0", b"")
    except OSError:
        return ""
    text = data.decode("utf-8", "replace").rstrip()
    if begin or len(text) > ERROR_STACK:
        cut = text[-ERROR_STACK:]
        _, newline, rest = cut.partition("\n")
        text = rest if newline and (len(cut) < len(text) or begin) else cut
    return text[-ERROR_STACK:]

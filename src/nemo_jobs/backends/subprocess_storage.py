"""The storage that a job's steps share, on its way from attempt to attempt and to its end.

It is a directory of the attempt that has it, and moves by one rename. The attempt that gives it
away keeps a note of who got it: should the taker never start anything, nobody else knows of it.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Sequence

from nemo_jobs.backends.api import Rejected
from nemo_jobs.backends.keeper_files import STORAGE_NAME, Refused, check_root, remove_empty
from nemo_jobs.backends.subprocess_files import delete_tree

NOTE_NAME = "job-storage-went-to"
_LONGEST_NOTE = 255
_MOST_PLACES = 1000


def take_over(attempt_dir: str, root: str, earlier: Sequence[str], *, needed: bool) -> None:
    """Have the storage of an earlier attempt, looked for in this order, be that of `attempt_dir`.

    Does nothing where it is there already. Raises `Rejected` when it can't be moved, or is `needed`
    and nowhere.
    """
    target = f"{attempt_dir}/{STORAGE_NAME}"
    moved_on = False
    for place in dict.fromkeys(passed for each in earlier for passed in _way_from(each)):
        if os.path.lexists(target):
            return
        if _is_directory(f"{place}/{STORAGE_NAME}") and _moved(place, attempt_dir, root):
            return
        moved_on = moved_on or _note_of(place) is not None
    # One that was moved and is nowhere was empty: an empty directory goes with a start that failed.
    if needed and not moved_on and not os.path.lexists(target):
        raise Rejected(
            f"the storage of the attempts before is not there any more (looked in {', '.join(earlier[:3])}); "
            "run the job again from its first step"
        )


def wipe(attempt_dir: str, root: str, deadline: float) -> None:
    """Delete the storage of the attempt, wherever it went. Raises `Unavailable` when time runs out."""
    for place in _way_from(attempt_dir):
        delete_tree(f"{place}/{STORAGE_NAME}", deadline)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{place}/{NOTE_NAME}")
        if place != attempt_dir:
            remove_empty(place, root)


def _moved(place: str, attempt_dir: str, root: str) -> bool:
    """Move the storage from `place`; False when it is not there any more."""
    try:
        check_root(root)
        _make(attempt_dir)
        if os.path.dirname(place) == os.path.dirname(attempt_dir):
            _leave_note(place, os.path.basename(attempt_dir))
        os.rename(f"{place}/{STORAGE_NAME}", f"{attempt_dir}/{STORAGE_NAME}")
    except FileNotFoundError:
        return False
    except Refused as error:
        raise Rejected(str(error)) from error
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return True  # another service was quicker
        if error.errno == errno.EXDEV:
            text = "it lies on another file system than the profile's working directory now"
        else:
            text = error.strerror or str(error)
        raise Rejected(f"the storage in {place} can't be moved to {attempt_dir}: {text}") from error
    return True


def _make(path: str) -> None:
    """mkdir -p, each for its owner alone."""
    if not os.path.isdir(path):
        _make(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def _leave_note(place: str, name: str) -> None:
    """Complete before the move: a crash in between leaves one about what is still to happen."""
    new = f"{place}/{NOTE_NAME}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(new, flags, 0o600)
    try:
        os.write(file, name.encode())
    finally:
        os.close(file)
    os.rename(new, f"{place}/{NOTE_NAME}")


def _note_of(place: str) -> str | None:
    """The directory that got the storage of `place`; always beside it."""
    try:
        file = os.open(f"{place}/{NOTE_NAME}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        name = os.read(file, _LONGEST_NOTE + 1).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(file)
    if not name or len(name) > _LONGEST_NOTE or name in (".", "..") or "/" in name or "\0" in name:
        return None
    return f"{os.path.dirname(place)}/{name}"


def _way_from(attempt_dir: str) -> list[str]:
    """The places that the storage of an attempt has passed, each once."""
    places: dict[str, None] = {}
    place: str | None = attempt_dir
    while place is not None and place not in places and len(places) < _MOST_PLACES:
        places[place] = None
        place = _note_of(place)
    return list(places)


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False

"""What a task left in its directory of results: found and read without following a link out of it.

Everything is opened below a descriptor of that directory, one name after the other, so that what
is swapped for a link meanwhile isn't followed either. One rule for links: those that lead to a file
or folder inside are that file or folder; others are left out, and told.
"""

import os
import stat
from collections.abc import Generator

from nemo_jobs.backends.api import Left, LeftChanged, LeftFile, LeftItem
from nemo_jobs.domain.model import Invalid
from nemo_jobs.domain.paths import MAX_SEGMENT, checked_path

MOST_FILES = 10_000
MOST_ITEMS = 1_000
DEEPEST = 32
#: Bytes of a name inside a result, folders included.
LONGEST = 800
PIECE = 1 << 20
_MOST_HOPS = 40
_MOST_NOTES = 1_000
_MOST_SEEN = 100_000  # names that are looked at, whatever is behind them
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Place = tuple[str, ...]  # names from the directory of results on, none of them a link


class _LeftOut(Exception):
    """Why a link or a whole item is not taken."""


def is_empty(directory: str) -> bool:
    """Whether nothing was left; also when the directory is not there."""
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is None
    except OSError:
        return True


def look_through(root: str, directory: str, most_bytes: int, known_as: tuple[str, ...] = ()) -> Left:
    """Everything that was left, in the order of names; each item whole or not at all.

    No part of the way from `root` to `directory` may be a link either. `known_as`: under these names the
    task knew the directory, as its absolute links do. Raises OSError when the directory can't be read.
    """
    top = _open_top(root, directory)
    try:
        return _Look(known_as or (os.path.abspath(directory),), top, most_bytes).all()
    finally:
        os.close(top)


def read(root: str, directory: str, file: LeftFile) -> Generator[bytes, None, None]:
    """The bytes of a file, in pieces. Raises LeftChanged when it isn't what was found any more."""
    place = tuple(file.place.split("/"))
    if not {"", ".", ".."}.isdisjoint(place):
        raise LeftChanged("it lies outside of the directory")
    try:
        number = _open_below(root, directory, place)
    except OSError as error:
        raise LeftChanged("it is gone" if isinstance(error, FileNotFoundError) else _why(error)) from error
    try:
        if not _same(os.fstat(number), file):
            raise LeftChanged("it changed while it was collected")
        missing = file.size
        while missing:
            piece = os.read(number, min(PIECE, missing))
            if not piece:
                break
            missing -= len(piece)
            yield piece
        if not _same(os.fstat(number), file):
            raise LeftChanged("it changed while it was collected")
    except OSError as error:
        raise LeftChanged(_why(error)) from error
    finally:
        os.close(number)


class _Look:
    """One walk through a directory of results."""

    def __init__(self, known_as: tuple[str, ...], top: int, most_bytes: int) -> None:
        self._known_as, self._top, self._room = known_as, top, most_bytes
        self._files = self._seen = 0
        self._notes: list[str] = []
        self._taken: list[LeftFile] = []  # of the item that is looked at
        self._way: list[Place] = []  # the folders above what is looked at, as they really lie

    def all(self) -> Left:
        items = []
        names, count = _names(self._top, MOST_ITEMS)
        used: set[str] = set()
        for name in names:
            if (item := self._item(name, _unused(shown(name), used))) is not None:
                items.append(item)
        if count > MOST_ITEMS:
            self._note(f"{count - MOST_ITEMS} more than {MOST_ITEMS} files and folders were left out")
        return Left(tuple(items), tuple(self._notes))

    def _item(self, name: str, called: str) -> LeftItem | None:
        self._taken, self._way = [], [()]
        try:
            folder = self._visit(self._top, (), name, "", name)
            size = sum(file.size for file in self._taken)
            if size > self._room:
                raise _LeftOut(f"has {size} bytes, and only {self._room} more may be stored")
        except _LeftOut as reason:
            self._note(f"{called} was left out: it {reason}")
            return None
        if not self._taken:
            if folder:
                self._note(f"{called} was left out: there is no file in it that could be stored")
            return None
        self._room -= size
        self._files += len(self._taken)
        return LeftItem(called, folder, tuple(self._taken))

    def _visit(self, parent: int, above: Place, name: str, path: str, told: str) -> bool:
        """Take what is called `name` in the folder `parent` into the item, as `path`; whether it is
        a folder. `above` is where the folder really lies, `told` how people are told of it."""
        self._seen += 1
        try:
            if self._seen > _MOST_SEEN:
                raise _TooMany(f"is one thing too many: more than {_MOST_SEEN} were looked at")
            place: Place = (*above, name)
            there = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(there.st_mode):
                place, there = self._led_to(above, name)
            if stat.S_ISREG(there.st_mode):
                self._take(place, path, there)
            elif stat.S_ISDIR(there.st_mode):
                self._enter(place, path, told)
                return True
            else:
                raise _LeftOut("is neither a file nor a folder")
        except OSError as error:
            self._note(f"{shown(told)} was left out: {_why(error)}")
        except _LeftOut as reason:
            if not path or isinstance(reason, _TooMany):
                raise
            self._note(f"{shown(told)} was left out: it {reason}")
        return False

    def _take(self, place: Place, path: str, there: os.stat_result) -> None:
        if self._files + len(self._taken) >= MOST_FILES:
            raise _TooMany(f"would make more than {MOST_FILES} files")
        self._taken.append(LeftFile("/".join(place), path, there.st_size, there.st_mtime_ns))

    def _enter(self, place: Place, path: str, told: str) -> None:
        if place in self._way:
            raise _LeftOut("leads back to a folder that it is in")
        if len(self._way) > DEEPEST:
            raise _LeftOut(f"is more than {DEEPEST} folders deep")
        folder = _open_place(self._top, place, _DIRECTORY)
        self._way.append(place)
        try:
            used: set[str] = set()
            names, count = _names(folder, MOST_FILES)
            if count > MOST_FILES:
                raise _TooMany(f"would make more than {MOST_FILES} files")
            for name in names:
                inner = _unused(shown(name), used)
                inner = f"{path}/{inner}" if path else inner
                if len(inner.encode()) > LONGEST:
                    self._note(f"{shown(told)}/… was left out: its name is longer than {LONGEST} bytes")
                    continue
                self._visit(folder, place, name, inner, f"{told}/{name}")
        finally:
            self._way.pop()
            os.close(folder)

    def _led_to(self, above: Place, name: str) -> tuple[Place, os.stat_result]:
        """Where a link leads, if that is inside, and what is there."""
        real, todo, hops = list(above), [name], 0
        while todo:
            step = todo.pop()
            if step == "..":
                if not real:
                    raise _LeftOut("is a link out of the directory")
                real.pop()
                continue
            there = self._status((*real, step))
            if not stat.S_ISLNK(there.st_mode):
                real.append(step)
                continue
            hops += 1
            if hops > _MOST_HOPS:
                raise _LeftOut("is a link that leads in a circle")
            todo += reversed(self._target((*real, step), real))
        if not real:
            raise _LeftOut("is a link to the directory of results itself")
        return tuple(real), self._status(tuple(real))

    def _target(self, link: Place, real: list[str]) -> list[str]:
        """The names that a link adds to the way; an absolute one begins at the top."""
        number = _open_place(self._top, link[:-1], _DIRECTORY)
        try:
            text = os.readlink(link[-1], dir_fd=number)
        finally:
            os.close(number)
        if text.startswith("/"):
            begin = next((name for name in self._known_as if (text + "/").startswith(name + "/")), None)
            if begin is None:
                raise _LeftOut("is a link out of the directory")
            text = text[len(begin) :]
            real.clear()
        return [name for name in text.split("/") if name not in ("", ".")]

    def _status(self, place: Place) -> os.stat_result:
        number = _open_place(self._top, place[:-1], _DIRECTORY)
        try:
            return os.stat(place[-1], dir_fd=number, follow_symlinks=False)
        finally:
            os.close(number)

    def _note(self, text: str) -> None:
        if len(self._notes) < _MOST_NOTES:
            self._notes.append(text)


class _TooMany(_LeftOut):
    """Ends the whole item, wherever in it this was found."""


def shown(name: str) -> str:
    """A name as text that is safe wherever it is unpacked: what is no UTF-8, acts on a terminal or
    could be taken for a separator is replaced."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = "".join("\ufffd" if c < " " or "\x7f" <= c <= "\x9f" or c == "\\" else c for c in text)
    while len(text.encode()) > MAX_SEGMENT:
        text = text[:-1]
    try:
        return checked_path(text)
    except Invalid:  # percent-encoded steps out of the folder, or something like that
        return text.replace("%", "_")


def _unused(name: str, used: set[str]) -> str:
    """Names that differed only in what is replaced are told apart by a number."""
    found, number = name, 2
    while found in used:
        found = f"{name}~{number}"
        number += 1
    used.add(found)
    return found


def _names(directory: int, most: int) -> tuple[list[str], int]:
    """The first `most` names in order, and how many there are. Never more in memory than twice that."""
    first: list[str] = []
    count = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            count += 1
            first.append(entry.name)
            if len(first) > 2 * most:
                first = sorted(first, key=os.fsencode)[:most]
    return sorted(first, key=os.fsencode)[:most], count


def _open_top(root: str, directory: str) -> int:
    number = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _open_place(number, tuple(os.path.relpath(directory, root).split("/")), _DIRECTORY)
    finally:
        os.close(number)


def _open_below(root: str, directory: str, place: Place) -> int:
    top = _open_top(root, directory)
    try:
        number = _open_place(top, place, _FILE)
    finally:
        os.close(top)
    return number


def _open_place(top: int, place: Place, flags: int) -> int:
    """Open what lies there, one name after the other; a link on the way is an error."""
    number = os.dup(top)
    for position, name in enumerate(place):
        last = position == len(place) - 1
        try:
            inner = os.open(name, flags if last else _DIRECTORY, dir_fd=number)
        finally:
            os.close(number)
        number = inner
    return number


def _same(there: os.stat_result, file: LeftFile) -> bool:
    return stat.S_ISREG(there.st_mode) and (there.st_size, there.st_mtime_ns) == (file.size, file.changed_at)


def _why(error: OSError) -> str:
    return f"it can't be read: {error.strerror}"

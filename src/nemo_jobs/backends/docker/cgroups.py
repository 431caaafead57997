"""Where this host's kernel counts what a container uses: control groups, version 1 and 2. Blocking, but
nothing of it touches a disk."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_SLOT = "{container}"
#: How deep groups are searched, and how often in vain: then the engine is taken to be elsewhere.
_DEPTH, _SEARCHES = 4, 20
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a container has used: CPU time, and the most memory at once (with files that the kernel
    keeps in memory for it). None: not known."""

    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None

    def most(self, other: "Usage") -> "Usage":
        """The larger of each: counts only grow."""
        return Usage(
            _larger(self.cpu_seconds, other.cpu_seconds),
            _larger(self.peak_memory_bytes, other.peak_memory_bytes),
        )


@dataclass(frozen=True, slots=True)
class Accounts:
    """The files of one container's groups."""

    cpu: Path
    memory: Path
    unified: bool

    @property
    def keeps_peak(self) -> bool:
        """Whether the kernel remembers the peak; else it is the most that was seen."""
        return not self.unified or (self.memory / "memory.peak").exists()

    def read(self) -> Usage:
        """What is counted until now; nothing is known when the groups are gone."""
        if self.unified:
            words = (_text(self.cpu / "cpu.stat") or "").split()
            micros = _number(dict(zip(words[::2], words[1::2], strict=False)).get("usage_usec"))
            peak = _text(self.memory / "memory.peak") or _text(self.memory / "memory.current")
            return Usage(None if micros is None else micros / 1e6, _number(peak))
        nanos = _number(_text(self.cpu / "cpuacct.usage"))
        peak = _text(self.memory / "memory.max_usage_in_bytes")
        return Usage(None if nanos is None else nanos / 1e9, _number(peak))

    def first_process(self, root: Path) -> int | None:
        """The process that is the container: with its end the container ends. None when it has ended."""
        for pid in (_text(self.cpu / "cgroup.procs") or "").split():
            status = _text(root / "proc" / pid / "status") or ""
            numbers = next((line.split() for line in status.splitlines() if line.startswith("NSpid:")), [])
            if len(numbers) > 2 and numbers[-1] == "1":
                return int(pid)
        return None


class Cgroups:
    """The control groups of this host. Where the engine puts containers is learned from one of them:
    whose groups bear its id is a container of this host."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self._mounts = _mounts(_text(root / "proc/self/mountinfo") or "")
        self._place = ""
        self._searches = _SEARCHES

    def find(self, container: str) -> Accounts | None:
        """The accounts of a running container; None when there are none, or they can't be seen from here."""
        for cpu, memory, unified in (("cpuacct", "memory", False), ("", "", True)):
            if cpu not in self._mounts or memory not in self._mounts:
                continue
            if not self._place and self._searches:
                self._place = self._search(self._mounts[cpu], container)
            folders = [self._folder(name, container) for name in (cpu, memory)]
            if folders[0] is not None and folders[1] is not None:
                accounts = Accounts(folders[0], folders[1], unified)
                if accounts.read() != Usage():
                    self._searches = _SEARCHES
                    return accounts
        return None

    def _search(self, mount: str, container: str) -> str:
        """Where groups with a container's id in their name are, below a mount; empty when nowhere."""
        top = str(self.root / mount.lstrip("/"))
        for place, folders, _ in os.walk(top):
            for name in folders:
                if container in name:
                    return f"{place[len(top) :]}/{name}".replace(container, _SLOT)
            if place.count("/") - top.count("/") >= _DEPTH:
                folders.clear()
        self._searches -= 1
        return ""

    def _folder(self, controller: str, container: str) -> Path | None:
        if not self._place:
            return None
        mount = self._mounts[controller].lstrip("/")
        folder = self.root / mount / self._place.replace(_SLOT, container).lstrip("/")
        return folder if folder.is_dir() else None


def _mounts(mountinfo: str) -> dict[str, str]:
    """Where each controller of version 1 is mounted, and under an empty name version 2."""
    found: dict[str, str] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(" ", 2), "", "", ""][:3]
        point = before.split(" ")[4] if before.count(" ") >= 4 else ""
        if kind == "cgroup2":
            found.setdefault("", point)
        elif kind == "cgroup":
            for option in options.split(","):
                found.setdefault(option, point)
    return found


def _text(path: Path) -> str | None:
    """What is in a small file; None when it isn't there any more."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(file, 1 << 16).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(file)


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isdigit() else None


def _larger(one: Number | None, other: Number | None) -> Number | None:
    return other if one is None else one if other is None else max(one, other)

"""What is left at a backend: by work, as its results, and by the service itself."""

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A file that work left as a result, or as a part of one.

    `place` is the backend's word for where it lies; `path` is its name inside the folder that was
    left, empty for a file that was left by itself. `changed_at` tells its versions apart.
    """

    place: str
    path: str
    size: int
    changed_at: int = 0


@dataclass(frozen=True, slots=True)
class LeftItem:
    """A file, or a folder with all in it, under the name that the work gave it."""

    name: str
    folder: bool
    files: tuple[LeftFile, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """What work left as results; `notes` are sentences about what was left out, and why."""

    items: tuple[LeftItem, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something of ours at a backend. `key` names the run that it belongs to, when one is known;
    `kind` and `name` are the backend's words (container, volume, …). `made_at` in microseconds
    since 1970 UTC, 0 when it is not known. `data` is opaque to everyone else."""

    kind: str
    name: str
    key: str = ""
    made_at: int = 0
    data: Json = field(default_factory=dict)

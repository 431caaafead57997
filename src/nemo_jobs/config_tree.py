"""A configuration as written: values with the place and the text of each, before any model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Unclear:
    """A plain value that YAML readers do not agree on; no field takes it."""

    text: str
    reading: str


Value = str | int | float | bool | None | Unclear


@dataclass(slots=True)
class Entry:
    """A value, where it stands (`file:line`, or a variable's name) and how it is written."""

    value: "Value | dict[str, Entry] | list[Entry]"
    where: str
    text: str = ""

    def plain(self) -> Any:
        """The bare value, for a model to check."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [entry.plain() for entry in self.value]
        return self.value

    def child(self, part: str | int) -> "Entry | None":
        if isinstance(self.value, dict) and isinstance(part, str):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int) and part < len(self.value):
            return self.value[part]
        return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an error's location leads: the path in words and the last entry that exists."""

    path: str
    entry: Entry
    complete: bool


def find(root: Entry, location: Sequence[str | int], tags: Sequence[str]) -> Place:
    """Follow a model's error location; parts that only name the member of a union are skipped."""
    entry, path, complete = root, "", True
    for index, part in enumerate(location):
        below = entry.child(part) if complete else None
        if below is None and part in tags and isinstance(location[index - 1], int):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
        if below is None:
            complete = False
        else:
            entry = below
    return Place(path, entry, complete)

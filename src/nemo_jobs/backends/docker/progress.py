"""How far a pull is, from what the engine tells layer by layer."""

from dataclasses import dataclass

from nemo_jobs.backends.api import Json

_MOST_LAYERS = 1000

_FETCHED = frozenset({"Verifying Checksum", "Download complete", "Extracting", "Pull complete"})


@dataclass(slots=True)
class _Layer:
    done: int = 0
    total: int = 0
    unpacked: int = 0
    fetched: bool = False
    complete: bool = False


class Progress:
    """Take in what the engine tells by `hear`; what is known by then are the properties, in bytes."""

    def __init__(self) -> None:
        self._layers: dict[str, _Layer] = {}

    @property
    def done(self) -> int:
        return sum(layer.done for layer in self._layers.values())

    @property
    def total(self) -> int:
        """What the layers have whose size is known already: it grows."""
        return sum(layer.total for layer in self._layers.values())

    @property
    def unpacking(self) -> bool:
        """All is here, and some isn't unpacked."""
        return bool(self._layers) and all(layer.fetched for layer in self._layers.values())

    @property
    def mark(self) -> tuple[int, int, int]:
        """Changes when, and only when, the pull gets on."""
        layers = self._layers.values()
        ready = sum(layer.fetched + layer.complete for layer in layers)
        return self.done, sum(layer.unpacked for layer in layers), ready

    def hear(self, news: Json) -> None:
        """One object of the engine's."""
        name, status = news.get("id"), news.get("status")
        if not isinstance(name, str) or not isinstance(status, str) or status.startswith("Pulling from"):
            return
        if status == "Already exists" or (name not in self._layers and len(self._layers) >= _MOST_LAYERS):
            return
        layer = self._layers.setdefault(name, _Layer())
        detail = news.get("progressDetail")
        current, total = _numbers(detail if isinstance(detail, dict) else {})
        if status == "Downloading":
            layer.done, layer.total = current, max(total, current)
        elif status == "Extracting":
            layer.unpacked = current
        if status in _FETCHED:
            layer.fetched, layer.done = True, layer.total
        layer.complete = layer.complete or status == "Pull complete"

    def __str__(self) -> str:
        """A few words for people."""
        if self.unpacking:
            ready = sum(layer.complete for layer in self._layers.values())
            return f"unpacking, {ready} of {len(self._layers)} layers are done"
        if self.total:
            return f"{size(self.done)} of {size(self.total)} ({self.done * 100 // self.total} %)"
        return "waiting for the registry"


def size(number: int) -> str:
    """Bytes for people, by thousands as disks are sold."""
    value, units = float(number), ("B", "kB", "MB", "GB")
    for unit in units:
        if value < 1000 or unit == units[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def _numbers(detail: Json) -> tuple[int, int]:
    current, total = detail.get("current"), detail.get("total")
    return (
        current if isinstance(current, int) and current > 0 else 0,
        total if isinstance(total, int) and total > 0 else 0,
    )

"""A stand-in for the binding to NVIDIA's driver: cards as a test describes them."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


@dataclass
class Card:
    uuid: str
    name: str = "NVIDIA H200"
    lost: bool = False
    ecc: int | None = 0
    remapped: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    pids: tuple[int, ...] = ()
    parts: list["Card"] | None = None
    percent: int | None = 7
    used: int = 1 << 30


@dataclass
class StandIn:
    """What `import pynvml` gives, as far as the driver is asked."""

    NVMLError = NVMLError
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_DEVICE_MIG_ENABLE = 1
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    cards: list[Card] = field(default_factory=list)
    loaded: bool = True
    events: list[tuple[Card, int]] = field(default_factory=list)
    inits: int = 0

    def _known(self, value: Any) -> Any:
        if value is None:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return value

    def _there(self, card: Card) -> Card:
        if not self.loaded:
            raise NVMLError(self.NVML_ERROR_UNINITIALIZED)
        if card.lost:
            raise NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return card

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.loaded:
            raise NVMLError(self.NVML_ERROR_DRIVER_NOT_LOADED)
        self.inits += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if not self.loaded:
            raise NVMLError(self.NVML_ERROR_UNINITIALIZED)
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        return self._there(self.cards[index])

    def nvmlDeviceGetUUID(self, card: Card) -> str:  # noqa: N802
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> bytes:  # noqa: N802
        return card.name.encode()

    def nvmlDeviceGetTotalEccErrors(self, card: Card, kind: int, counter: int) -> int:  # noqa: N802
        assert (kind, counter) == (1, 0)
        return int(self._known(card.ecc))

    def nvmlDeviceGetRemappedRows(self, card: Card) -> tuple[int, int, int, int]:  # noqa: N802
        found: tuple[int, int, int, int] = self._known(card.remapped)
        return found

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:  # noqa: N802
        return [int(card.parts is not None), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, number: int) -> Card:  # noqa: N802
        parts = card.parts or []
        return parts[number] if number < len(parts) else self._known(None)

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:  # noqa: N802
        return SimpleNamespace(used=card.used, total=141 << 30)

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=self._known(card.percent))

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in card.pids]

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        return "events"

    def nvmlDeviceRegisterEvents(self, card: Card, kinds: int, events: str) -> None:  # noqa: N802
        assert (kinds, events) == (8, "events")

    def nvmlEventSetFree(self, events: str) -> None:  # noqa: N802
        pass

    def nvmlEventSetWait(self, events: str, milliseconds: int) -> Any:  # noqa: N802
        assert milliseconds > 0
        if not self.events:
            raise NVMLError(self.NVML_ERROR_TIMEOUT)
        card, number = self.events.pop(0)
        return SimpleNamespace(device=card, eventData=number, eventType=8)

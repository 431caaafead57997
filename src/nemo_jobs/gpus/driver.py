"""Asking NVIDIA's driver: which devices there are, how they are, and who uses them.

All of it is behind `Driver.look`. The binding to the driver's library is an optional dependency, and
is loaded only where that library is.
"""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.gpus import Device, Look

LIBRARY = "libnvidia-ml.so.1"
#: Messages of the driver about a device that programs cause by themselves: the device is well.
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 94, 109})
#: Events that one look takes off the driver's queue, at most.
_MOST_EVENTS = 100
_EVENT_MILLISECONDS = 1


class CantAsk(Exception):
    """Nothing is known of this host's devices; the text says why."""


def load_binding() -> Any:
    """The binding, ready to be used. Raises CantAsk, at once where there is no driver."""
    import ctypes

    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        raise CantAsk(f"this host has no NVIDIA driver ({LIBRARY} is not there)") from None
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        hint = "pip install 'nemo-jobs[gpu]'"
        raise CantAsk(f"this host has an NVIDIA driver; to ask it, install its binding: {hint}") from None


class Driver:
    """The driver of this host, for as long as the service lives: a device of which it reported a fault
    stays one that can't be used until then. Not for several threads at once."""

    def __init__(self, clock: Clock, load: Callable[[], Any] = load_binding) -> None:
        self._clock, self._load = clock, load
        self._nvml: Any = None
        self._events: Any = None
        self._faults: dict[str, int] = {}  # by uuid: the last one that counts

    def look(self) -> Look:
        """What is there now. Raises nothing; a driver that hangs makes it hang."""
        at = self._clock.now()
        try:
            nvml = self._opened()
        except CantAsk as error:
            return Look(problem=str(error), at=at)
        try:
            self._hear(nvml)
            count = nvml.nvmlDeviceGetCount()
            found = [device for index in range(count) for device in self._devices(nvml, index)]
        except nvml.NVMLError as error:
            self._close()  # it may be there again at the next look
            return Look(problem=f"the NVIDIA driver can't be asked: {error}", at=at)
        return Look(tuple(found), at=at)

    def _opened(self) -> Any:
        if self._nvml is None:
            nvml = self._load()
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                raise CantAsk(f"the NVIDIA driver can't be asked: {error}") from error
            self._nvml = nvml
            self._listen(nvml)
        return self._nvml

    def _close(self) -> None:
        nvml, self._nvml = self._nvml, None
        events, self._events = self._events, None
        with contextlib.suppress(nvml.NVMLError):
            if events is not None:
                nvml.nvmlEventSetFree(events)
            nvml.nvmlShutdown()

    # -- faults that the driver reports

    def _listen(self, nvml: Any) -> None:
        try:
            events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                with contextlib.suppress(nvml.NVMLError):  # a device that reports none, or is lost
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events
        except nvml.NVMLError:
            self._events = None  # nothing is reported here; the looks themselves still tell much

    def _hear(self, nvml: Any) -> None:
        """Note which devices faults were reported of since the last look."""
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait(self._events, _EVENT_MILLISECONDS)
                number = int(event.eventData)
                if number not in OF_PROGRAMS:
                    self._faults[_text(nvml.nvmlDeviceGetUUID(event.device))] = number
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    return
                raise

    # -- one device

    def _devices(self, nvml: Any, index: int) -> list[Device]:
        """The GPU of that number, or the parts that it is cut into."""
        known: dict[str, Any] = {"id": str(index), "index": str(index)}
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            known["uuid"] = uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            known["model"] = _text(_asked(nvml, nvml.nvmlDeviceGetName, handle) or "")
            known["trouble"] = trouble = self._trouble(nvml, handle, uuid)
            parts = self._parts(nvml, handle, index, known["model"], trouble)
            return parts if parts is not None else [Device(**known, **_use(nvml, handle))]
        except nvml.NVMLError as error:
            return [Device(**{**known, "trouble": f"it can't be asked: {error}"})]

    def _trouble(self, nvml: Any, handle: Any, uuid: str) -> str:
        if (fault := self._faults.get(uuid)) is not None:
            return f"the driver reported fault Xid {fault}"
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        errors = _asked(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, *kinds)
        if errors:
            return f"{errors} uncorrectable memory errors since the driver was loaded"
        remapped = _asked(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
        if remapped and remapped[3]:
            return "its memory has rows that could not be replaced"
        return ""

    def _parts(self, nvml: Any, handle: Any, index: int, model: str, trouble: str) -> list[Device] | None:
        """The parts of a GPU that is cut into some (MIG), None for a whole one."""
        mode = _asked(nvml, nvml.nvmlDeviceGetMigMode, handle)
        if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return None
        parts = []
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            part = _asked(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if part is not None:
                uuid = _text(nvml.nvmlDeviceGetUUID(part))
                name = f"{model} part {number}".strip()
                place = f"{index}:{number}"
                parts.append(Device(uuid, uuid, place, name, trouble, **_use(nvml, part)))
        return parts


def _use(nvml: Any, handle: Any) -> dict[str, Any]:
    memory = _asked(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    rates = _asked(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    processes = _asked(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    return {
        "processes": tuple(sorted(int(process.pid) for process in processes)),
        "use_percent": int(rates.gpu) if rates is not None else None,
        "memory_used": int(memory.used) if memory is not None else None,
        "memory_total": int(memory.total) if memory is not None else None,
    }


def _asked(nvml: Any, call: Callable[..., Any], *args: Any) -> Any:
    """The answer, None where this device has none. Raises what says that the device is lost."""
    try:
        return call(*args)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNINITIALIZED):
            raise
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

"""The GPUs of this host as the settings let jobs have them."""

import platform
from typing import TYPE_CHECKING

from nemo_jobs.domain.gpus import Look, parse_reserved
from nemo_jobs.engine.pools import Pool

if TYPE_CHECKING:
    from nemo_jobs.config import Settings
    from nemo_jobs.domain.clock import Clock
    from nemo_jobs.gpus.driver import Driver


def host_pool(settings: "Settings", host: str, clock: "Clock") -> Pool:
    """The pool of this host. Its driver is asked when the engine runs, and not before."""
    given = settings.platform.docker
    reserved = parse_reserved(given.reserved_gpu_device_ids)
    return Pool(host, platform.node(), reserved, given.gpu_device_count, _Asking(clock))


class _Asking:
    """A look at the driver. What does that is loaded at the first one, in the thread that asks."""

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._driver: Driver | None = None

    def __call__(self) -> Look:
        if self._driver is None:
            from nemo_jobs.gpus.driver import Driver

            self._driver = Driver(self._clock)
        return self._driver.look()

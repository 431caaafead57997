"""What an engine is told about the GPUs that it may give out."""

from collections.abc import Callable
from dataclasses import dataclass

from nemo_jobs.domain.gpus import Look, Reserved


@dataclass(frozen=True, slots=True)
class Pool:
    """The GPUs of one machine. Services that share a database share the pools of the same `key`. `look`
    asks the machine's driver: it may take a while and raises nothing. `count` is how many there are
    where that can't be asked."""

    key: str
    host_name: str
    reserved: Reserved
    count: int | None
    look: Callable[[], Look]

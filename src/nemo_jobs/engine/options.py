"""Who an engine is and how it works."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nemo_jobs.backends.api import PlatformInfo
from nemo_jobs.domain.retention import DEFAULT, Retention
from nemo_jobs.engine.pools import Pool
from nemo_jobs.files.objects import ObjectStore
from nemo_jobs.vault.secrets import Secrets


@dataclass(frozen=True, slots=True)
class Options:
    """Who this engine is and how it works."""

    host: str
    owner: str  # stable across restarts of one service
    token: str  # new at each start
    platform: PlatformInfo
    log_limit: int
    cores: int = 1
    retention_days: int | None = None
    retention: Retention = DEFAULT
    objects: ObjectStore | None = None  # where what steps leave as results is kept
    secrets: Secrets | None = None
    on_host: bool = True
    task_tokens: bool = False  # make one for each run
    pool: Pool | None = None  # the GPUs of this host that are shared out among steps
    #: Asked at each look at the state: what keeps profiles from working, besides their backends.
    unusable: Callable[[], Mapping[tuple[str, str], str]] = dict

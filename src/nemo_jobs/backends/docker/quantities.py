"""Amounts as a step writes them, in the engine's units. Pure."""

import re
from decimal import Decimal

from nemo_jobs.backends.api import Rejected

_BYTES = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?)\s*([kKmMgGtTpP]?)(?:i[bB]?|[bB])?"
)
_CPUS = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?)(m?)")
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_MOST_DIGITS = 18  # before the point: what the engine's numbers can hold
#: Shared memory of a step with GPUs that asks for none: so much a GPU, and at least that.
SHM_OF_A_GPU = 8 << 30


def bytes_of(text: str, what: str) -> int:
    """Bytes in `2Gi`, `512m`, `1.5G` or `1000`. As with Docker, each unit is 1024 times the one before."""
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise Rejected(f"{what} {text[:80]!r} is no amount of memory; write it like 512Mi or 4Gi")
    return _whole(Decimal(found[1]), 1024 ** _POWER[found[2].lower()], what, text)


def nano_cpus(text: str, what: str) -> int:
    """Thousand millionths of a processor in `2`, `2.5` or `250m`."""
    found = _CPUS.fullmatch(text.strip())
    if found is None:
        raise Rejected(f"{what} {text[:80]!r} is no number of processors; write it like 2, 0.5 or 250m")
    return _whole(Decimal(found[1]), 10**6 if found[2] else 10**9, what, text)


def shm_of(asked: str | None, gpus: int) -> int | None:
    """Bytes of shared memory: what is asked for, else by the number of GPUs; None: the engine's default."""
    if asked is not None:
        return bytes_of(asked, "resources.shm_size")
    return SHM_OF_A_GPU * gpus if gpus else None


def _whole(number: Decimal, unit: int, what: str, text: str) -> int:
    if number.adjusted() > _MOST_DIGITS:
        raise Rejected(f"{what} {text[:80]!r} is more than any machine has")
    whole = int(number * unit)
    if whole <= 0:
        raise Rejected(f"{what} {text[:80]!r} must be more than nothing")
    if whole >= 2**63:
        raise Rejected(f"{what} {text[:80]!r} is more than any machine has")
    return whole

"""GPUs of a host as one pool: who may have how many, which ones, and what is said to who waits. Pure.

A pool is served by age. Whoever is oldest and wants more than is free makes all younger ones wait,
so that a large request is never starved by small ones; only what the pool can't serve at all for
now (its devices are ill, used by a foreign process, or reserved for other work) is passed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from nemo_jobs.domain.model import Json

#: Holders that a sentence names.
NAMED = 5
_MOST = 2**31 - 1


def wanted(executor: Mapping[str, Any]) -> int:
    """How many GPUs of a host a step with this executor needs; 0: none. A GPU container needs one
    when it names no number."""
    number = (executor.get("resources") or {}).get("num_gpus")
    match executor["provider"]:
        case "gpu":
            return 1 if number is None else min(max(0, number), _MOST)
        case "subprocess":
            return min(max(0, number or 0), _MOST)
        case _:
            return 0


@dataclass(frozen=True, slots=True)
class Reserved:
    """What of the host's GPUs jobs may use: all of them, or these ids; no ids are none."""

    everything: bool
    ids: tuple[str, ...] = ()


def parse_reserved(text: str) -> Reserved:
    """`reserved_gpu_device_ids` as data. Raises ValueError for an id that is there twice."""
    text = text.strip()
    if text == "all":
        return Reserved(everything=True)
    if text in ("", "none"):
        return Reserved(everything=False)
    ids = tuple(part.strip() for part in text.split(","))
    for id in ids:
        if ids.count(id) > 1:
            raise ValueError(f"names GPU {id} twice")
    return Reserved(everything=False, ids=ids)


class Source(StrEnum):
    """How it is known which GPUs a host has."""

    DRIVER = "driver"  # the host's driver was asked
    COUNT = "count"  # platform.docker.gpu_device_count says how many
    NAMED = "named"  # platform.docker.reserved_gpu_device_ids names them, and nobody can be asked
    NOBODY = "nobody"  # nobody can be asked, and nothing is configured


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a part of one (MIG). `id` is how work is given it; `trouble` says why it can't be
    given out; `processes` use it now. Memory is in bytes; None is not known."""

    id: str
    uuid: str = ""
    index: str = ""  # as the driver counts: `0`, or `0:1` for a part
    model: str = ""
    trouble: str = ""
    processes: tuple[int, ...] = ()
    use_percent: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the host's driver found. `problem` says why it can't be asked; nothing is known
    of the devices then."""

    devices: tuple[Device, ...] = ()
    problem: str = ""
    at: int = 0  # when it began, in microseconds since 1970 UTC


@dataclass(frozen=True, slots=True)
class Stock:
    """The GPUs of a pool, in the order in which they are given out, and what to tell about them."""

    devices: tuple[Device, ...]
    source: Source
    notes: tuple[str, ...] = ()
    at: int = 0


def stock_of(look: Look, reserved: Reserved, count: int | None) -> Stock:
    """What of the host's GPUs the pool has. Where the driver can't be asked, `count` says how many
    there are, and without it the ids that are named count as there."""
    nothing = not reserved.everything and not reserved.ids
    if nothing:
        return Stock((), Source.DRIVER, at=look.at)
    if not look.problem:
        return _chosen(look.devices, reserved, Source.DRIVER, look.at)
    if count is not None:
        numbered = tuple(Device(str(number), index=str(number)) for number in range(count))
        if any(not id.isdecimal() for id in reserved.ids):
            return _trusted(reserved, look.at)
        return _chosen(numbered, reserved, Source.COUNT, look.at)
    if reserved.ids:
        return _trusted(reserved, look.at)
    return Stock(
        (),
        Source.NOBODY,
        (
            f"{look.problem}; platform.docker.gpu_device_count says how many "
            "GPUs there are where they can't be asked",
        ),
        look.at,
    )


def _trusted(reserved: Reserved, at: int) -> Stock:
    devices = tuple(
        Device(id, uuid="" if id.isdecimal() else id, index=id if id.isdecimal() else "")
        for id in reserved.ids
    )
    return Stock(devices, Source.NAMED, at=at)


def _chosen(found: Sequence[Device], reserved: Reserved, source: Source, at: int) -> Stock:
    if reserved.everything:
        return Stock(tuple(found), source, at=at)
    chosen: dict[str, Device] = {}
    missing = []
    for id in reserved.ids:
        matching = [device for device in found if means(id, device.id, device.uuid, device.index)]
        if not matching:
            missing.append(id)
        for device in matching:
            known = device.uuid or device.index or device.id
            chosen.setdefault(known, replace(device, id=id) if len(matching) == 1 else device)
    notes: tuple[str, ...] = ()
    if missing:
        has = ", ".join(device.id for device in found) or "none"
        notes = (
            f"platform.docker.reserved_gpu_device_ids names GPUs that are not there: "
            f"{', '.join(missing)}; there are: {has}",
        )
    return Stock(tuple(chosen.values()), source, notes, at)


def means(id: str, known_as: str, uuid: str, index: str) -> bool:
    """Whether a configured id means this device; a GPU's number means all parts that it is cut into."""
    return id in (known_as, uuid, index) or (":" in index and index.partition(":")[0] == id)


class Turn(StrEnum):
    """What a request for GPUs gets when it is its turn to be looked at."""

    SERVED = "served"
    WAITS = "waits"  # and everybody younger with it
    PASSED = "passed"  # the pool can't serve it at all for now, so others go on


def turn(wants: int, free: int, possible: int) -> Turn:
    """The turn of the oldest request not looked at yet; `possible` is how many devices the pool could
    give if every step gave back its own."""
    if wants > possible:
        return Turn.PASSED
    return Turn.SERVED if wants <= free else Turn.WAITS


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has GPUs: `name` for people, `since` in microseconds since 1970 UTC."""

    name: str
    devices: int
    since: int
    workspace: str = ""  # of the step; empty for a reservation


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a request stands: what a sentence about it is made of."""

    wants: int
    free: int
    total: int
    ahead: int = 0  # older requests that wait too
    ahead_wants: int = 0
    unusable: Sequence[str] = ()
    holders: Sequence[Holder] = field(default_factory=tuple)


def waiting_text(at: Standing, workspace: str | None) -> str:
    """The sentence for who waits. Steps of other workspaces than `workspace` are not named; None
    names all."""
    parts = [f"waits for {_gpus(at.wants)}: {at.free} of {at.total} free"]
    if at.unusable:
        parts.append(f"{len(at.unusable)} can't be given out ({_some(at.unusable)})")
    if at.holders:
        parts.append("held by " + _some([_holder(one, workspace) for one in at.holders]))
    if at.ahead:
        noun, verb = ("request", "is") if at.ahead == 1 else ("requests", "are")
        parts.append(f"{at.ahead} older {noun} for {_gpus(at.ahead_wants)} {verb} ahead of it")
    return "; ".join(parts)


def waiting_details(at: Standing, workspace: str | None) -> Json:
    """The same as data, for `status_details`."""
    return {
        "wanted": at.wants,
        "free": at.free,
        "total": at.total,
        "ahead": at.ahead,
        "held_by": [
            {"holder": shown_holder(one, workspace), "gpus": one.devices, "since": iso(one.since)}
            for one in at.holders[:NAMED]
        ],
    }


def too_many_text(wants: int, total: int, pool: str, note: str = "") -> str:
    """The sentence for who asks for more than there are."""
    has = f"the pool of {pool} has {total}" if total else f"there are none in the pool of {pool}"
    return f"asks for {_gpus(wants)}, but {has}" + (f" ({note})" if note else "")


def shown_holder(one: Holder, workspace: str | None) -> str:
    if one.workspace and workspace is not None and workspace != one.workspace:
        return "a step of another workspace"
    return one.name


def _holder(one: Holder, workspace: str | None) -> str:
    return f"{shown_holder(one, workspace)} ({_gpus(one.devices)} since {iso(one.since)})"


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - NAMED
    return ", ".join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def iso(at: int) -> str:
    """A time as people and programs read it, to the second."""
    return datetime.fromtimestamp(at // 1_000_000, UTC).isoformat().replace("+00:00", "Z")


def in_order(ids: Iterable[str]) -> list[str]:
    """Ids as they are given out: numbers by value, then the others by name."""
    return sorted(ids, key=lambda id: (not id.isdecimal(), int(id) if id.isdecimal() else 0, id))

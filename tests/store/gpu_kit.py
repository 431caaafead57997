"""Pools of GPUs for the store's tests."""

from typing import Any

from nemo_jobs.domain.gpus import Device, Look, Reserved, Stock, parse_reserved, stock_of
from nemo_jobs.domain.model import Json, StepRecord
from nemo_jobs.store import gpu_rows, gpu_stock, gpus
from nemo_jobs.store.gpu_rows import DeviceRow
from nemo_jobs.store.gpu_stock import Server
from nemo_jobs.store.gpus import Claimed
from tests.store.kit import LEASE, Store, step_spec

POOL = "h1"
PROFILES = ("gpu/default", "subprocess/default")
KEYS = {("gpu", "default"): 100, ("subprocess", "default"): 100}
EVERYTHING = Reserved(everything=True)
FOREVER = 1 << 60


def cards(*numbers: int, **given: Any) -> tuple[Device, ...]:
    """GPUs as a driver tells of them; the number in the uuid is the card, its index the place."""
    return tuple(
        Device(str(place), f"GPU-{number}", str(place), "H200", **given)
        for place, number in enumerate(numbers)
    )


def counted(number: int) -> Stock:
    """A pool of which nothing is known but how many there are."""
    return stock_of(Look(problem="no driver"), EVERYTHING, number)


def found(*devices: Device, reserved: str = "all", at: int = 0) -> Stock:
    return stock_of(Look(devices, at=at), parse_reserved(reserved), None)


def server(store: Store, **given: Any) -> Server:
    fields: Json = {
        "owner": "o1",
        "token": store.token,
        "host": store.host,
        "host_name": "stable",
        "profiles": PROFILES,
        "chosen": "all",
        "until": FOREVER,
    }
    return Server(**{**fields, **given})


async def restock(
    store: Store, stock: Stock, reserved: str = "all", pool: str = POOL, **given: Any
) -> tuple[bool, list[str]]:
    said = server(store, **given)
    args = (pool, said, stock, parse_reserved(reserved), store.now())
    result: tuple[bool, list[str]] = await store.write(gpu_stock.attend, *args)
    return result


def gpu_step(name: str = "main", number: int | None = 1, provider: str = "subprocess") -> Json:
    spec = step_spec(name, provider=provider)
    spec["executor"]["resources"] = {"num_gpus": number}
    return spec


async def create(store: Store, name: str, number: int | None = 1, provider: str = "subprocess") -> None:
    await store.create(name, steps=[gpu_step("main", number, provider)])


async def claim(store: Store, pool: str = POOL, **given: Any) -> list[StepRecord]:
    return (await claim_all(store, pool, **given)).steps


async def claim_all(store: Store, pool: str = POOL, **given: Any) -> Claimed:
    now = store.now()
    fields = {"owner": "o1", "token": store.token, "host": store.host, "until": now + LEASE, "places": KEYS}
    made: Claimed = await store.write(gpus.claim, pool, gpus.Claim(**{**fields, **given}), now)
    return made


async def rows(store: Store, pool: str = POOL) -> list[DeviceRow]:
    result: list[DeviceRow] = await store.read(gpu_rows.devices, pool)
    return result


async def holding(store: Store, pool: str = POOL) -> dict[str, list[str]]:
    """Device ids by the name of the job, or of the reservation."""
    by: dict[str, list[str]] = {}
    names = dict(await store.read(_names))
    for row in await rows(store, pool):
        if row.holder is not None:
            by.setdefault(names.get(row.holder, row.holder), []).append(row.id)
    return by


def _names(tx: Any) -> list[tuple[str, str]]:
    import sqlalchemy as sa

    query = sa.text("SELECT step.id, job.name FROM step JOIN job ON job.id = step.job_id")
    result: list[tuple[str, str]] = tx.run(query)
    return result


async def take(store: Store, step: StepRecord, pool: str = POOL) -> tuple[str, ...] | None:
    result: tuple[str, ...] | None = await store.write(
        gpus.take_devices, pool, store.token, step.id, store.now()
    )
    return result

"""GPUs: which there are, who has them, and reservations for work that is no job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_jobs.client.ask import Ask, Call
from nemo_jobs.client.calls import Calls, given
from nemo_jobs.client.connection import quote

if TYPE_CHECKING:
    from nemo_jobs.client.types import Json

_GPUS = "/apis/jobs/v2/gpus"
_RESERVATIONS = f"{_GPUS}/reservations"


class GpuCalls(Calls):
    """GPUs that are shared out among jobs and other work."""

    @Call
    def get_gpus(self) -> Ask[Json]:
        """All GPUs (`data`), with the pools they belong to, the reservations, and who waits."""
        return Ask("GET", _GPUS)

    @Call
    def reserve_gpus(
        self, name: str, count: int, *, pool: str | None = None, wait: bool | None = None
    ) -> Ask[Json]:
        """Reserve GPUs for work that is no job; for administrators. Raises `Conflict` when it can't
        have them at once, unless `wait` asks for a place in the queue: `get_gpu_reservation` then
        tells when it has them."""
        body = given({"name": name, "count": count, "pool": pool, "wait": wait})
        return Ask("POST", _RESERVATIONS, body=body)

    @Call
    def get_gpu_reservation(self, name: str) -> Ask[Json]:
        """A reservation; its `devices` are empty while it waits."""
        return Ask("GET", _reservation(name))

    @Call
    def release_gpus(self, name: str) -> Ask[None]:
        """Give back what a reservation has, or its place in the queue."""
        return Ask("DELETE", _reservation(name), kind=None)


def _reservation(name: str) -> str:
    if not name:
        raise ValueError("a name is empty")
    return f"{_RESERVATIONS}/{quote(name)}"

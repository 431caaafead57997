"""Sweeping on request: what this service made at a backend and nobody owns any more."""

from pydantic import BaseModel, TypeAdapter

from nemo_jobs.http.errors import Refused
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, json_reply, time_text

SWEEP = "/apis/jobs/v2/sweep"


class SweepRequest(BaseModel):
    """With `dry_run` nothing is removed."""

    dry_run: bool = False


_REQUEST = TypeAdapter(SweepRequest)


async def sweep(api: Api, request: Request) -> Reply:
    asked = await request.parsed(_REQUEST)
    if api.parts.engine is None:
        raise Refused(503, "this service runs no engine and can't sweep; ask one that does")
    found = await api.parts.engine.sweep(asked.dry_run)
    for one in found["data"]:
        one["made_at"] = one["made_at"] and time_text(one["made_at"])
    return json_reply(found)


OPERATIONS = (
    Operation(
        "POST",
        SWEEP,
        sweep,
        "Remove what this service made at a backend and nobody owns",
        "Swept",
        body="SweepRequest",
        errors=(503,),
        scope="admin*",
    ),
)

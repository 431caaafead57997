"""A typed client of the jobs service, without dependencies.

with JobsClient("http://localhost:8080") as client:
    job = client.get_job("moth-sorter")

async with AsyncJobsClient("http://localhost:8080") as client:
    job = await client.get_job("moth-sorter")
"""

from typing import TYPE_CHECKING, Any

from nemo_jobs.client.calls import UNSET
from nemo_jobs.client.errors import (
    BadAddress,
    BadAnswer,
    BadRequest,
    ClientError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    HttpError,
    JobFailed,
    NotFound,
    ServerError,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unprocessable,
    WaitExpired,
)
from nemo_jobs.client.retry import Retry
from nemo_jobs.client.sync import JobsClient
from nemo_jobs.client.transfer import Download
from nemo_jobs.client.transport import Transport

if TYPE_CHECKING:
    from nemo_jobs.client.aio import AsyncJobsClient
    from nemo_jobs.client.aio_transfer import AsyncDownload
    from nemo_jobs.client.aio_transport import AsyncTransport

__all__ = [
    "UNSET",
    "AsyncDownload",
    "AsyncJobsClient",
    "AsyncTransport",
    "BadAddress",
    "BadAnswer",
    "BadRequest",
    "ClientError",
    "Conflict",
    "ConnectionFailed",
    "Download",
    "Forbidden",
    "HttpError",
    "JobFailed",
    "JobsClient",
    "NotFound",
    "Retry",
    "ServerError",
    "TimedOut",
    "TooManyRequests",
    "Transport",
    "Unauthorized",
    "Unprocessable",
    "WaitExpired",
]

_LATER = {
    "AsyncJobsClient": "nemo_jobs.client.aio",
    "AsyncDownload": "nemo_jobs.client.aio_transfer",
    "AsyncTransport": "nemo_jobs.client.aio_transport",
}


def __getattr__(name: str) -> Any:
    """The async client is loaded when it is asked for: asyncio takes longer to import than a
    whole short command."""
    if name not in _LATER:
        raise AttributeError(f"module 'nemo_jobs.client' has no '{name}'")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)

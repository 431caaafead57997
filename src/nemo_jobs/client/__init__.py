"""A typed client of the jobs service, without dependencies.

with JobsClient("http://localhost:8080") as client:
    job = client.get_job("moth-sorter")
"""

from types import TracebackType
from typing import Self

from nemo_jobs.client.calls import JobCalls, PlatformCalls, StatusCalls, StepCalls
from nemo_jobs.client.errors import (
    BadAddress,
    BadAnswer,
    BadRequest,
    ClientError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    HttpError,
    NotFound,
    ServerError,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unprocessable,
)
from nemo_jobs.client.transport import Retry, Transport

__all__ = [
    "BadAddress",
    "BadAnswer",
    "BadRequest",
    "ClientError",
    "Conflict",
    "ConnectionFailed",
    "Forbidden",
    "HttpError",
    "JobsClient",
    "NotFound",
    "Retry",
    "ServerError",
    "TimedOut",
    "TooManyRequests",
    "Transport",
    "Unauthorized",
    "Unprocessable",
]


class JobsClient(JobCalls, StatusCalls, StepCalls, PlatformCalls):
    """Calls the service at a base URL (`http://…`, `https://…` or `unix:///…`).

    One connection is kept between calls; use one client per thread. Requests that fail for a
    passing reason are repeated at most twice.
    """

    def __init__(
        self,
        base_url: str = "http://localhost:8080",
        *,
        workspace: str = "default",
        token: str | None = None,
        timeout: float = 60.0,
        ca_file: str | None = None,
        retry: Retry | None = None,
        transport: Transport | None = None,
    ) -> None:
        super().__init__(
            transport or Transport(base_url, token=token, timeout=timeout, ca_file=ca_file, retry=retry),
            workspace,
        )

    def close(self) -> None:
        """Close the connection."""
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

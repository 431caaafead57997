"""What type checkers are told: `make check` reads these functions, nobody runs them."""

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from nemo_jobs.client import AsyncDownload, AsyncJobsClient, Download, JobsClient
from nemo_jobs.client.types import Attempt, Job, JobPage, JobStatus, LogLine, Result, Step


def sync_types(client: JobsClient) -> None:
    assert_type(client.get_job("a"), Job)
    assert_type(client.retrieve("a"), Job)
    assert_type(client.list_jobs(), JobPage)
    assert_type(client.iter_jobs(), Iterator[Job])
    assert_type(client.wait("a"), Job)
    assert_type(client.watch_job("a"), Iterator[JobStatus])
    assert_type(client.steps.retrieve("a", job="b"), Step)
    assert_type(client.download_job_result("a", job="b"), Download)
    assert_type(client.follow_logs("a"), Iterator[LogLine])
    assert_type(client.delete_job("a"), None)
    client.get_job()  # type: ignore[call-arg]
    client.get_job("a", colour="red")  # type: ignore[call-arg]
    client.get_job_step("a", job=1)  # type: ignore[arg-type]


async def async_types(client: AsyncJobsClient) -> None:
    assert_type(await client.get_job("a"), Job)
    assert_type(await client.wait("a"), Job)
    assert_type(client.iter_job_attempts("a"), AsyncIterator[Attempt])
    assert_type(await client.results.upload("a", b"", job="b"), Result)
    assert_type(await client.download_file("a", fileset="f"), AsyncDownload)
    assert_type(client.follow_logs("a"), AsyncIterator[LogLine])
    client.get_job("a")["name"]  # type: ignore[index]


def test_the_checks_are_there() -> None:
    assert sync_types.__annotations__["client"] is JobsClient
    assert async_types.__annotations__["client"] is AsyncJobsClient

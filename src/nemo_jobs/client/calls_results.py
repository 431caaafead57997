"""Results of jobs, and the filesets and files in which they lie."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nemo_jobs.client.ask import Ask, Call, Fetch, Flow, Steps, Walk
from nemo_jobs.client.calls import Calls, given
from nemo_jobs.client.connection import quote
from nemo_jobs.client.errors import Conflict
from nemo_jobs.client.paging import by_number, whole
from nemo_jobs.client.transfer import Download, Sendable, Source, files_below

if TYPE_CHECKING:
    from nemo_jobs.client.types import File, FileList, Fileset, FilesetPage, Json, Result, ResultList

FILES = "/apis/files/v2"


class FileCalls(Calls):
    """Filesets: named places of files."""

    def _filesets(self, workspace: str | None, *segments: str) -> str:
        return self._in(FILES, workspace, "filesets", *segments)

    def _file(self, workspace: str | None, fileset: str, path: str) -> str:
        if not path.strip("/"):
            raise ValueError("the path of the file is empty")
        return (
            self._filesets(workspace, fileset, "-") + "/" + "/".join(quote(part) for part in path.split("/"))
        )

    @Call
    def create_fileset(
        self, /, name: str, *, workspace: str | None = None, description: str | None = None, **fields: Any
    ) -> Ask[Fileset]:
        """Create a fileset; `fields` are the further ones of the request, such as `purpose`."""
        body = given({"name": name, "description": description, **fields})
        return Ask("POST", self._filesets(workspace), body=body)

    @Call
    def list_filesets(
        self,
        *,
        workspace: str | None = None,
        page: int | None = None,
        page_size: int | None = None,
        sort: str | None = None,
    ) -> Ask[FilesetPage]:
        """One page of filesets."""
        query = [("page", page), ("page_size", page_size), ("sort", sort)]
        return Ask("GET", self._filesets(workspace), query=query)

    @Walk
    def iter_filesets(self, *, workspace: str | None = None, page_size: int = 100) -> Steps[Fileset]:
        """All filesets."""
        return by_number(self._filesets(workspace), [("page_size", page_size)])

    @Call
    def get_fileset(self, name: str, *, workspace: str | None = None) -> Ask[Fileset]:
        """One fileset."""
        return Ask("GET", self._filesets(workspace, name))

    @Call
    def update_fileset(self, name: str, fields: Json, *, workspace: str | None = None) -> Ask[Fileset]:
        """Change fields of a fileset."""
        return Ask("PATCH", self._filesets(workspace, name), body=fields)

    @Call
    def delete_fileset(self, name: str, *, workspace: str | None = None) -> Ask[None]:
        """Delete a fileset with its files."""
        return Ask("DELETE", self._filesets(workspace, name), kind=None)

    @Call
    def list_files(
        self, fileset: str, *, path: str | None = None, workspace: str | None = None
    ) -> Ask[FileList]:
        """The files of a fileset, or those below a path in it."""
        return Ask("GET", self._filesets(workspace, fileset, "files"), query=[("path", path)])

    @Call
    def put_file(
        self, path: str, content: Sendable, *, fileset: str, workspace: str | None = None
    ) -> Ask[File]:
        """Store a file: bytes, the path of a local file, an open one, or an iterable of bytes. It is
        sent in pieces and appears whole or not at all."""
        headers = {"content-type": "application/octet-stream"}
        return Ask("PUT", self._file(workspace, fileset, path), body=Source(content), headers=headers)

    @Fetch
    def download_file(self, path: str, *, fileset: str, workspace: str | None = None) -> Ask[Download]:
        """The content of a file."""
        return Ask("GET", self._file(workspace, fileset, path))

    @Call
    def delete_file(self, path: str, *, fileset: str, workspace: str | None = None) -> Ask[None]:
        """Delete a file."""
        return Ask("DELETE", self._file(workspace, fileset, path), kind=None)


class ResultCalls(FileCalls):
    """Results: what a job leaves behind under a name."""

    @Call
    def create_job_result(
        self,
        name: str,
        *,
        job: str,
        artifact_url: str,
        artifact_storage_type: str = "fileset",
        attempt_id: str | None = None,
        workspace: str | None = None,
    ) -> Ask[Result]:
        """Make something in a fileset known as a result. Raises `Conflict` when the name is taken."""
        body = {"artifact_url": artifact_url, "artifact_storage_type": artifact_storage_type}
        body |= given({"attempt_id": attempt_id})
        return Ask("POST", self._jobs(workspace, job, "results", name), body=body)

    @Call
    def list_job_results(
        self,
        job: str,
        *,
        sort: str | None = None,
        attempt_id: int | str | None = None,
        workspace: str | None = None,
    ) -> Ask[ResultList]:
        """The results of a job."""
        query = [("sort", sort), ("attempt_id", attempt_id)]
        return Ask("GET", self._jobs(workspace, job, "results"), query=query)

    @Walk
    def iter_job_results(
        self, job: str, *, attempt_id: int | str | None = None, workspace: str | None = None
    ) -> Steps[Result]:
        """The results of a job, one by one."""
        return whole(self._jobs(workspace, job, "results"), [("attempt_id", attempt_id)])

    @Call
    def get_job_result(
        self, name: str, *, job: str, attempt_id: int | str | None = None, workspace: str | None = None
    ) -> Ask[Result]:
        """One result; without `attempt_id` the newest of its name."""
        query = [("attempt_id", attempt_id)]
        return Ask("GET", self._jobs(workspace, job, "results", name), query=query)

    @Fetch
    def download_job_result(
        self, name: str, *, job: str, attempt_id: int | str | None = None, workspace: str | None = None
    ) -> Ask[Download]:
        """The content of a result; a folder comes as a gzip tar."""
        query = [("attempt_id", attempt_id)]
        return Ask("GET", self._jobs(workspace, job, "results", name, "download"), query=query)

    @Flow
    def upload_job_result(
        self, name: str, content: Sendable, *, job: str, workspace: str | None = None
    ) -> Steps[Result]:
        """Store a file, bytes or a folder in the job's fileset and make it a result of the job.

        Links in a folder are left out. A result that the same attempt uploaded under that name is
        given back as it is; its files are the new ones. Raises Conflict for a name that means
        something else; what was sent is removed again.
        """
        found = yield Ask("GET", self._jobs(workspace, job))
        place = workspace or found["workspace"]
        base = f"jobs/{found['name']}/" if found.get("output_location") else ""
        target = f"{base}results/{found['attempt_id']}/{name}"
        fileset, sent = found["fileset"], [target]
        if isinstance(content, str | os.PathLike) and os.path.isdir(content):  # noqa: PTH112
            sent = []
            for path, file in files_below(os.fspath(content)):
                yield self._put(place, fileset, f"{target}/{path}", file)
                sent.append(f"{target}/{path}")
            target += "/"
        else:
            yield self._put(place, fileset, target, content)
        path = self._jobs(workspace, job, "results", name)
        url = f"{place}/{fileset}#{target}"
        body = {"artifact_url": url, "artifact_storage_type": "fileset", "attempt_id": found["attempt_id"]}
        try:
            result: Result = yield Ask("POST", path, body=body)
        except Conflict:
            result = yield Ask("GET", path)
            there = result["artifact_url"]
            if there.removesuffix("/") != url.removesuffix("/"):
                for file in sent:
                    yield Ask("DELETE", self._file(place, fileset, file))
                text = (
                    f"job {job!r} has a result {name!r} already, which is kept: {there}; choose another name"
                )
                raise Conflict(409, text, method="POST", target=path) from None
        return result

    def _put(self, workspace: str, fileset: str, path: str, content: Sendable) -> Ask[File]:
        headers = {"content-type": "application/octet-stream"}
        return Ask("PUT", self._file(workspace, fileset, path), body=Source(content), headers=headers)

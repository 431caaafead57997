"""A create whose answer gets lost on the way, after it was stored: the repeat must not make two."""

import asyncio
import contextlib
import json

import pytest

from nemo_jobs.client import Conflict, JobsClient
from tests.e2e.service import NEMO
from tests.http.kit import JOBS, body, open_service, served


class Losing:
    """Forwards connections, and cuts the first `lose` of them when the answer to a POST comes."""

    def __init__(self, upstream, lose):
        self.upstream, self.lose, self.lost = upstream, lose, 0
        self.url = ""
        self.keys = []

    async def serve(self, reader, writer):
        to, at = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            while head := await self._head(reader):
                length = self._length(head)
                at.write(head + await reader.readexactly(length))
                answer = await self._head(to)
                rest = await to.readexactly(self._length(answer))
                if head.startswith(b"POST"):
                    self.keys.append(self._field(head, b"idempotency-key"))
                    if self.lost < self.lose:
                        self.lost += 1
                        return
                writer.write(answer + rest)
                await writer.drain()
        finally:
            at.close()
            writer.close()

    async def _head(self, reader):
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    def _field(self, head, name):
        for line in head.split(b"\r\n"):
            if line.lower().startswith(name + b":"):
                return line.split(b":", 1)[1].strip().decode()
        return None

    def _length(self, head):
        return int(self._field(head, b"content-length") or 0)


@contextlib.asynccontextmanager
async def losing(tmp_path, lose):
    async with open_service(tmp_path) as service, served(service.app) as port:
        between = Losing(port, lose)
        server = await asyncio.start_server(between.serve, "127.0.0.1", 0)
        between.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield service, between
        finally:
            server.close()


async def names(service):
    return [job["name"] for job in (await service.client.get(JOBS)).json()["data"]]


def create(url, sent):
    with JobsClient(url) as client:
        return client.create_job(**sent)


@pytest.mark.parametrize("name", ["moth", None])
@pytest.mark.parametrize("lose", [1, 2])
async def test_c088_the_client_makes_one_job_and_hears_of_it(tmp_path, name, lose):
    async with losing(tmp_path, lose) as (service, between):
        job = await asyncio.to_thread(create, between.url, body(name=name))
        assert between.lost == lose
        assert await names(service) == [job["name"]]
        assert len(set(between.keys)) == 1 and between.keys[0]
        other = await asyncio.to_thread(create, between.url, body(name=None))
        assert between.keys[-1] != between.keys[0]
        assert set(await names(service)) == {job["name"], other["name"]}
        if name:
            with pytest.raises(Conflict, match="'moth' is taken"):
                await asyncio.to_thread(create, between.url, body(name=name))


@pytest.mark.parametrize("words", [["--name", "moth"], []])
async def test_c088_the_command_makes_one_job_and_prints_it(tmp_path, words):
    async with losing(tmp_path, 1) as (service, between):
        process = await asyncio.create_subprocess_exec(
            NEMO,
            *("--base-url", between.url, "jobs", "run", *words, "--label", "team=x", "--", "true"),
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            out, err = await process.communicate()
        assert (process.returncode, between.lost) == (0, 1), err.decode()
        printed = json.loads(out)
        assert await names(service) == [printed["name"]]
        assert printed["custom_fields"] == {"labels": {"team": "x"}}

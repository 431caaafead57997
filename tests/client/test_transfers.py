"""Bytes in and out: in pieces, whole or not at all, and on after a break."""

import asyncio
import io
import os
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.client import (
    AsyncJobsClient,
    BadAnswer,
    ClientError,
    Conflict,
    ConnectionFailed,
    JobsClient,
    NotFound,
    Retry,
)
from nemo_jobs.client.transfer import suggested_name
from tests.cli.scripted import Reply, Seen, job, scripted
from tests.client.both import Both
from tests.client.conftest import Connect

FILE = {"path": "a", "size": 1, "file_ref": "r", "file_url": "u"}
CONTENT = bytes(range(256)) * 4000  # about a megabyte
HEAD = {"etag": '"c0ffee"', "accept-ranges": "bytes"}


def put(client: Both, content: Any) -> Any:
    return client.put_file("data/a b.bin", content, fileset="f")


def test_an_upload_takes_bytes_paths_and_files(connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    opened = path.open("rb")
    opened.seek(1000)
    with scripted(Reply(body=FILE)) as server, opened:
        client = connect(server.url)
        for content, sent in (
            (CONTENT, CONTENT),
            (b"", b""),
            (bytearray(b"x"), b"x"),
            (str(path), CONTENT),
            (path, CONTENT),
            (opened, CONTENT[1000:]),
            (io.BytesIO(b"in memory"), b"in memory"),
        ):
            assert put(client, content) == FILE
            asked = server.seen[-1]
            assert asked.body == sent
            assert asked.headers["content-length"] == str(len(sent))
            assert asked.headers["content-type"] == "application/octet-stream"
            assert asked.target == "/apis/files/v2/workspaces/default/filesets/f/-/data/a%20b.bin"
        assert server.connections == 1


def test_what_has_no_length_is_sent_in_chunks(connect: Connect) -> None:
    def pieces() -> Iterator[bytes]:
        for start in range(0, len(CONTENT), 70_000):
            yield CONTENT[start : start + 70_000]
            yield b""

    reader, writer = os.pipe()
    os.write(writer, b"through a pipe")
    os.close(writer)
    with scripted(Reply(body=FILE)) as server, os.fdopen(reader, "rb") as pipe:
        client = connect(server.url)
        for content, sent in ((pieces(), CONTENT), ([b"a", b"b"], b"ab"), (pipe, b"through a pipe")):
            put(client, content)
            assert server.seen[-1].body == sent
            assert server.seen[-1].headers["transfer-encoding"] == "chunked"
            assert "content-length" not in server.seen[-1].headers


async def test_an_async_upload_takes_an_async_iterable() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(0)
        yield b"two"

    with scripted(Reply(body=FILE)) as server:
        async with AsyncJobsClient(server.url) as client:
            await client.put_file("p", pieces(), fileset="f")
        assert server.seen[0].body == b"onetwo"
        with JobsClient(server.url) as sync, pytest.raises(TypeError, match="can't be sent by this client"):
            sync.put_file("p", pieces(), fileset="f")


def test_an_upload_is_repeated_from_its_beginning_if_it_can_be(connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    for content in (CONTENT, path, io.BytesIO(CONTENT)):
        with scripted(Reply(503, {"detail": "x"}), Reply(drop=True), Reply(body=FILE)) as server:
            assert put(connect(server.url), content) == FILE
            assert [seen.body == CONTENT for seen in server.seen] == [True] * 3
    with scripted(Reply(503, {"detail": "disk full"})) as server:
        with pytest.raises(ClientError, match="disk full"):
            put(connect(server.url), iter([b"a", b"b"]))
        assert len(server.seen) == 1


def test_an_upload_that_is_refused_early_is_told_and_not_sent_to_its_end(connect: Connect) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 1 << 30:
            sent += 1 << 20
            yield bytes(1 << 20)

    with scripted(Reply(404, {"detail": "no fileset 'f'"})) as server:
        server.early = True
        with pytest.raises(NotFound, match="no fileset 'f'"):
            put(connect(server.url), endless())
        assert sent < 1 << 28


def test_what_cannot_be_read_is_a_local_error(connect: Connect, tmp_path: Path) -> None:
    with scripted(Reply(body=FILE)) as server:
        client = connect(server.url)
        with pytest.raises(FileNotFoundError):
            put(client, tmp_path / "none")

        def failing() -> Iterator[bytes]:
            yield b"a"
            raise OSError("disk gone")

        with pytest.raises(ClientError, match="can't be read: disk gone"):
            put(client, failing())
        assert client.get_job("x") == FILE  # the half-used connection serves nobody else


class Shrinking(io.BytesIO):
    """A file that becomes shorter while it is read."""

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.truncate(self.tell())
        return found


def test_a_file_that_becomes_shorter_is_an_error_and_no_shorter_upload(connect: Connect) -> None:
    with scripted(Reply(body=FILE)) as server, pytest.raises(ClientError, match="became shorter"):
        put(connect(server.url, timeout=5), Shrinking(CONTENT))


def test_paths_never_leave_their_fileset(connect: Connect) -> None:
    with scripted(Reply(body=FILE)) as server:
        client = connect(server.url)
        client.put_file("../../x", b"", fileset="..")
        assert "/../" not in server.seen[0].target
        assert server.seen[0].target.startswith("/apis/files/v2/workspaces/default/filesets/%2E%2E/-/%2E%2E/")
        for empty in ("", "/"):
            with pytest.raises(ValueError, match="empty"):
                client.put_file(empty, b"", fileset="f")


def downloaded(client: Both, how: str, **fields: Any) -> Any:
    download = client.download_job_result("w", job="m", **fields)
    return client.done(getattr(download, how)())


def test_a_download_is_read_whole_or_in_pieces(connect: Connect) -> None:
    with scripted(Reply(body=CONTENT, headers=HEAD)) as server:
        client = connect(server.url)
        assert downloaded(client, "read", attempt_id="a") == CONTENT
        assert server.targets == [
            "GET /apis/jobs/v2/workspaces/default/jobs/m/results/w/download?attempt_id=a"
        ]
        pieces = downloaded(client, "iter_bytes")
        assert b"".join(pieces) == CONTENT
        assert max(map(len, pieces)) <= 1 << 16
        download = client.results.download("w", job="m")
        download.close()
        about = download.about
        assert (about.size, about.etag, about.can_resume) == (len(CONTENT), '"c0ffee"', True)


def test_a_file_appears_whole_under_the_suggested_or_the_given_name(connect: Connect, tmp_path: Path) -> None:
    headers = {**HEAD, "content-disposition": 'attachment; filename="../weights.bin"'}
    with scripted(Reply(body=CONTENT, headers=headers)) as server:
        client = connect(server.url)
        for target, place in ((tmp_path, "weights.bin"), (tmp_path / "mine", "mine")):
            download = client.download_file("a", fileset="f")
            assert client.done(download.write_to_file(target)) == str(tmp_path / place)
            assert (tmp_path / place).read_bytes() == CONTENT
        assert sorted(os.listdir(tmp_path)) == ["mine", "weights.bin"]


def ranged(*cuts: int) -> Any:
    """Serves CONTENT, and breaks off after so many bytes of each answer."""
    left = list(cuts)

    def script(seen: Seen) -> Reply:
        cut = left.pop(0) if left else None
        asked = seen.headers.get("range")
        if asked is None:
            return Reply(body=CONTENT, headers=HEAD, cut=cut)
        assert seen.headers["if-range"] == '"c0ffee"'
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        span = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
        return Reply(206, CONTENT[start:], {**HEAD, "content-range": span}, cut=cut)

    return script


def test_a_broken_download_goes_on_where_it_broke(connect: Connect, tmp_path: Path) -> None:
    with scripted(ranged(300_000, 1, 0, 200_000)) as server:
        client = connect(server.url)
        download = client.download_file("a", fileset="f")
        client.done(download.write_to_file(tmp_path / "x"))
        assert (tmp_path / "x").read_bytes() == CONTENT
        assert [seen.headers.get("range") for seen in server.seen] == [
            None,
            "bytes=300000-",
            "bytes=300001-",
            "bytes=300001-",
            "bytes=500001-",
        ]


def test_a_download_that_gets_nowhere_ends(connect: Connect, tmp_path: Path) -> None:
    with scripted(ranged(1000, *[0] * 20)) as server:
        client = connect(server.url)
        download = client.download_file("a", fileset="f")
        with pytest.raises(ConnectionFailed, match="middle of an answer"):
            client.done(download.write_to_file(tmp_path / "x"))
        assert len(server.seen) == 4
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "headers", [{}, {"etag": '"x"'}, {"accept-ranges": "bytes"}, {**HEAD, "etag": 'W/"c0ffee"'}]
)
def test_without_a_firm_etag_and_ranges_a_break_is_an_error(
    connect: Connect, tmp_path: Path, headers: dict[str, str]
) -> None:
    with scripted(Reply(body=CONTENT, headers=headers, cut=5000)) as server:
        client = connect(server.url)
        download = client.download_file("a", fileset="f")
        with pytest.raises(ConnectionFailed):
            client.done(download.write_to_file(tmp_path / "x"))
        assert os.listdir(tmp_path) == []
        assert len(server.seen) == 1


def test_content_that_changed_meanwhile_is_no_rest(connect: Connect, tmp_path: Path) -> None:
    replies = Reply(body=CONTENT, headers=HEAD, cut=5000), Reply(body=b"other", headers=HEAD)
    with scripted(*replies) as server:
        client = connect(server.url)
        download = client.download_file("a", fileset="f")
        with pytest.raises(BadAnswer, match="has changed while it was downloaded"):
            client.done(download.write_to_file(tmp_path / "x"))
        assert os.listdir(tmp_path) == []


def test_a_missing_result_writes_nothing(connect: Connect) -> None:
    with scripted(Reply(404, {"detail": "no result 'w'"})) as server, pytest.raises(NotFound):
        connect(server.url).download_job_result("w", job="m")


def test_a_download_that_is_left_gives_no_broken_connection_to_others(connect: Connect) -> None:
    with scripted(Reply(body=CONTENT, headers=HEAD), Reply(body=job("x"))) as server:
        client = connect(server.url)
        client.download_file("a", fileset="f").close()
        assert client.get_job("x")["name"] == "x"
        assert server.connections == 2


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ('attachment; filename="weights"', "weights"),
        ("attachment; filename=plain.txt", "plain.txt"),
        ("attachment; filename*=UTF-8''na%C3%AFve%20x.txt; filename=\"other\"", "naïve x.txt"),
        ('attachment; filename="../../etc/passwd"', "passwd"),
        ("attachment; filename*=UTF-8''..%2F..%2Fx", "x"),
        ('attachment; filename="a\\\\..\\\\b"', "b"),
        ('attachment; filename=".."', None),
        ('attachment; filename=""', None),
        ("attachment; filename*=UTF-8''a%00b", None),
        ("attachment; filename*=UTF-8''a%0Ab", None),
        ("inline", None),
        ("", None),
    ],
)
def test_a_suggested_name_is_a_name_and_no_path(header: str, name: str | None) -> None:
    assert suggested_name(header) == name


def test_a_folder_without_a_suggested_name_is_refused(connect: Connect, tmp_path: Path) -> None:
    with scripted(Reply(body=b"x")) as server:
        client = connect(server.url)
        download = client.download_file("a", fileset="f")
        with pytest.raises(ClientError, match="suggests no name"):
            client.done(download.write_to_file(tmp_path))


def test_a_result_is_uploaded_into_the_jobs_fileset_and_made_known(connect: Connect, tmp_path: Path) -> None:
    found = job("m", attempt_id="att-1", fileset="job-fileset-m", output_location=None)
    result = {"name": "w", "artifact_url": "x"}
    with scripted(Reply(body=found), Reply(body=FILE), Reply(201, result)) as server:
        assert connect(server.url).upload_job_result("w", b"data", job="m") == result
        assert [seen.method for seen in server.seen] == ["GET", "PUT", "POST"]
        assert server.seen[1].target.endswith("/filesets/job-fileset-m/-/results/att-1/w")
        assert server.seen[2].json == {
            "artifact_url": "default/job-fileset-m#results/att-1/w",
            "artifact_storage_type": "fileset",
            "attempt_id": "att-1",
        }


def test_a_folder_is_uploaded_without_its_links(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b").write_bytes(b"bb")
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("/etc")
    os.mkfifo(tmp_path / "fifo")
    found = job("m", attempt_id="att-1", fileset="shared", output_location="shared")
    replies = Reply(body=found), Reply(body=FILE), Reply(body=FILE), Reply(409, {"detail": "there"}, NO)
    there = {"name": "w", "artifact_url": "default/shared#jobs/m/results/att-1/w/"}
    with scripted(*replies, Reply(body=there)) as server:
        assert connect(server.url).upload_job_result("w", tmp_path, job="m") == there
        puts = [seen for seen in server.seen if seen.method == "PUT"]
        base = "/apis/files/v2/workspaces/default/filesets/shared/-/jobs/m/results/att-1/w/"
        assert [seen.target.removeprefix(base) for seen in puts] == ["a", "sub/b"]
        assert server.seen[3].json["artifact_url"] == "default/shared#jobs/m/results/att-1/w/"
        assert server.targets[-1].startswith("GET ")  # the one that is there already


NO = {"x-should-retry": "false"}


def test_what_was_sent_for_a_name_that_is_taken_is_removed_again(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    found = job("m", attempt_id="att-1", fileset="f", output_location=None)
    other = {"name": "w", "artifact_url": "default/f#collected/att-0/w"}
    replies = Reply(body=found), Reply(body=FILE), Reply(body=FILE), Reply(409, {"detail": "there"}, NO)
    with scripted(*replies, Reply(body=other), Reply(body=FILE), Reply(body=FILE)) as server:
        with pytest.raises(Conflict, match=r"has a result 'w' already, which is kept: default/f#collected"):
            connect(server.url).upload_job_result("w", tmp_path, job="m")
        gone = [seen.target for seen in server.seen if seen.method == "DELETE"]
        base = "/apis/files/v2/workspaces/default/filesets/f/-/results/att-1/w/"
        assert [target.removeprefix(base) for target in gone] == ["a", "b"]


def test_a_conflict_of_the_upload_itself_is_raised(connect: Connect) -> None:
    found = job("m", attempt_id="att-1", fileset="f", output_location=None)
    replies = Reply(body=found), Reply(409, {"detail": "busy"}, NO)
    with scripted(*replies) as server, pytest.raises(Conflict, match="busy"):
        connect(server.url).upload_job_result("w", b"data", job="m")


def test_memory_stays_flat(kind: str, tmp_path: Path) -> None:
    size = 96 << 20
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(size)

    with scripted(Reply(body=FILE)) as server:
        server.early = True  # the server doesn't keep what it gets
        with Both(kind, server.url, repeats=0) as client:
            tracemalloc.start()
            try:
                client.put_file("p", big, fileset="f")
                assert tracemalloc.get_traced_memory()[1] < 16 << 20
            finally:
                tracemalloc.stop()


def test_memory_stays_flat_in_a_download_too(kind: str, tmp_path: Path) -> None:
    big = bytes(64 << 20)
    with scripted(Reply(body=big)) as server, Both(kind, server.url) as client:
        tracemalloc.start()
        try:
            download = client.download_file("p", fileset="f")
            client.done(download.write_to_file(tmp_path / "x"))
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
    assert (tmp_path / "x").stat().st_size == 64 << 20


def test_a_broken_download_of_the_async_client_can_be_cancelled(tmp_path: Path) -> None:
    async def run(url: str) -> None:
        async with AsyncJobsClient(url, retry=Retry(repeats=0)) as client:
            download = await client.download_file("a", fileset="f")
            writing = asyncio.create_task(download.write_to_file(tmp_path / "x"))
            while not os.listdir(tmp_path):
                await asyncio.sleep(0.001)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing

    big = bytes(64 << 20)
    with scripted(Reply(body=big, headers=HEAD)) as server:
        asyncio.run(run(server.url))
    assert os.listdir(tmp_path) == []

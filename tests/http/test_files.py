"""Filesets and files over HTTP, on both databases and both kinds of stores."""

import asyncio
import contextlib
import hashlib
import json
import os
import socket

import pytest

from nemo_jobs.engine.sweep_objects import ObjectSweeper
from nemo_jobs.http import downloads
from nemo_jobs.http import files as http_files
from tests.bed.postgres import Missing, PostgresServer
from tests.files.s3 import s3_server
from tests.http.kit import JOBS, body, open_service, served

FILESETS = "/apis/files/v2/workspaces/default/filesets"
FILES = FILESETS + "/data/-"
OWN = FILESETS + "/job-fileset-moth"


@pytest.fixture(scope="module")
def server():
    try:
        server = PostgresServer.start()
    except Missing as error:
        pytest.skip(str(error))
    yield server
    server.destroy()


@pytest.fixture
async def plain(tmp_path):
    """SQLite and a directory: for what neither the database nor the store has a say in."""
    async with open_service(tmp_path, config=settings()) as running:
        await make(running)
        yield running


@pytest.fixture(params=["sqlite and a directory", "postgresql and a bucket"])
async def service(request, tmp_path):
    if request.param.startswith("sqlite"):
        async with open_service(tmp_path, config=settings()) as running:
            await make(running)
            yield running
        return
    server = request.getfixturevalue("server")
    url = server.new_database()
    with s3_server() as bucket:
        storage = {"url": "s3://bucket/nemo", "options": bucket.options}
        async with open_service(tmp_path, url=url, config=settings(storage=storage)) as running:
            await make(running)
            yield running
    server.drop_database(url)


def settings(**files):
    return json.dumps({"platform": {"runtime": "none"}, "files": {"max_upload_bytes": 10_000_000, **files}})


async def make(service, name="data", **given):
    answer = await service.client.post(FILESETS, json={"name": name, **given})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def put(service, path, data=b"hello world\n", **headers):
    return await service.client.put(f"{FILES}/{path}", content=data, headers=named(headers))


async def get(service, path="a", **headers):
    return await service.client.get(f"{FILES}/{path}", headers=named(headers))


def named(headers):
    return {name.replace("_", "-"): value for name, value in headers.items()}


async def paths(service, query="", base=FILESETS + "/data"):
    answer = await service.client.get(f"{base}/files{query}")
    assert answer.status_code == 200, answer.text
    return [item["path"] for item in answer.json()["data"]]


def objects_in(folder):
    return sorted(path.name for path in (folder / "files").rglob("*") if path.is_file())


# -- filesets


async def test_a_fileset_has_the_familys_form(service):
    made = await make(
        service,
        "more",
        description="d",
        purpose="model",
        metadata={"model": {"a": 1}},
        custom_fields={"b": None},
    )
    assert made.pop("id").startswith("fileset-")
    assert made.pop("created_at") == made.pop("updated_at")
    assert made == {
        "name": "more",
        "workspace": "default",
        "description": "d",
        "purpose": "model",
        "project": "",
        "storage": {
            "type": "local",
            "path": "default/more",
            "read_chunk_size": 1048576,
            "write_buffer_size": 16777216,
        },
        "custom_fields": {"b": None},
        "metadata": {"dataset": None, "model": {"a": 1}, "environment": None},
    }
    page = (await service.client.get(f"{FILESETS}?page_size=1&sort=name")).json()
    assert [item["name"] for item in page["data"]] == ["data"]
    assert page["pagination"]["total_results"] == 2


async def test_a_fileset_is_changed_and_deleted_with_its_files(service):
    await put(service, "a")
    changed = await service.client.patch(f"{FILESETS}/data", json={"description": "new", "name": "ignored"})
    assert (changed.json()["description"], changed.json()["name"]) == ("new", "data")
    assert (await service.client.patch(f"{FILESETS}/data", json={"description": None})).json()[
        "description"
    ] == ""
    gone = await service.client.delete(f"{FILESETS}/data")
    assert (gone.status_code, gone.json()["name"]) == (200, "data")
    assert (await service.client.get(f"{FILESETS}/data")).status_code == 404
    assert (await get(service)).status_code == 404
    assert (await service.client.delete(f"{FILESETS}/data")).status_code == 404


@pytest.mark.parametrize(
    ("given", "status", "says"),
    [
        ({"name": "data"}, 409, "exists already"),
        ({"name": "X"}, 422, "name"),
        ({"name": "ok", "description": "x" * 256}, 422, "255"),
        ({"name": "ok", "purpose": "fun"}, 422, "purpose"),
        ({"name": "ok", "project": "none"}, 422, "project 'none' does not exist"),
        ({"name": "ok", "storage": {"type": "huggingface"}}, 422, "'huggingface' is not offered"),
        ({"name": "ok", "metadata": [1]}, 422, "metadata"),
    ],
)
async def test_a_fileset_that_can_not_be_says_why(plain, given, status, says):
    answer = await plain.client.post(FILESETS, json=given)
    assert answer.status_code == status
    assert says in answer.text
    if status == 409:
        assert answer.headers["x-should-retry"] == "false"


async def test_lists_of_filesets_have_bounds(plain):
    assert (await plain.client.get(f"{FILESETS}?page_size=101")).status_code == 422
    assert (await plain.client.get(f"{FILESETS}?sort=size")).status_code == 422
    missing = await plain.client.get("/apis/files/v2/workspaces/nowhere/filesets")
    assert (missing.status_code, "'nowhere'" in missing.text) == (404, True)


# -- jobs


async def test_a_job_brings_its_fileset_and_takes_it_along(service, tmp_path):
    await service.create()
    assert (await service.client.get(OWN)).json()["name"] == "job-fileset-moth"
    taken = await service.client.post(FILESETS, json={"name": "job-fileset-moth"})
    assert taken.status_code == 409
    answer = await service.client.put(f"{OWN}/-/results/a/weights", content=b"x" * 10)
    assert answer.status_code == 200
    assert await paths(service, base=OWN) == ["results/a/weights"]
    await service.client.post(f"{JOBS}/moth/cancel")
    assert (await service.client.delete(f"{JOBS}/moth")).status_code == 204
    assert (await service.client.get(OWN)).status_code == 404
    assert (await service.client.get(f"{OWN}/-/results/a/weights")).status_code == 404
    await service.create()
    assert await paths(service, base=OWN) == []


async def test_a_fileset_of_that_name_keeps_the_job_away(service):
    await make(service, "job-fileset-moth")
    answer = await service.client.post(JOBS, json=body())
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert "fileset 'job-fileset-moth'" in answer.json()["detail"]
    assert (await service.client.get(f"{JOBS}/moth")).status_code == 404


async def test_an_output_location_is_checked_used_and_kept(service):
    missing = await service.client.post(JOBS, json=body(output_location="nothing"))
    assert missing.status_code == 422
    assert "output_location 'nothing': no such fileset" in missing.json()["detail"]
    await put(service, "kept")
    job = await service.create(output_location="data")
    assert (job["fileset"], job["output_location"]) == ("data", "data")
    assert (await service.client.get(OWN)).status_code == 404
    await service.client.post(f"{JOBS}/moth/cancel")
    assert (await service.client.delete(f"{JOBS}/moth")).status_code == 204
    assert await paths(service) == ["kept"]


async def test_a_fileset_that_is_gone_is_no_error_when_its_job_is_deleted(service):
    await service.create()
    await service.client.put(f"{OWN}/-/a", content=b"x")
    assert (await service.client.delete(OWN)).status_code == 200
    assert (await service.client.get(OWN)).status_code == 404
    assert (await service.client.put(f"{OWN}/-/a", content=b"x")).status_code == 404
    await service.client.post(f"{JOBS}/moth/cancel")
    assert (await service.client.delete(f"{JOBS}/moth")).status_code == 204


# -- files


async def test_a_file_is_put_listed_got_and_deleted(service):
    answer = await put(service, "notes/a.txt", content_type="text/plain")
    shown = {
        "file_ref": "default/data#notes/a.txt",
        "file_url": f"{FILES}/notes/a.txt",
        "path": "notes/a.txt",
        "size": 12,
        "cache_status": None,
    }
    assert (answer.status_code, answer.json()) == (200, shown)
    listed = await service.client.get(f"{FILESETS}/data/files?path=notes&include_cache_status=true")
    assert listed.json() == {"data": [shown]}
    found = await get(service, "notes/a.txt")
    assert (found.status_code, found.content) == (200, b"hello world\n")
    assert found.headers["content-type"] == "text/plain"
    assert found.headers["content-disposition"] == 'attachment; filename="a.txt"'
    assert found.headers["etag"] == f'"{hashlib.sha256(found.content).hexdigest()}"'
    assert "content-encoding" not in found.headers
    gone = await service.client.delete(f"{FILES}/notes/a.txt")
    assert (gone.status_code, gone.json()) == (200, shown)
    assert (await get(service, "notes/a.txt")).status_code == 404


@pytest.mark.parametrize("kind", ["application/octet-stream", "application/json", "text/html", "", None])
async def test_a_file_may_be_of_any_type(plain, kind):
    headers = {} if kind is None else {"content-type": kind}
    answer = await plain.client.put(f"{FILES}/page.html", content=b"<p>", headers=headers)
    assert answer.status_code == 200, answer.text
    found = await get(plain, "page.html")
    assert found.headers["content-disposition"].startswith("attachment")
    assert found.headers["x-content-type-options"] == "nosniff"


async def test_pages_of_others_can_not_put_files(plain):
    answer = await put(plain, "a", origin="https://evil.example", content_type="text/plain")
    assert answer.status_code == 403
    asked = await plain.client.options(
        f"{FILES}/a", headers={"origin": "https://evil.example", "access-control-request-method": "PUT"}
    )
    assert asked.status_code == 403
    other = await plain.client.patch(
        f"{FILESETS}/data", content=b"{}", headers={"content-type": "text/plain"}
    )
    assert other.status_code == 415
    assert await paths(plain) == []


@pytest.mark.parametrize("name", ["a b", "ü ☃", "100%", "a?b#c", "x;y=1", 'q"uote', "a+b&c"])
async def test_names_keep_their_characters(plain, name):
    from urllib.parse import quote

    answer = await put(plain, f"dir/{quote(name, safe='')}", b"x")
    assert answer.status_code == 200, answer.text
    assert answer.json()["path"] == f"dir/{name}"
    assert (await plain.client.get(answer.json()["file_url"])).content == b"x"
    assert await paths(plain, f"?path=dir/{quote(name, safe='')}") == [f"dir/{name}"]


async def test_a_slash_may_be_encoded(plain):
    assert (await put(plain, "notes%2Fa.txt")).json()["path"] == "notes/a.txt"


@pytest.mark.parametrize(
    "path",
    [
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/x",
        "%252e%252e",
        "%252e%252e%252fx",
        "..%5cx",
        "%2fetc%2fpasswd",
        "/etc/passwd",
        "a/%2e%2e/%2e%2e/b",
        "a/./b",
        "a//b",
        "a/",
        "",
        "a%00b",
        "a%0ab",
        "a%2500b",
        "%ff%fe",
        "x" * 256,
        "/".join(["a"] * 65),
    ],
)
async def test_c047_paths_that_lead_outside_are_refused_in_every_spelling(plain, path, tmp_path):
    """The path is sent as it stands: clients would tidy it up."""
    before = sorted(tmp_path.rglob("*"))
    for method in ("PUT", "GET", "HEAD", "DELETE"):
        status, text = await raw(plain, method, f"{FILES}/{path}")
        assert status == 422, (method, status, text)
        if method != "HEAD":
            assert json.loads(text)["detail"].isprintable()
    assert await paths(plain) == []
    assert [
        path for path in sorted(tmp_path.rglob("*")) if path not in before and "files" not in path.parts
    ] == []


async def raw(plain, method, path):
    """Status and body of a request whose path nobody touches."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"x" if method == "PUT" else b"", "more_body": False}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), *([(b"content-length", b"1")] if method == "PUT" else [])]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
    }
    await plain.app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def test_c047_a_list_below_a_path_that_leads_outside_is_refused(plain):
    for path in ("..", "a/../..", "%2Fetc", "a%5C..", "%252e%252e"):
        assert (await plain.client.get(f"{FILESETS}/data/files?path={path}")).status_code == 422


async def test_a_path_is_a_file_or_a_folder(service):
    await put(service, "a/b")
    for path in ("a", "a/b/c"):
        answer = await put(service, path)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    folder = await get(service, "a")
    assert (folder.status_code, "is a folder" in folder.text) == (404, True)


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"content-encoding": "gzip"}, 415, "content-encoding 'gzip' is not taken"),
        ({"content-range": "bytes 0-1/5"}, 400, "Content-Range"),
        ({"content-length": "10000001"}, 413, "larger than 10000000 bytes"),
    ],
)
async def test_uploads_that_can_not_be_stored_as_they_are_are_refused(plain, headers, status, says):
    answer = await plain.client.put(f"{FILES}/a", content=b"x", headers=headers)
    assert (answer.status_code, says in answer.text) == (status, True)
    assert await paths(plain) == []


async def test_an_upload_of_unknown_length_ends_at_the_limit(service):
    async def endless():
        while True:
            yield bytes(1_000_000)

    answer = await service.client.put(f"{FILES}/a", content=endless())
    assert answer.status_code == 413
    assert answer.headers["connection"] == "close"
    assert await paths(service) == []


async def test_an_upload_to_nowhere_is_told_so(plain):
    answer = await plain.client.put(f"{FILESETS}/nothing/-/a", content=b"x" * 1000)
    assert (answer.status_code, "no fileset 'nothing'" in answer.text) == (404, True)
    assert "connection" not in answer.headers  # all of the body was taken


async def test_many_files_are_listed_in_one_answer(service, monkeypatch):
    monkeypatch.setattr(http_files, "FILES_A_PAGE", 7)
    names = [f"d/{number:03}" for number in range(21)]
    for name in names:
        await put(service, name, b"")
    assert await paths(service) == names
    assert await paths(service, "?path=d/") == names
    assert await paths(service, "?path=d/004") == ["d/004"]
    assert await paths(service, "?path=e") == []


# -- parts and conditions


DATA = bytes(range(256)) * 40


@pytest.mark.parametrize(
    ("asked", "first", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-9", 5, 10),
        ("bytes=10000-", 10000, 10240),
        ("bytes=-240", 10000, 10240),
        ("bytes=-999999", 0, 10240),
        ("bytes=0-999999", 0, 10240),
        ("Bytes = 5 - 9", 5, 10),
    ],
)
async def test_a_part_of_a_file(plain, asked, first, end):
    await put(plain, "a", DATA)
    answer = await get(plain, range=asked)
    assert (answer.status_code, answer.content) == (206, DATA[first:end])
    assert answer.headers["content-range"] == f"bytes {first}-{end - 1}/{len(DATA)}"
    assert answer.headers["content-length"] == str(end - first)


@pytest.mark.parametrize(
    "asked", ["bytes=0-1,5-6", "bytes=9-5", "bytes=-", "bytes=x", "lines=0-1", "", "bytes"]
)
async def test_a_range_that_does_not_count_gives_the_whole_file(plain, asked):
    await put(plain, "a", DATA)
    answer = await get(plain, range=asked)
    assert (answer.status_code, answer.content) == (200, DATA)


@pytest.mark.parametrize(
    "asked", ["bytes=10240-", "bytes=10240-10250", "bytes=-0", "bytes=999999999999999999-"]
)
async def test_a_range_outside_of_the_file(plain, asked):
    await put(plain, "a", DATA)
    answer = await get(plain, range=asked)
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10240")


async def test_a_range_of_another_version_gives_the_whole_new_one(plain):
    tag = (await put(plain, "a", DATA), await get(plain))[1].headers["etag"]
    assert (await get(plain, range="bytes=0-1", if_range=tag)).status_code == 206
    when = (await get(plain)).headers["last-modified"]
    assert (await get(plain, range="bytes=0-1", if_range=when)).status_code == 206
    for other in ('"other"', f"W/{tag}", "Fri, 01 Jan 2021 00:00:00 GMT", "nonsense"):
        answer = await get(plain, range="bytes=0-1", if_range=other)
        assert (answer.status_code, answer.content) == (200, DATA)


async def test_what_the_caller_has_already_is_not_sent_again(plain):
    await put(plain, "a", DATA)
    known = (await get(plain)).headers
    same = [
        {"if_none_match": known["etag"]},
        {"if_none_match": f'"x", W/{known["etag"]}'},
        {"if_none_match": "*"},
        {"if_modified_since": known["last-modified"]},
        {"if_none_match": known["etag"], "if_modified_since": "Fri, 01 Jan 2021 00:00:00 GMT"},
    ]
    for headers in same:
        answer = await get(plain, **headers)
        assert (answer.status_code, answer.content) == (304, b""), headers
        assert answer.headers["etag"] == known["etag"]
    changed = [
        {"if_none_match": '"x"'},
        {"if_modified_since": "Fri, 01 Jan 2021 00:00:00 GMT"},
        {"if_modified_since": "nonsense"},
        {"if_none_match": '"x"', "if_modified_since": known["last-modified"]},
    ]
    for headers in changed:
        assert (await get(plain, **headers)).status_code == 200, headers
    assert (await get(plain, if_match='"x"')).status_code == 412
    assert (await get(plain, if_match=known["etag"])).status_code == 200


async def test_head_tells_what_get_would(service):
    await put(service, "a.bin", DATA)
    found = await get(service, "a.bin")
    head = await service.client.head(f"{FILES}/a.bin", headers={"range": "bytes=0-1"})
    assert (head.status_code, head.content) == (200, b"")
    assert dict(head.headers) == dict(found.headers)
    assert (await service.client.head(f"{FILES}/nothing")).status_code == 404


async def test_an_empty_file(service):
    assert (await put(service, "a", b"")).json()["size"] == 0
    answer = await get(service)
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "0")
    assert (await get(service, range="bytes=0-")).status_code == 416


# -- what goes wrong


async def test_bytes_that_are_lost_are_told_before_the_first_one(service):
    await put(service, "a", DATA)
    objects = service.app._api.parts.objects
    record = (await service.db.read(lambda tx: tx.run(ALL_OBJECTS)))[0]
    await objects.remove(record[0])
    answer = await get(service)
    assert answer.status_code == 404
    assert answer.json()["detail"] == "the bytes of file 'a' of fileset 'data' are missing in the file store"


async def test_old_bytes_go_after_a_while_and_those_in_use_stay(service):
    objects, clock = service.app._api.parts.objects, service.clock
    sweeper = ObjectSweeper(service.db, objects, clock)
    await put(service, "a", b"old")
    (old,) = (await service.db.read(lambda tx: tx.run(ALL_OBJECTS)))[0]
    await put(service, "a", b"new")
    assert await sweeper.remove_due() == 0
    assert b"".join([piece async for piece in objects.read(old)]) == b"old"
    clock.advance(601)
    assert await sweeper.remove_due() == 1
    with pytest.raises(Exception, match="not in the file store"):
        await anext(objects.read(old))
    assert (await get(service)).content == b"new"
    clock.advance(100_000)
    assert await sweeper.remove_due() == 0


async def test_two_uploads_of_one_name_at_once_leave_one_whole_file(service):
    first, second = os.urandom(3_000_000), os.urandom(3_000_000)

    async def slowly(data):
        for at in range(0, len(data), 100_000):
            yield data[at : at + 100_000]
            await asyncio.sleep(0)

    answers = await asyncio.gather(
        *(service.client.put(f"{FILES}/a", content=slowly(data)) for data in (first, second))
    )
    assert [answer.status_code for answer in answers] == [200, 200]
    assert (await get(service)).content in (first, second)


async def test_c034_an_upload_that_is_cut_is_never_seen(service):
    await put(service, "old", b"whole")
    async with served(service.app) as port:
        for path in ("new", "old"):
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"PUT {FILES}/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000000\r\n\r\n"
            writer.write(head.encode() + bytes(2_000_000))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        for _ in range(200):
            if await released(service) == 2:
                break
            await asyncio.sleep(0.01)
        assert await released(service) == 2
    assert await paths(service) == ["old"]
    assert (await get(service, "old")).content == b"whole"


async def released(service):
    """Uploads that failed, and whose objects go in ten minutes instead of a day."""
    soon = service.clock.now() + 700_000_000
    return len([due for (due,) in await service.db.read(lambda tx: tx.run(ALL_DUE)) if due <= soon])


async def test_an_upload_that_stalls_is_given_up(plain, monkeypatch):
    monkeypatch.setattr(http_files, "IDLE_SECONDS", 0.05)
    async with served(plain.app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"PUT {FILES}/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000000\r\n\r\n"
        writer.write(head.encode() + bytes(100))
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer.lower()
        writer.close()
    assert await paths(plain) == []


async def test_a_reader_that_goes_away_frees_the_file(service):
    data = os.urandom(9_000_000)
    await put(service, "a", data)
    async with served(service.app) as port:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {FILES}/a HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert await reader.read(1000)
            writer.close()
        assert (await get(service)).content == data
        for _ in range(200):
            if not [task for task in asyncio.all_tasks() if "_until_gone" in repr(task)]:
                break
            await asyncio.sleep(0.01)
        assert not [task for task in asyncio.all_tasks() if "_until_gone" in repr(task)]


async def _stalled(port):
    """A download whose reader takes its begin and then nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection, limit=1024)
    writer.write(f"GET {FILES}/big HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    assert (await reader.readexactly(15)) == b"HTTP/1.1 200 OK"
    return reader, writer


async def _end(writer):
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_downloads_at_once_are_bounded(service, monkeypatch):
    """Each holds a few pieces as long as its reader is slow."""
    monkeypatch.setattr(downloads, "MOST", 2)
    await put(service, "big", bytes(9_000_000))
    await put(service, "small", b"x")
    async with served(service.app) as port:
        first, second = await _stalled(port), await _stalled(port)
        answer = await get(service, "big")
        assert answer.status_code == 503 and "retry-after" in answer.headers
        assert "2 downloads are under way" in answer.json()["detail"]
        assert (await get(service, "small")).content == b"x"
        for _, writer in (first, second):
            await _end(writer)
        for _ in range(500):
            if not downloads._under_way:
                break
            await asyncio.sleep(0.01)
        assert (await get(service, "big")).status_code == 200


async def test_a_slow_reader_is_dropped_sooner_in_a_crowd(service, monkeypatch):
    monkeypatch.setattr(downloads, "CROWD", 0)
    monkeypatch.setattr(downloads, "CROWDED_PATIENCE", 0.05)
    await put(service, "big", bytes(9_000_000))
    async with served(service.app) as port:
        _, writer = await _stalled(port)
        for _ in range(500):
            if not downloads._under_way:
                break
            await asyncio.sleep(0.01)
        assert not downloads._under_way
        await _end(writer)


async def test_without_a_file_store_the_answer_is_503(tmp_path):
    from dataclasses import replace

    async with open_service(tmp_path) as service:
        await make(service)
        service.app._api = replace(service.app._api, parts=replace(service.app._api.parts, objects=None))
        assert (await put(service, "a")).status_code == 503


def _text(sql):
    import sqlalchemy as sa

    return sa.text(sql)


ALL_OBJECTS = _text("SELECT object FROM file")
ALL_DUE = _text("SELECT due_at FROM object_removal")

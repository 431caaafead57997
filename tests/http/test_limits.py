"""Bounds that need a real connection."""

import asyncio
import json

import pytest

from nemo_jobs.http import transport
from tests.http.kit import JOBS, body, open_service, served


@pytest.fixture
async def running(tmp_path):
    async with open_service(tmp_path) as service, served(service.app) as port:
        service.port = port
        yield service


async def raw(port, *chunks, wait=True):
    """Send bytes as they are; the answer's status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for chunk in chunks:
        writer.write(chunk)
        await writer.drain()
    if not wait:
        writer.close()
        return None, b""
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(
            next(line for line in head.split("\r\n") if line.lower().startswith("content-length:")).split(
                ":"
            )[1]
        )
        content = await reader.readexactly(length)
    writer.close()
    return int(head.split()[1]), content


def post(content, **headers):
    shown = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return (
        f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{shown}\r\n".encode()
        + content
    )


async def test_a_body_over_the_limit_is_413_before_it_is_read(running):
    status, content = await raw(running.port, post(b"", **{"Content-Length": 8 * 1024 * 1024 + 1}))
    assert status == 413
    assert "8 MiB" in json.loads(content)["detail"]


async def test_a_head_without_end_is_431(running):
    try:
        status, content = await raw(
            running.port, b"GET /status HTTP/1.1\r\nHost: localhost\r\nX: ", *[b"x" * 65536] * 8
        )
    except ConnectionError:
        return  # it was closed while we were still sending: the answer may be lost then
    assert status == 431
    assert "64 KiB" in json.loads(content)["detail"]


async def test_a_long_head_and_a_large_body_in_one_go_are_fine(running):
    content = json.dumps(body(description="x" * 200_000)).encode()
    status, _ = await raw(running.port, post(content, **{"Content-Length": len(content), "X": "y" * 60_000}))
    assert status == 201


@pytest.mark.parametrize(("sent", "status"), [(b"", None), (b"GET /status HTTP/1.1\r\nHost: lo", b"408")])
async def test_a_head_that_does_not_come_ends_its_connection(running, monkeypatch, sent, status):
    monkeypatch.setattr(transport, "HEAD_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(sent)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    assert answer.split()[1:2] == ([] if status is None else [status])


async def test_connections_beyond_what_the_process_can_hold_are_refused(running, monkeypatch):
    monkeypatch.setattr(transport, "most_connections", lambda: 3)
    idle = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(3)]
    await asyncio.sleep(0.05)
    get = b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"
    status, content = await raw(running.port, get)
    assert (status, "connections" in json.loads(content)["detail"]) == (503, True)
    idle.pop()[1].close()
    await asyncio.sleep(0.05)
    assert (await raw(running.port, get))[0] == 200
    for _, writer in idle:
        writer.close()


async def test_what_is_not_http_is_told_as_json(running):
    status, content = await raw(running.port, b"\x16\x03\x01\r\n\r\n")
    assert (status, list(json.loads(content))) == (400, ["detail"])


async def test_a_chunked_body_over_the_limit_is_413(running):
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    try:
        status, _ = await raw(
            running.port, post(b"", **{"Transfer-Encoding": "chunked"}), *[piece] * 140, b"0\r\n\r\n"
        )
    except ConnectionError:
        return  # it was closed while we were still sending: the answer may be lost then
    assert status == 413


async def test_a_body_just_under_the_limit_is_read(running):
    filler = "x" * (8 * 1024 * 1024 - 400)
    content = json.dumps(body(spec={"filler": filler})).encode()
    assert len(content) <= 8 * 1024 * 1024
    status, _ = await raw(running.port, post(content, **{"Content-Length": len(content)}))
    assert status == 201


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(running, monkeypatch):
    monkeypatch.setattr("nemo_jobs.http.request.BODY_SECONDS", 0.05)
    for start in (b"", b'{"name":'):
        status, content = await raw(running.port, post(start, **{"Content-Length": 500}))
        assert status == 408
        assert "0.05 s" in json.loads(content)["detail"]


async def test_c088_a_create_whose_client_is_gone_is_finished(running):
    content = json.dumps(body()).encode()
    await raw(running.port, post(content, **{"Content-Length": len(content)}), wait=False)
    async with asyncio.timeout(5):
        while (await running.client.get(f"{JOBS}/moth")).status_code != 200:
            await asyncio.sleep(0.01)


async def test_c088_half_a_request_creates_nothing_and_breaks_nothing(running, caplog):
    content = json.dumps(body()).encode()
    await raw(running.port, post(content[:40], **{"Content-Length": len(content)}), wait=False)
    status, _ = await raw(running.port, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status == 200
    assert (await running.client.get(f"{JOBS}/moth")).status_code == 404
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/apis/jobs/v2/workspaces/default/jobs/a%2Fcancel", 404),
        ("/apis/jobs/v2/workspaces/default/jobs/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 404),
        ("/apis/jobs/v2/workspaces/default/jobs/..%2f..%2fhealth%2flive", 404),
        ("/apis/jobs/v2/workspaces/default/jobs/%00", 404),
        ("/apis/jobs/v2/workspaces/default/jobs/%", 404),
        ("/apis/jobs/v2/workspaces/default/jobs/%zz", 404),
        ("/apis/jobs/v2/workspaces/default/jobs/moth/../../../../../../health/live", 404),
        ("/apis/jobs/v2/workspaces/default/jobs/" + "x" * 5000, 404),
    ],
)
async def test_c059_paths_on_the_wire_that_name_nothing_are_404(running, target, status):
    found, _ = await raw(running.port, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert found == status

"""Bounds that need a real connection."""

import asyncio
import json

import pytest

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

"""One large result up and down: through the service, and through a bare streaming Starlette route."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.machine import reset_peak, rss
from bench.measures import Bench, Values
from tests.e2e.service import JOBS, Client, free_port, until

BLOCKS, BLOCK = 1024, os.urandom(1024 * 1024)
FILESETS = "/apis/files/v2/workspaces/default/filesets"

FLOOR = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
async def put(request):
    with open(sys.argv[2], 'wb') as file:
        async for chunk in request.stream():
            file.write(chunk)
    return Response(b'{}')
def blocks():
    with open(sys.argv[2], 'rb') as file:
        while block := file.read(524288):
            yield block
async def get(request):
    return StreamingResponse(blocks())
app = Starlette(routes=[Route('/', put, methods=['PUT']), Route('/', get)])
uvicorn.run(app, port=int(sys.argv[1]), http='httptools', loop='asyncio', log_config=None, access_log=False)
"""


def files(bench: Bench) -> Values:
    """MB a second up and down, and how much the service's memory grows meanwhile."""
    blocks, (name,) = bench.count(BLOCKS), bench.names(1)
    client = bench.client()
    client.create(name, ["true"])
    fileset = client.wait(name)["fileset"]
    artifact = {"artifact_url": f"default/{fileset}#large", "artifact_storage_type": "fileset"}
    port, pid, path = bench.service.port, bench.service.pid, f"{FILESETS}/{fileset}/-/large"
    upload(port, path, 1)
    result = f"{JOBS}/{name}/results/large"
    assert client.post(result, artifact).status == 201
    download(port, f"{result}/download", 1)
    reset_peak(pid)
    before = rss(pid)
    up = upload(port, path, blocks)
    down = download(port, f"{result}/download", blocks)
    grown = rss(pid, "VmHWM") - before
    assert client.call("DELETE", f"{JOBS}/{name}").status == 204
    with bare_route(bench.root / "floor.bin") as floor:
        upload(floor, "/", 1)
        floor_up, floor_down = upload(floor, "/", blocks), download(floor, "/", blocks)
    return {
        "upload_mb_per_second": up,
        "download_mb_per_second": down,
        "transfer_memory_mib": grown,
        "floor_upload_mb_per_second": floor_up,
        "floor_download_mb_per_second": floor_down,
    }


def upload(port: int, path: str, blocks: int) -> float:
    """Put a file of so many MiB; MB a second."""
    size = blocks * len(BLOCK)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        began = time.perf_counter()
        head = f"PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n\r\n"
        connection.sendall(head.encode())
        for _ in range(blocks):
            connection.sendall(BLOCK)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return size / (time.perf_counter() - began) / 1e6


def download(port: int, path: str, blocks: int) -> float:
    """Get so many MiB; MB a second."""
    size = blocks * len(BLOCK)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        began = time.perf_counter()
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        into, got = memoryview(bytearray(len(BLOCK))), 0
        while n := connection.recv_into(into):
            got += n
        seconds = time.perf_counter() - began
    assert got > size, f"only {got} of {size} bytes came back"
    return size / seconds / 1e6


@contextlib.contextmanager
def bare_route(file: Path) -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", FLOOR, str(port), str(file)])
    try:
        until(lambda: _answers(port), 20, every=0.01)
        yield port
    finally:
        process.terminate()
        process.wait(10)
        file.unlink(missing_ok=True)


def _answers(port: int) -> bool:
    try:
        return Client(port, 2).get("/nothing").status == 404
    except OSError:
        return False

"""Files in a real service: kills in the middle, large ones with little memory, the wrong store."""

import http.client
import os
import re
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.e2e.service import Service, until

FILESETS = "/apis/files/v2/workspaces/default/filesets"
FILES = f"{FILESETS}/data/-"
MIB = 1024 * 1024


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.close()


def make(service: Service) -> None:
    assert service.client().post(FILESETS, {"name": "data"}).status == 200


def put(service: Service, path: str, block: bytes, times: int = 1) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=50)
    blocks = (block for _ in range(times))
    connection.request("PUT", f"{FILES}/{path}", blocks, {"content-length": str(len(block) * times)})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


@contextmanager
def getting(service: Service, path: str) -> Iterator[http.client.HTTPResponse]:
    with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=50)) as connection:
        connection.request("GET", f"{FILES}/{path}")
        with connection.getresponse() as answer:
            yield answer


def paths(service: Service) -> list[str]:
    answer = service.client().get(f"{FILESETS}/data/files")
    assert answer.status == 200, answer
    return [item["path"] for item in answer.json["data"]]


def stored(service: Service) -> list[Path]:
    """Files in the store, complete or not, but for its identity."""
    found = (service.data_dir / "files").rglob("*")
    return [path for path in found if path.is_file() and path.name != "store-id"]


def memory(service: Service) -> tuple[int, int]:
    """What the service has in memory now and had at most, in MiB."""
    status = Path(f"/proc/{service.pid}/status").read_text()
    now, most = (re.search(rf"{name}:\s+(\d+) kB", status) for name in ("VmRSS", "VmHWM"))
    assert now is not None
    assert most is not None
    return int(now[1]) // 1024, int(most[1]) // 1024


def test_c034_an_upload_in_which_the_service_is_killed_is_never_seen(service: Service) -> None:
    service.start()
    make(service)
    assert put(service, "old", b"whole") == 200
    kept = stored(service)
    for path in ("new", "old"):
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            head = f"PUT {FILES}/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {100 * MIB}\r\n\r\n"
            connection.sendall(head.encode() + os.urandom(8 * MIB))
            until(lambda: sum(file.stat().st_size for file in stored(service)) > 2 * MIB)
            service.kill()
        service.start()
        assert stored(service) == kept, "what the upload left was not swept"
        assert paths(service) == ["old"]
        assert service.client().get(f"{FILES}/old").body == b"whole"
    assert put(service, "new", b"again") == 200
    assert service.client().get(f"{FILES}/new").body == b"again"


def test_c034_a_download_in_which_the_service_is_killed_is_not_taken_for_whole(service: Service) -> None:
    service.start()
    make(service)
    assert put(service, "a", os.urandom(MIB), 40) == 200
    with getting(service, "a") as answer:
        assert answer.read(MIB)
        service.kill()
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()


def test_a_stop_in_the_middle_of_transfers_is_quick_and_quiet(service: Service) -> None:
    service.start()
    make(service)
    assert put(service, "a", os.urandom(MIB), 40) == 200
    with (
        getting(service, "a") as answer,
        socket.create_connection(("127.0.0.1", service.port)) as connection,
    ):
        assert answer.read(1000)
        head = f"PUT {FILES}/b HTTP/1.1\r\nhost: localhost\r\ncontent-length: {100 * MIB}\r\n\r\n"
        connection.sendall(head.encode() + os.urandom(4 * MIB))
        until(lambda: len(stored(service)) > 1)
        assert service.stop() == 0
    assert "Traceback" not in service.stderr.read_text()
    assert len(stored(service)) == 1


@pytest.mark.time_limit(180)
def test_c071_a_large_file_flows_through_and_memory_stays_flat(service: Service) -> None:
    service.start()
    make(service)
    assert put(service, "small", b"x" * MIB) == 200
    assert service.client().get(f"{FILES}/small").status == 200
    before, _ = memory(service)
    block = os.urandom(MIB)
    assert put(service, "large", block, 300) == 200
    size = 0
    with getting(service, "large") as answer:
        while piece := answer.read(MIB):
            assert piece == block
            size += len(piece)
    assert size == 300 * MIB
    _, most = memory(service)
    assert most - before < 32, (before, most)


def test_c071_a_slow_reader_holds_nobody_up_and_little_memory(service: Service) -> None:
    service.start()
    make(service)
    assert put(service, "large", os.urandom(MIB), 60) == 200
    before, _ = memory(service)
    slow = []
    for _ in range(8):
        connection = socket.create_connection(("127.0.0.1", service.port))
        connection.sendall(f"GET {FILES}/large HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        slow.append(connection)
    assert service.client(timeout=10).get("/apis/jobs/v2/workspaces/default/jobs").status == 200
    assert put(service, "other", b"x" * MIB) == 200
    _, most = memory(service)
    assert most - before < 60, (before, most)
    for connection in slow:
        connection.close()
    until(lambda: not opened(service), 10, lambda: f"still open: {opened(service)}")


def opened(service: Service) -> list[str]:
    """Objects that the service holds open."""
    found = []
    for link in Path(f"/proc/{service.pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if "/files/objects/" in target:
            found.append(target)
    return found


def test_a_service_on_another_store_does_not_start_and_says_what_to_do(service: Service) -> None:
    service.start()
    make(service)
    assert put(service, "a", b"x") == 200
    identity = (service.data_dir / "files" / "store-id").read_text().strip()
    service.stop()
    (service.data_dir / "files" / "store-id").unlink()
    refused = subprocess.run(
        service.command, capture_output=True, text=True, env=service.environ, timeout=20, check=False
    )
    assert refused.returncode == 2
    assert "is not the file store that this database belongs to" in refused.stderr
    assert identity in refused.stderr
    assert "Traceback" not in refused.stderr
    (service.data_dir / "files" / "store-id").write_text(f"{identity}\n")
    service.start()


def test_a_store_that_can_not_be_used_is_told_at_the_start(service: Service) -> None:
    (service.root / "file").write_text("")
    service.add_settings({"files": {"storage": {"url": f"file://{service.root}/file/below"}}})
    refused = subprocess.run(
        service.command, capture_output=True, text=True, env=service.environ, timeout=20, check=False
    )
    assert refused.returncode == 2
    assert "can't be used" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_bytes_that_nothing_names_are_removed_when_their_time_has_come(service: Service) -> None:
    service.start()
    make(service)
    for path in ("kept", "deleted"):
        assert put(service, path, b"x") == 200
    assert service.client().call("DELETE", f"{FILES}/deleted").status == 200
    service.stop()
    assert len(stored(service)) == 2
    with closing(sqlite3.connect(service.data_dir / "nemo-jobs.db")) as db:
        assert db.execute("UPDATE object_removal SET due_at = 0").rowcount == 1
        db.commit()
    service.start()
    until(lambda: len(stored(service)) == 1)
    assert service.client().get(f"{FILES}/kept").body == b"x"

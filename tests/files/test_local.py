"""The directory of files: modes, leftovers, links, a full disk."""

import asyncio
import errno
import os
import stat
import subprocess
import sys
import threading

import pytest

from nemo_jobs.files import local
from nemo_jobs.files.local import LocalObjects
from nemo_jobs.files.objects import ObjectMissing, ObjectsUnavailable, new_key
from tests.files.test_objects import chunks, content


@pytest.fixture
def objects(tmp_path):
    made = LocalObjects(tmp_path / "files")
    made.prepare()
    return made


def everything(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_all_of_it_is_for_its_owner_alone(objects):
    await objects.put(new_key(), chunks(b"x"))
    await objects.identity()
    for path in (objects.root, *objects.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


async def test_what_a_killed_process_left_is_swept_and_running_uploads_are_not(objects):
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from nemo_jobs.files.local import _Upload\n"
        "upload = _Upload(Path(sys.argv[1]), Path('/nowhere'))\n"
        "upload.write([b'half'])\n"
        "print('written', flush=True)\n"
        "sys.stdin.read()\n"
    )
    partial = objects.root / "partial"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(partial)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        assert LocalObjects(objects.root).prepare() == 0
        assert len(everything(partial)) == 1
        process.kill()
    assert LocalObjects(objects.root).prepare() == 1
    assert everything(partial) == []


async def test_failed_uploads_leave_no_file(objects):
    with pytest.raises(ConnectionResetError):
        await objects.put(new_key(), chunks(bytes(2_000_000), then=ConnectionResetError()))
    objects._threads.shutdown(wait=True)
    assert everything(objects.root / "partial") == []


async def test_a_link_in_the_place_of_an_object_is_not_followed(objects, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    key = new_key()
    await objects.put(key, chunks(b"x"))
    path = objects._path(key)
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(ObjectsUnavailable):
        await content(objects, key)
    await objects.remove(key)
    assert secret.read_text() == "hunter2"


async def test_an_object_stays_readable_for_who_reads_it_while_it_is_removed(objects):
    key, data = new_key(), os.urandom(3_000_000)
    await objects.put(key, chunks(data))
    reading = objects.read(key)
    first = await anext(reading)
    await objects.remove(key)
    assert first + b"".join([piece async for piece in reading]) == data
    with pytest.raises(ObjectMissing):
        await content(objects, key)


async def test_a_full_disk_is_told_and_leaves_nothing(objects, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local, "_write_all", full)
    with pytest.raises(ObjectsUnavailable, match="No space left on device"):
        await objects.put(new_key(), chunks(b"x"))
    objects._threads.shutdown(wait=True)
    assert everything(objects.root) == []


async def test_who_gives_up_while_a_file_is_opened_leaves_nothing_open(objects):
    key = new_key()
    await objects.put(key, chunks(bytes(2_000_000)))
    for work in (lambda: objects.put(new_key(), chunks(b"x")), lambda: anext(objects.read(key))):
        for turns in range(4):
            task = asyncio.ensure_future(work())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    for _ in range(3):  # what is still opened is closed by a thread of its own
        await asyncio.get_running_loop().run_in_executor(objects._threads, lambda: None)
        await asyncio.sleep(0.01)
    objects._threads.shutdown(wait=True)
    links = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if int(fd) > 2 and os.path.lexists(f"/proc/self/fd/{fd}")
    ]
    assert [link for link in links if str(objects.root) in link] == []
    assert everything(objects.root / "partial") == []


async def test_sweeping_beside_uploads_takes_none_of_them(objects):
    """Another service that starts on the same directory, again and again."""
    other, swept = LocalObjects(objects.root), threading.Event()

    def sweep():
        while not swept.is_set():
            other.prepare()

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        keys = [new_key() for _ in range(300)]
        for key in keys:
            await objects.put(key, chunks(b"x"))
    finally:
        swept.set()
        thread.join()
    for key in keys:
        assert await content(objects, key) == b"x"

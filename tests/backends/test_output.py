"""Output of host processes: every byte, in time, and its space given back."""

import asyncio
import os
import statistics
import time
from pathlib import Path

import pytest

from nemo_jobs.backends import subprocess_output
from nemo_jobs.backends.api import Phase
from nemo_jobs.backends.subprocess_files import error_stack
from tests.backends.host import HostHarness, output, until_ended


async def test_c092_every_line_of_a_short_loud_job(host: HostHarness) -> None:
    backend = await host.host()
    expected = b"".join(b"%d\n" % number for number in range(1, 100_001))

    async def one() -> bytes:
        handle = await backend.submit(host.command(["seq", "1", "100000"]))
        return (await output(backend, handle))["stdout"]

    for text in await asyncio.gather(*(one() for _ in range(8))):
        assert text == expected


async def test_c008_the_last_line_before_the_end_is_there(host: HostHarness) -> None:
    backend = await host.host()
    script = "seq 1 500; printf 'final without newline'; exit 1"

    async def one() -> None:
        handle = await backend.submit(host.command(["sh", "-c", script]))
        text = await output(backend, handle)
        assert (await until_ended(backend, handle)).phase is Phase.FAILED
        await backend.remove(handle)
        assert text["stdout"].endswith(b"\n500\nfinal without newline")

    await asyncio.gather(*(one() for _ in range(30)))


async def test_c006_c049_bytes_are_passed_on_as_they_are(host: HostHarness) -> None:
    backend = await host.host()
    script = r"printf 'ok1\nbad\377\376byte\n\342'; sleep 0.05; printf '\226\210\nok2\na\000b\n'"
    handle = await backend.submit(host.command(["sh", "-c", script]))
    assert (await output(backend, handle))["stdout"] == b"ok1\nbad\xff\xfebyte\n\xe2\x96\x88\nok2\na\0b\n"


async def test_c005_a_python_program_is_not_buffered(host: HostHarness) -> None:
    backend = await host.host()
    code = "import time; print('now'); time.sleep(600)"
    handle = await backend.submit(host.command(["python", "-c", code]))
    async with asyncio.timeout(10):
        assert (await anext(aiter(backend.logs(handle, None)))).data.startswith(b"now")


async def test_what_a_tree_writes_while_it_is_stopped_is_there(host: HostHarness) -> None:
    backend = await host.host()
    child = "trap 'sleep 0.2; echo child; exit' TERM; echo up; while :; do sleep 0.02; done"
    script = f"({child}) & wait; sleep 600"
    handle = await backend.submit(host.command(["sh", "-c", script]))
    reading = asyncio.ensure_future(output(backend, handle))
    await asyncio.sleep(0.1)
    await backend.stop(handle, 10.0)
    assert (await reading)["stdout"] == b"up\nchild\n"


@pytest.mark.alone
async def test_a_printed_line_is_read_within_milliseconds(host: HostHarness) -> None:
    backend = await host.host()
    code = "import time\nfor i in range(30): time.sleep(0.02); print(time.time_ns(), flush=True)"
    handle = await backend.submit(host.command(["python", "-c", code]))
    delays = []
    async for piece in backend.logs(handle, None):
        now = time.time_ns()
        delays += [(now - int(line)) / 1e6 for line in piece.data.split()]
    assert len(delays) == 30
    assert statistics.median(delays) < 10


@pytest.mark.alone
async def test_without_inotify_it_looks_often_enough(host: HostHarness) -> None:
    waker = subprocess_output.Waker(watched=False)
    began = time.monotonic()
    await waker.wait()
    assert time.monotonic() - began < 0.2
    waker.wake()
    await waker.wait()


async def test_c056_the_space_of_read_output_is_given_back(host: HostHarness) -> None:
    backend = await host.host()
    script = "head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last"
    handle = await backend.submit(host.command(["sh", "-c", script]))
    path = Path(handle.data["out"] + ".out")
    total = 0
    async for piece in backend.logs(handle, None):
        assert len(piece.data) <= 1 << 20
        total += len(piece.data)
        await backend.trim(handle, piece.cursor)
    assert total == 100_000_006
    assert path.stat().st_size == total
    assert path.stat().st_blocks * 512 < 3 << 20
    [first, *_] = [piece async for piece in backend.logs(handle, None)]
    assert first.truncated > 95_000_000
    assert first.truncated + len(first.data) == total
    assert first.data.endswith(b"xxx\nlast\n")


async def test_output_that_the_program_cut_or_deleted_is_survived(host: HostHarness) -> None:
    backend = await host.host()
    cut = await backend.submit(
        host.command(["sh", "-c", "echo first; sleep 0.3; : > /proc/self/fd/1; sleep 0.1; echo new"])
    )
    gone = await backend.submit(host.command(["sh", "-c", "echo up; sleep 0.2; echo more"]))
    reading = asyncio.ensure_future(output(backend, cut))
    await asyncio.sleep(0.1)
    os.unlink(gone.data["out"] + ".out")
    os.unlink(gone.data["out"] + ".err")
    assert (await reading)["stdout"].endswith(b"new\n")
    assert await output(backend, gone) == {"stdout": b"", "stderr": b""}


async def test_many_readers_of_a_quiet_job_cost_nothing(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["sh", "-c", "sleep 1; echo end"]))
    readers = [asyncio.ensure_future(output(backend, handle)) for _ in range(50)]
    await asyncio.sleep(0.1)
    before = time.process_time()
    await asyncio.sleep(0.6)
    assert time.process_time() - before < 0.1
    assert all(text["stdout"] == b"end\n" for text in await asyncio.gather(*readers))


def test_the_error_stack_is_the_last_whole_lines(tmp_path: Path) -> None:
    out = tmp_path / "task"
    Path(f"{out}.out").write_bytes(b"from stdout\n")
    Path(f"{out}.err").write_bytes(b"\n")
    assert error_stack(str(out)) == "from stdout"
    Path(f"{out}.err").write_bytes(b"".join(b"line number %d\n" % number for number in range(1000)))
    stack = error_stack(str(out)) or ""
    assert len(stack) <= 2048
    assert stack.startswith("line number ")
    assert stack.endswith("line number 999")
    Path(f"{out}.err").write_bytes("é".encode() * 5000)
    assert error_stack(str(out)) == "é" * 2048
    assert error_stack(str(tmp_path / "missing")) is None


async def test_output_that_is_stored_is_wiped_and_the_end_is_still_known(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["sh", "-c", "echo out; echo err >&2; exit 3"]))
    await until_ended(backend, handle)
    files = [Path(handle.data["out"] + suffix) for suffix in (".out", ".err")]
    assert [file.read_bytes() for file in files] == [b"out\n", b"err\n"]
    for _ in range(2):
        await backend.wipe_output(handle)
        assert [file.read_bytes() for file in files] == [b"", b""]
    assert (await backend.observe([handle]))[handle.key].tasks[0].exit_code == 3
    await backend.remove(handle)
    await backend.wipe_output(handle)
    assert not files[0].exists()

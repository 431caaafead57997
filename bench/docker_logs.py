"""`python -m bench.docker_logs`: reading a container's log, against the engine's stream read plainly.

The floor is the same client reading the same stream and doing nothing with it. By turns, while the
container writes as fast as it can (`followed`) and after its end (`stored`); then across new log files
(`files`) and by a reader that is left off and comes back (`left_off`).
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import machine
from bench.docker import create_bare
from bench.measures import LINES, WIDTH, Values, text_file
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.logs import logs
from tests.bed.docker import DockerServer
from tests.bed.docker_api import Api

Reader = Callable[[DockerEngine, "Source"], Awaitable[int]]


class Source:
    """A container that writes numbered lines, and who waits for its end."""

    def __init__(self, api: Api, folder: Path, lines: int, log: dict[str, str] | None = None) -> None:
        self.api, self.lines = api, lines
        file = text_file(folder, lines)
        self.id = create_bare(api, ["cat", f"/marks/{file.name}"], [f"{folder}:/marks"], log)
        self.ended = asyncio.Event()
        self._end: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self.api.post, f"/containers/{self.id}/start")
        self._end = asyncio.create_task(self._wait())

    async def end(self) -> None:
        assert self._end is not None
        await self._end

    async def remove(self) -> None:
        await self.end()
        await asyncio.to_thread(self.api.delete, f"/containers/{self.id}", force=True)

    async def _wait(self) -> None:
        await asyncio.to_thread(self.api.call, "POST", f"/containers/{self.id}/wait", timeout=600)
        self.ended.set()


async def plain(engine: DockerEngine, source: Source) -> int:
    """All bytes of the stream; how many lines are wrong isn't asked here."""
    async for _ in engine.logs(source.id):
        pass
    return 0


async def ours(engine: DockerEngine, source: Source) -> int:
    """How many lines are missing, doubled or out of order."""
    return await wrong(
        source, (piece.data async for piece in logs(engine, source.id, "t", None, source.ended))
    )


async def left_off(engine: DockerEngine, source: Source) -> int:
    """As `ours`, by a reader that is left off 20 times."""

    async def data() -> AsyncIterator[bytes]:
        cursor, given, most = None, 0, source.lines * WIDTH // 20
        while True:
            async for piece in logs(engine, source.id, "t", cursor, source.ended):
                yield piece.data
                cursor, given = piece.cursor, given + len(piece.data)
                if given > most:
                    break
            else:
                return
            given = 0

    return await wrong(source, data())


async def wrong(source: Source, pieces: AsyncIterator[bytes]) -> int:
    expected = bad = 0
    rest = b""
    async for data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            number = int(line[:9])
            bad += number != expected
            expected = number + 1
    return bad + source.lines - expected + bool(rest)


async def measure(engine: DockerEngine, server: DockerServer, folder: Path, lines: int) -> Values:
    values: Values = {}

    async def timed(name: str, reader: Reader, *, late: bool, log: dict[str, str] | None = None) -> None:
        source = Source(server.api, folder, lines, log)
        await source.start()
        if late:
            await source.end()
        began, memory, cpu = time.perf_counter(), machine.rss(os.getpid()), time.process_time()
        bad = await reader(engine, source)
        seconds = time.perf_counter() - began
        values[f"{name}_cpu_us_per_line"] = round((time.process_time() - cpu) / lines * 1e6, 2)
        values[f"{name}_mb_per_second"] = round(lines * WIDTH / 1e6 / seconds, 2)
        if reader is not plain:
            values[f"{name}_lines_wrong"] = bad
            values[f"{name}_memory_grew_mb"] = round(machine.rss(os.getpid()) - memory, 1)
        await source.remove()
        print(json.dumps(values), flush=True)

    small = {"max-size": str(max(lines * WIDTH // 6, 1 << 16)), "max-file": "12"}
    for _ in range(2):
        await timed("floor_followed", plain, late=False)
        await timed("followed", ours, late=False)
        await timed("floor_stored", plain, late=True)
        await timed("stored", ours, late=True)
    await timed("files", ours, late=False, log=small)
    await timed("left_off", left_off, late=False)
    for name in ("followed", "stored"):
        values[f"{name}_ratio"] = round(
            values[f"{name}_mb_per_second"] / values[f"floor_{name}_mb_per_second"], 3
        )
    return values


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=LINES)
    options = parser.parse_args()
    server = DockerServer.start(live_restore=False, gpus=False)
    try:
        with TemporaryDirectory(prefix="nemo-bench-") as folder:
            async with await DockerEngine.open(server.host) as engine:
                print(json.dumps(await measure(engine, server, Path(folder), options.lines), indent=1))
    finally:
        server.destroy()


if __name__ == "__main__":
    asyncio.run(main())

"""The floors: what the machine does when there is nothing but the bare act."""

import contextlib
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.load import for_seconds, request, send_all
from bench.machine import rss
from tests.e2e.service import Client, free_port, until

SERVER = """
import sys, uvicorn
from starlette.responses import Response
body = b'x' * int(sys.argv[3])
async def answer(request):
    return Response(body, media_type='application/json')
if sys.argv[1] == 'fastapi':
    from fastapi import FastAPI
    app = FastAPI()
    app.add_route('/', answer)
else:
    from starlette.applications import Starlette
    from starlette.routing import Route
    app = Starlette(routes=[Route('/', answer)])
uvicorn.run(app, port=int(sys.argv[2]), http='httptools', loop='asyncio', log_config=None, access_log=False)
"""


def spawn_and_wait(count: int) -> list[float]:
    """Seconds for each `true`, started and waited for by this process."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        seconds.append(time.perf_counter() - began)
    return seconds


@contextlib.contextmanager
def task_spooler(folder: Path, slots: int) -> Iterator["TaskSpooler | None"]:
    """A spooler of its own; None when Debian's package isn't installed."""
    program = shutil.which("tsp")
    if program is None:
        yield None
        return
    spooler = TaskSpooler(program, folder, slots)
    try:
        yield spooler
    finally:
        spooler.run("-K")


class TaskSpooler:
    def __init__(self, program: str, folder: Path, slots: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._program = program
        self._environ = {
            **{"PATH": os.environ["PATH"], "TMPDIR": str(folder), "TS_SOCKET": str(folder / "socket")},
            **{"TS_SLOTS": str(slots), "TS_MAXFINISHED": "20000", "TS_MAXCONN": "1000"},
        }

    def run(self, *arguments: str) -> str:
        command = [self._program, *arguments]
        return subprocess.run(command, env=self._environ, capture_output=True, text=True, check=True).stdout

    def _spawn(self, *arguments: str) -> None:
        quiet = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
        command = ["tsp", *arguments]
        os.waitpid(os.posix_spawn(self._program, command, self._environ, file_actions=quiet), 0)

    def one_by_one(self, count: int) -> list[float]:
        """Seconds from the command to the end of `true`, output kept as always."""
        self.run("true")
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            self._spawn("-f", "true")
            seconds.append(time.perf_counter() - began)
        return seconds

    def many(self, count: int, clients: int) -> float:
        """Jobs a second when `clients` queue `count` of them and the last has ended."""
        self.run("-C")

        def queue(number: int) -> None:
            for _ in range(number, count, clients):
                self._spawn("true")

        began = time.perf_counter()
        threads = [threading.Thread(target=queue, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: self.run("-l").count("finished") >= count, 60, every=0.05)
        return count / (time.perf_counter() - began)


def group_commits(folder: Path, rows: int, group: int) -> float:
    """Rows a second that SQLite makes durable when `group` of them share a commit."""
    folder.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(folder / "floor.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE IF NOT EXISTS job (id TEXT PRIMARY KEY, name TEXT UNIQUE, spec TEXT)")
    first = db.execute("SELECT count(*) FROM job").fetchone()[0]
    spec = "x" * 1000
    began = time.perf_counter()
    for start in range(first, first + rows, group):
        db.execute("BEGIN IMMEDIATE")
        for number in range(start, min(start + group, first + rows)):
            db.execute("INSERT INTO job VALUES (?, ?, ?)", (f"id-{number}", f"name-{number}", spec))
        db.execute("COMMIT")
    seconds = time.perf_counter() - began
    db.close()
    return rows / seconds


@contextlib.contextmanager
def bare_server(kind: str, size: int = 2) -> Iterator[tuple[int, int, float]]:
    """A server that answers `size` fixed bytes: its port, pid, and seconds from start to ready."""
    port = free_port()
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", SERVER, kind, str(port), str(size)])
    try:
        until(lambda: _answers(port), 20, every=0.005)
        yield port, process.pid, time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    try:
        return Client(port, 2).get("/").status == 200
    except OSError:
        return False


def bare_answers(size: int, connections: int, seconds: float) -> float:
    """Answers a second of a bare Starlette app."""
    with bare_server("starlette", size) as (port, _, _):
        return send_all(port, for_seconds(request("GET", "/"), seconds), connections).per_second


def bare_memory() -> tuple[float, float]:
    """MiB of a bare FastAPI app after one answer, and its seconds from start to ready."""
    with bare_server("fastapi") as (_, pid, seconds):
        return rss(pid), seconds


def copy_to_file(source: Path, target: Path) -> float:
    """Seconds that `cat source > target` takes."""
    began = time.perf_counter()
    with target.open("wb") as out:
        subprocess.run(["cat", source], stdout=out, check=True)
    return time.perf_counter() - began


def empty_python(count: int) -> float:
    """Median seconds of `python -c pass`."""
    return statistics.median(timed([sys.executable, "-c", "pass"]) for _ in range(count))


def timed(command: list[str], environ: dict[str, str] | None = None) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environ)
    return time.perf_counter() - began

"""A service as a user has it: a process of its own, spoken to over HTTP alone.

`Service` starts `nemo services run` on a folder, waits until it is ready, kills, stops and
starts it again; `Client` sends requests. Both are used by the tests of the whole, the storm
and the benchmarks, so nothing here imports the product.
"""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Json = dict[str, Any]
NEMO = Path(sys.executable).parent / "nemo"
#: How long a start may take on a machine that is busy with other things too, in seconds.
READY = 45.0
ENDED = ("completed", "error", "cancelled")
JOBS = "/apis/jobs/v2/workspaces/default/jobs"


class Service:
    """One `nemo services run` on `root`; everything it and its jobs write lies below `root`."""

    def __init__(
        self,
        root: Path,
        *,
        database_url: str | None = None,
        options: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
        subprocess_config: Json | None = None,
        settings: Json | None = None,
        name: str = "service",
    ) -> None:
        self.root = root
        self.data_dir = root / f"{name}-data"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.stderr = root / f"{name}.stderr"
        self.stdout = root / f"{name}.stdout"
        self.options = options
        self.program = [str(NEMO)]
        root.mkdir(parents=True, exist_ok=True)
        work: Json = {"working_directory": str(root / "work"), **(subprocess_config or {})}
        config: Json = {"platform": {"runtime": "none"}, "jobs": {"executor_defaults": {"subprocess": work}}}
        if database_url:
            config["database"] = {"url": database_url}
        self.config = root / f"{name}.yaml"
        self.config.write_text(json.dumps(config | (settings or {})))  # JSON is YAML
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "LANG": "C.UTF-8",
            **(environ or {}),
        }

    def add_settings(self, more: Json) -> None:
        """Merge sections into the configuration, before the start."""
        config = json.loads(self.config.read_text())
        for section, values in more.items():
            config[section] = config.get(section, {}) | values
        self.config.write_text(json.dumps(config))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def command(self) -> list[str]:
        return [
            *(*self.program, "services", "run", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--data-dir", str(self.data_dir), "--config", str(self.config), *self.options),
        ]

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the process and return at once."""
        with self.stdout.open("ab") as out, self.stderr.open("ab") as err:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.environ,
                cwd=self.root,
            )
        return self.process

    def start(self, timeout: float = READY) -> Self:
        """Start and wait until `/health/ready` answers 200."""
        self.spawn()
        self.wait_ready(timeout)
        return self

    def wait_ready(self, timeout: float = READY) -> None:
        until(self._ready, timeout, lambda: f"the service was not ready:\n{self.diagnosis()}")

    def _ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(
                f"the service ended with code {self.process.returncode}:\n{self.diagnosis()}"
            )
        try:
            return self.client(timeout=2).get("/health/ready").status == 200
        except OSError:
            return False

    def client(self, timeout: float = 30) -> "Client":
        return Client(self.port, timeout)

    def kill(self) -> None:
        """`kill -9`: what a crash of the service looks like to everything else."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self, by: signal.Signals = signal.SIGTERM, timeout: float = 10) -> int:
        assert self.process is not None
        self.process.send_signal(by)
        return self.process.wait(timeout)

    def diagnosis(self, lines: int = 40) -> str:
        text = self.stderr.read_text(errors="replace") if self.stderr.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def processes(self) -> list[int]:
        """Living processes that belong to `root`: the service, its keeper, its jobs and theirs."""
        mark = os.fsencode(self.root)
        return [pid for pid in all_pids() if pid != os.getpid() and mark in identity(pid)]

    def keepers(self) -> list[int]:
        """The keeper of this data folder, and one that is just being started."""
        mark = os.fsencode(self.data_dir / "keeper")
        lines = {pid: proc_file(pid, "cmdline").split(b"\0") for pid in all_pids()}
        return [
            pid for pid, line in lines.items() if mark in line and any(b"keeper.py" in word for word in line)
        ]

    def close(self) -> None:
        """Leave no process behind, whatever the test did."""
        if self.process and self.process.poll() is None:
            self.kill()
        for _ in range(50):
            left = self.processes()
            if not left:
                return
            for pid in left:
                send(pid, signal.SIGKILL)
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Answer:
    """Status, headers and body of one response."""

    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<{self.status} {self.body[:500]!r}>"


class Client:
    """One kept connection, opened again when the service was away; for one thread."""

    def __init__(self, port: int, timeout: float = 30) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Raises OSError when there is no answer; then nobody knows whether the request was done."""
        headers = {**({"content-type": "application/json"} if body is not None else {}), **(headers or {})}
        try:
            self._connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = self._connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        except http.client.HTTPException as error:
            self._connection.close()
            raise ConnectionError(repr(error)) from error
        except OSError:
            self.close()
            raise

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def post(self, path: str, body: Any = None) -> Answer:
        return self.call("POST", path, body)

    def create(self, name: str, *steps: list[str], **step_fields: Any) -> Answer:
        return self.post(JOBS, job(name, *steps, **step_fields))

    def job(self, name: str) -> Json:
        answer = self.get(f"{JOBS}/{name}")
        assert answer.status == 200, answer
        return answer.json

    def status(self, name: str) -> Json:
        answer = self.get(f"{JOBS}/{name}/status")
        assert answer.status == 200, answer
        return answer.json

    def wait(self, name: str, *states: str, timeout: float = 20) -> Json:
        """Poll until the job is in one of `states` (none given: at its end)."""
        return until(
            lambda: found if (found := self.job(name))["status"] in (states or ENDED) else None,
            timeout,
            lambda: f"{name} is not {states or ENDED}: {self.status(name)}",
        )

    def logs(self, name: str, limit: int = 10000) -> Iterator[Json]:
        """All lines, page by page."""
        cursor = ""
        while True:
            answer = self.get(f"{JOBS}/{name}/logs?limit={limit}{cursor}")
            assert answer.status == 200, answer
            page = answer.json
            yield from page["data"]
            if not page["next_page"]:
                return
            cursor = f"&page_cursor={page['next_page']}"

    def messages(self, name: str) -> list[str]:
        return [line["message"].rstrip("\n") for line in self.logs(name)]

    def close(self) -> None:
        self._connection.close()

    def __del__(self) -> None:
        self.close()  # tests make clients by the way and drop them


def job(name: str, *steps: list[str], **step_fields: Any) -> Json:
    """A create body with one step per command."""
    return {
        "name": name,
        "source": "tests",
        "spec": {},
        "platform_spec": {
            "steps": [
                {
                    "name": f"step-{n}",
                    "executor": {"provider": "subprocess", "command": command},
                    **step_fields,
                }
                for n, command in enumerate(steps, 1)
            ]
        },
    }


def until(
    condition: Callable[[], Any],
    timeout: float = 20,
    complaint: Callable[[], str] = lambda: "it never happened",
    every: float = 0.02,
) -> Any:
    """Wait for another process: there is nothing to listen to, so look again and again."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout:g} s: {complaint()}")
        time.sleep(every)
    return found


def free_port() -> int:
    """A port below the range from which the kernel takes ports for clients, never one of another worker."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = random.randrange(12000 + int(worker), 30000, workers)
        with socket.socket() as attempt:
            try:
                attempt.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def identity(pid: int) -> bytes:
    """Command line, environment and folder of a living process; nothing for a dead one."""
    if state_of(pid) in ("", "Z"):
        return b""
    try:
        folder = os.fsencode(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        folder = b""
    return b"\0".join((proc_file(pid, "cmdline"), proc_file(pid, "environ"), folder))


def proc_file(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def state_of(pid: int) -> str:
    """R, S, Z …; empty when there is no such process."""
    fields = proc_file(pid, "stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else ""


def alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z")


def send(pid: int, by: signal.Signals) -> bool:
    try:
        os.kill(pid, by)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def listening(port: int) -> Iterator[None]:
    """Occupy a port with a server that answers nothing."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Run `work(0)` … `work(count - 1)` at once; raise the first error of any of them."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]

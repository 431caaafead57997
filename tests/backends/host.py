"""The host backend in a directory of its own, and tools to look at its processes."""

import asyncio
import contextlib
import hashlib
import os
import shlex
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_jobs.backends.api import ENDED, Backend, Handle, Observation, Plan, PlatformInfo
from nemo_jobs.backends.subprocess import SubprocessBackend
from nemo_jobs.testing import FOREVER, Harness, Work


class RealClock:
    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(frozen=True)
class Profile:
    working_directory: str
    graceful_shutdown_timeout_seconds: float = 0.5
    env: Mapping[str, str] = field(default_factory=dict)


class HostHarness(Harness):
    """Several backends over one data directory; ends everything at `close`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.root = directory / "work"
        self._made: list[SubprocessBackend] = []

    async def backend(self) -> Backend:
        return await self.host()

    async def host(self, data_dir: Path | None = None, host_id: str = "this") -> SubprocessBackend:
        backend = SubprocessBackend(data_dir or self.data_dir, host_id=host_id, clock=RealClock())
        await backend.start()
        self._made.append(backend)
        return backend

    def plan(self, work: Work) -> Plan:
        if work.refused:
            return self.command(["/no/such/program"])
        plan = self.command([])
        return self.command(["sh", "-c", _script(work, self._starts_file(plan))], like=plan)

    def command(self, command: Sequence[str], *, like: Plan | None = None, **changes: Any) -> Plan:
        """A plan that runs this; `env`, `config` and `grace` go where they belong."""
        number = uuid.uuid4().hex
        key = like.key if like else f"nj-{number}-0"
        env = changes.pop("env", {})
        variables = [{"name": name, "value": value, "from_secret": None} for name, value in env.items()]
        profile = Profile(str(self.root), changes.pop("grace", 0.5), changes.pop("profile_env", {}))
        spec = {
            "name": "step",
            "environment": variables or None,
            "executor": {"provider": "subprocess", "profile": "default", "command": list(command)},
            "config": changes.pop("config", {}),
        }
        return Plan(
            **{
                "key": key,
                "provider": "subprocess",
                "profile": "default",
                "config": profile,
                "workspace": "default",
                "job": f"job-{key[3:11]}",
                "job_id": f"platform-job-{number}",
                "attempt_id": f"platform-job-attempt-{key[3:35]}",
                "step": "step",
                "step_id": f"platform-job-step-{key[3:35]}",
                "task": "task-" + hashlib.sha256(key.encode()).hexdigest()[:32],
                "fileset": "job-fileset",
                "output_location": None,
                "spec": spec,
                "platform": PlatformInfo(
                    {"base": "http://127.0.0.1:8080", "jobs": "http://example.org/jobs"}
                ),
                **changes,
            }
        )

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def starts(self, plan: Plan) -> int:
        file = self._starts_file(plan)
        return len(file.read_bytes().splitlines()) if file.exists() else 0

    def has_storage(self, plan: Plan) -> bool:
        return (self.root / plan.workspace / plan.job / plan.attempt_id / "job-storage").exists()

    def keeper_pid(self, data_dir: Path | None = None) -> int:
        """The keeper of the data directory, by the lock it holds; 0 when there is none."""
        directory = str((data_dir or self.data_dir) / "keeper").encode()
        for pid in _pids():
            words = _read(f"/proc/{pid}/cmdline").split(b"\0")
            if directory in words and any(word.endswith(b"keeper.py") for word in words):
                return pid
        return 0

    def kill_keeper(self) -> None:
        while pid := self.keeper_pid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 5
            while _read(f"/proc/{pid}/cmdline") and time.monotonic() < deadline:
                time.sleep(0.001)

    async def close(self) -> None:
        for backend in self._made:
            await backend.aclose()
        for data_dir in {self.data_dir, *(Path(b._keeper_dir).parent for b in self._made)}:
            last = SubprocessBackend(data_dir, host_id="this", clock=RealClock())
            async for handle in last.handles():
                await last.remove(handle, wipe_storage=True)
            await last.aclose()
            if pid := self.keeper_pid(data_dir):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def _starts_file(self, plan: Plan) -> Path:
        return self.directory / f"starts-{plan.key}"


async def until_ended(backend: Backend, handle: Handle, seconds: float = 15.0) -> Observation:
    deadline = time.monotonic() + seconds
    while True:
        seen = (await backend.observe([handle]))[handle.key]
        if seen.phase in ENDED:
            return seen
        assert time.monotonic() < deadline, f"still {seen.phase} after {seconds} s"
        await asyncio.sleep(0.005)


async def output(backend: Any, handle: Handle, cursor: Any = None) -> dict[str, bytes]:
    text = {"stdout": b"", "stderr": b""}
    async for piece in backend.logs(handle, cursor):
        text[piece.stream] += piece.data
    return text


def having(variable: str) -> list[int]:
    """The living processes whose environment holds `NAME=value`."""
    word = variable.encode()
    return [pid for pid in _pids() if word in _read(f"/proc/{pid}/environ").split(b"\0")]


def zombies_of(parent: int) -> int:
    count = 0
    for pid in _pids():
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        count += len(fields) > 1 and fields[0] == b"Z" and int(fields[1]) == parent
    return count


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _script(work: Work, starts: Path) -> str:
    lines = [f"echo started >> {shlex.quote(str(starts))}"]
    if work.ignores_stop:
        lines.append("trap '' TERM")
    for path, text in work.left.items():
        target = f'"$NEMO_JOB_RESULTS_PATH"/{shlex.quote(path)}'
        lines.append(f"mkdir -p $(dirname {target}); printf %s {shlex.quote(text)} > {target}")
    for data, stream in ((work.stdout, 1), (work.stderr, 2)):
        if data:
            lines.append("printf '" + "".join(f"\\{byte:03o}" for byte in data) + f"' >&{stream}")
    for number in range(work.lines):
        lines.append(f"sleep {work.seconds / work.lines:.3f}; echo line {number}")
    if work.seconds == FOREVER:
        lines.append("exec sleep 1000")
    elif work.seconds and not work.lines:
        lines.append(f"sleep {work.seconds}")
    lines.append(f"kill -{work.code - 128} $$" if 128 < work.code < 192 else f"exit {work.code}")
    return "\n".join(lines)

"""What a figure was measured on, and looking at processes from outside."""

import importlib.metadata
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

VERSIONS = ("nemo-jobs", "fastapi", "starlette", "uvicorn", "pydantic", "sqlalchemy", "httptools")


def describe() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    return {
        "cpu": f"{os.cpu_count()} cores, {cpu_model()}",
        "memory": memory(),
        "disk": disk(),
        "system": f"{system_name()}, Linux {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "task-spooler": task_spooler_version(),
        **versions,
    }


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def memory() -> str:
    kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    return f"{kilobytes / 2**20:.0f} GiB"


def disk() -> str:
    out = subprocess.run(["df", "--output=fstype", "/tmp"], capture_output=True, text=True).stdout.split()
    return f"{out[-1] if out else 'unknown'} (/tmp)"


def system_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return sys.platform


def task_spooler_version() -> str:
    if not (program := shutil.which("tsp")):
        return "not installed (Debian: apt-get install task-spooler)"
    return subprocess.run([program, "-V"], capture_output=True, text=True).stdout.split(" - ")[0].strip()


def load() -> float:
    return os.getloadavg()[0]


def rss(pid: int, key: str = "VmRSS") -> float:
    """Resident memory in MiB; `VmHWM` for the highest since `reset_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

"""The released client as a test sees it: commands, scripts, and what they say."""

import hashlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
HOW = "make it with: sh tools/test_client.sh .venv/bin/python"


def environment() -> Path | None:
    """The environment of the client; None when it has not been made."""
    cache = Path(os.environ.get("NEMO_JOBS_TEST_CACHE") or Path.home() / ".cache" / "nemo-jobs-tests")
    lock = (HERE / "client.lock").read_bytes()
    found = cache / f"client-{hashlib.sha256(lock).hexdigest()[:12]}"
    return found if (found / ".complete").exists() else None


@dataclass(frozen=True)
class Said:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out)


class ReleasedClient:
    """One process that has imported the client, on the service at `url`."""

    def __init__(self, python: Path, url: str, home: Path) -> None:
        home.mkdir(exist_ok=True)
        self.environ = {
            **{"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "NMP_BASE_URL": url},
            **{"COLUMNS": "200", "NO_COLOR": "1", "NEMO_TELEMETRY_ENABLED": "false", "TZ": "UTC"},
        }
        self._process = subprocess.Popen(
            [python, HERE / "driver.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environ,
            cwd=home,
        )
        self.version = self._answer()["version"]

    def __call__(self, *argv: str, stdin: str = "", **environ: str) -> Said:
        """Run `nemo ARGV`."""
        return self._ask({"argv": argv, "stdin": stdin, "env": environ})

    def python(self, code: str, **environ: str) -> Said:
        """Run a script."""
        return self._ask({"code": code, "env": environ})

    def _ask(self, request: dict[str, Any]) -> Said:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return Said(**self._answer())

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the client ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> "ReleasedClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.communicate(timeout=10)

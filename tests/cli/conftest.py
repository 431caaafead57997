"""The command run inside the test, with its own environment."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from nemo_jobs.cli.main import main


@dataclass(frozen=True)
class Ran:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


Nemo = Callable[..., Ran]


@pytest.fixture(autouse=True)
def no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for name in list(os.environ):
        if name.startswith(("NHX_", "NEMO_")) or name == "NO_COLOR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{tmp_path}/config")


@pytest.fixture
def nemo(capsys: pytest.CaptureFixture[str]) -> Iterator[Nemo]:
    """Call the command as the console script does."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def run(*words: str) -> Ran:
        capsys.readouterr()
        code = main(list(words))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)

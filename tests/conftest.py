"""Rules for every test: a time limit, no network beyond this machine, no skips in CI.

`make test` runs several at once. A test that measures how long something takes has the mark `alone`:
the other workers wait with their next test until it is over.
"""

import contextlib
import faulthandler
import ipaddress
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.turns import turn

pytest_plugins = ["tests.bed.fixtures"]

# A shell that starts a run in the background has it ignore Ctrl-C, and so would all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TIME_LIMIT = 60.0
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
#: Names the folder with the locks of a run with several workers.
TURNS = "NEMO_JOBS_TEST_TURNS"
FOLDER = os.environ.get(TURNS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a test in its turn, and within its time."""
    marker = item.get_closest_marker("time_limit")
    limit = float(marker.args[0]) if marker else TIME_LIMIT
    with turn(FOLDER, item.get_closest_marker("alone") is not None), watched(limit):
        return (yield)


@contextlib.contextmanager
def watched(limit: float) -> Iterator[None]:
    """Fail a test that takes too long; dump all stacks and end the run if even that hangs."""

    def too_long(signum: int, frame: Any) -> None:
        faulthandler.dump_traceback(file=2)
        pytest.fail(f"took more than {limit:g} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, limit)
    faulthandler.dump_traceback_later(limit + 30, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report: Any = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: nothing may be skipped in CI: {report.longrepr[-1]}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report: Any = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid}: nothing may be skipped in CI: {report.longrepr}"
    return report


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(refuse_the_network)
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="nemo-jobs-turns-")
        os.environ[TURNS] = folder.name  # the workers are started later
        config.add_cleanup(folder.cleanup)


def refuse_the_network(event: str, args: tuple[Any, ...]) -> None:
    """Tests may talk to this machine and to nothing else."""
    if event not in ("socket.connect", "socket.sendto") or not isinstance(args[1], tuple):
        return
    host = args[1][0]
    if host != "localhost" and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        raise RuntimeError(f"a test wanted to reach {host}; only loopback is allowed")

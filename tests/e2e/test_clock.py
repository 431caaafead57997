"""A clock that is set while jobs run, under the service that really runs.

The wall clock of the service's process is moved inside Python: libfaketime under Python's own
sleep fails now and then, and setting the machine's clock would disturb everybody.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.service import Service

SHIM = """
import sys, time
file = sys.argv.pop(1)
real = time.time
def offset():
    with open(file) as lines:
        return float(lines.read())
time.time = lambda: real() + offset()
time.time_ns = lambda: int(time.time() * 1e9)
from nemo_jobs.cli.main import main
main()
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "s")
    service.program = [sys.executable, "-c", SHIM, str(tmp_path / "offset")]
    set_clock(service, 0)
    yield service.start()
    service.close()


def set_clock(service: Service, seconds: int) -> None:
    new = service.root / "offset.new"
    new.write_text(str(seconds))
    new.replace(service.root.parent / "offset")


@pytest.mark.parametrize("hour", [3600, -3600])
def test_c058_a_step_of_the_clock_kills_no_job(service: Service, hour: int) -> None:
    client = service.client()
    limits = {"staleness_timeout_seconds": 30, "timeout_seconds": 120}
    body = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done"
    client.create("walker", ["sh", "-c", body], lifecycle=limits)
    client.wait("walker", "active")
    set_clock(service, hour)
    time.sleep(1)
    client.create("newcomer", ["true"])
    assert client.wait("newcomer")["status"] == "completed"
    assert client.wait("walker")["status"] == "completed"
    assert client.messages("walker") == list("123456")
    for name in ("walker", "newcomer"):
        found = client.job(name)
        assert found["created_at"] <= found["updated_at"]


@pytest.mark.parametrize("hour", [3600, -3600])
def test_c058_a_step_of_the_clock_postpones_no_limit(service: Service, hour: int) -> None:
    client = service.client()
    began = time.monotonic()
    client.create("endless", ["sleep", "300"], lifecycle={"timeout_seconds": 4})
    client.wait("endless", "active")
    set_clock(service, hour)
    time.sleep(1.5)
    assert client.job("endless")["status"] == "active"
    found = client.wait("endless", timeout=15)
    assert found["status"] == "error"
    assert found["reason"]["code"] == "active_timeout"
    assert 3.5 < time.monotonic() - began < 12


@pytest.mark.parametrize("hour", [3600, -3600])
def test_c058_a_clock_that_was_set_while_the_service_was_away(service: Service, hour: int) -> None:
    """A job goes on after the restart; a limit of hours isn't reached by the step alone."""
    client = service.client()
    limits = {"timeout_seconds": 4 * 3600}
    client.create("walker", ["sh", "-c", "sleep 3; echo done"], lifecycle=limits)
    client.wait("walker", "active")
    service.kill()
    set_clock(service, hour)
    service.start()
    client = service.client()
    assert client.wait("walker")["status"] == "completed"
    assert client.messages("walker") == ["done"]
    found = client.job("walker")
    assert found["created_at"] <= found["updated_at"]

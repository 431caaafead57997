"""Which addresses a service listens on, and what it says about it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_jobs import exposure
from nemo_jobs.config import Settings
from tests.e2e.service import Service
from tests.e2e.test_start_and_stop import refused


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.close()


@pytest.mark.alone
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "nemo.example"])
def test_others_are_not_served_without_authentication(service: Service, host: str) -> None:
    result = refused(service, "--host", host)
    assert result.returncode == 2
    assert f"{host} can be reached from other machines" in result.stderr
    for way in ("auth.enabled", "nemo auth tokens create", "127.0.0.1", "--insecure-no-auth"):
        assert way in result.stderr
    assert not service.data_dir.exists()


def test_the_address_of_the_configuration_is_judged_as_well(service: Service) -> None:
    service.add_settings({"service": {"host": "0.0.0.0", "port": 0}})
    command = service.command
    at = command.index("--host")
    del command[at : at + 2]
    result = subprocess.run(command, capture_output=True, text=True, env=service.environ, timeout=20)
    assert (result.returncode, "0.0.0.0 can be reached" in result.stderr) == (2, True)


def test_whoever_insists_gets_it_with_a_warning(service: Service) -> None:
    service.options = ("--host", "0.0.0.0", "--insecure-no-auth")
    service.start()
    assert "authentication is off (--insecure-no-auth)" in service.stderr.read_text()
    assert service.client().get("/health/live").status == 200


def test_both_at_once_is_a_contradiction(service: Service) -> None:
    service.add_settings({"auth": {"enabled": True}})
    result = refused(service, "--insecure-no-auth")
    assert (result.returncode, "contradicts auth.enabled" in result.stderr) == (2, True)


def test_with_authentication_every_address_is_served_and_no_token_is_told_of(service: Service) -> None:
    service.add_settings({"auth": {"enabled": True}})
    service.options = ("--host", "0.0.0.0")
    service.start()
    said = service.stderr.read_text()
    assert "there is no token yet" in said
    assert "nemo auth tokens create" in said
    assert "plain HTTP" in said
    assert service.client().get("/apis/jobs/v2/workspaces/default/jobs").status == 401


def test_an_issuer_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    oidc = {"issuer": "https://idp.example", "audience": "nemo"}
    settings = Settings.model_validate({"auth": {"enabled": True, "oidc": oidc}})
    assert exposure.problem("127.0.0.1", settings, False) is None
    monkeypatch.setattr(exposure, "find_spec", lambda name: None)
    said = exposure.problem("127.0.0.1", settings, False)
    assert said is not None
    assert "nemo-jobs[oidc]" in said


def test_an_address_of_another_service_is_told_of(service: Service) -> None:
    # A person's shell names the service that the command speaks to, and starts another one.
    service.environ["NHX_BASE_URL"] = "http://127.0.0.1:9"
    service.start()
    said = service.stderr.read_text()
    assert "tasks are told to call http://127.0.0.1:9 (NHX_BASE_URL or platform.base_url)" in said


@pytest.mark.parametrize(
    ("address", "warned"),
    [
        ("http://localhost:8081", True),
        ("http://[::1]:8081", True),
        ("https://127.0.0.1", True),
        ("http://localhost:8080", False),
        ("http://gateway.example:80", False),
        ("unix:///run/gateway", False),
        (None, False),
    ],
)
def test_only_another_port_of_this_machine_is_suspicious(
    caplog: pytest.LogCaptureFixture, address: str | None, warned: bool
) -> None:
    exposure.tell_elsewhere(address, 8080)
    assert bool(caplog.records) == warned

"""One service and one process of the released client for all tests here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.kit import HOW, ReleasedClient, environment
from tests.e2e.service import Client, Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(tmp_path_factory.mktemp("compat"))
    try:
        yield running.start(60)
    finally:
        running.close()


@pytest.fixture(scope="session")
def nemo(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleasedClient]:
    """The command `nemo` of the released client, in its environment."""
    found: Path | None = environment()
    if found is None:
        pytest.skip(f"the released client is not installed; {HOW}")
    with ReleasedClient(found / "bin" / "python", service.url, tmp_path_factory.mktemp("client")) as client:
        yield client


@pytest.fixture
def client(service: Service) -> Client:
    """Plain HTTP beside the released client."""
    return service.client()

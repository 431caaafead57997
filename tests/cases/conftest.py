"""One service for all cases that leave it running; it is killed with all its jobs at the end."""

from collections.abc import Iterator

import pytest

from tests.cases.kit import profile
from tests.e2e.service import Client, Service


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("cases")
    executors = [
        profile(root, "one", max_concurrent=1),
        profile(root, "four", max_concurrent=4),
        profile(root, "short", ttl_seconds_active=1),
    ]
    service = Service(
        root,
        subprocess_config={
            "graceful_shutdown_timeout_seconds": 5,
            "env": {"FROM_PROFILE": "1", "LEVEL": "p"},
        },
        environ={"DB_PASSWORD": "canary", "AWS_SECRET_ACCESS_KEY": "canary", "NEMO_AGENTS_WHEEL": "wheel"},
    )
    service.add_settings({"jobs": {"executors": executors, "log_limit_bytes": 3_000_000}})
    try:
        yield service.start()
    finally:
        service.close()


@pytest.fixture
def client(shared: Service) -> Client:
    return shared.client()

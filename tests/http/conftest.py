import pytest

from tests.http.kit import open_service


@pytest.fixture
async def service(tmp_path):
    async with open_service(tmp_path) as running:
        yield running

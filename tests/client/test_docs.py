"""The examples of docs/client.md do what they show."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_jobs import client
from tests.e2e.service import Service

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(tmp_path_factory.mktemp("docs"))
    try:
        yield started.start()
    finally:
        started.close()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_works(service: Service, tmp_path: Path, number: int) -> None:
    text = EXAMPLES[number]
    assert "http://localhost:8080" in text
    file = tmp_path / "example.py"
    file.write_text(text.replace("http://localhost:8080", service.url))
    ran = subprocess.run(
        [sys.executable, "-W", "error", file], capture_output=True, text=True, timeout=50, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 7


def test_every_error_is_in_the_table() -> None:
    text = PAGE.read_text()
    for name in client.__all__:
        found = getattr(client, name)
        if (
            isinstance(found, type)
            and issubclass(found, client.ClientError)
            and found is not client.ClientError
        ):
            assert f"`{name}`" in text, name


def test_the_client_imports_nothing_of_the_service_and_little_else() -> None:
    code = (
        "import sys, nemo_jobs.client as c; before = set(sys.modules); c.AsyncJobsClient;"
        "print(*before); print(*sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    before, after = (set(line.split()) for line in out.splitlines())
    ours = {name for name in after if name.startswith("nemo_jobs.")}
    assert all(name.startswith("nemo_jobs.client") for name in ours)
    assert not before & {
        "asyncio",
        "ssl",
        "http.client",
        "email",
        "pydantic",
        "click",
        "pathlib",
        "dataclasses",
    }
    assert not after & {"ssl", "http.client", "email", "pydantic", "click", "sqlalchemy"} - {"ssl"}

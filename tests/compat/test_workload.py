"""The released client inside a task, with the file of its token as its only credential."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.kit import HOW, ReleasedClient, environment
from tests.e2e.service import JOBS, job, until
from tests.e2e.test_auth import Guarded

SCRIPT = """
import json, os
import nemo_platform
from nemo_platform import NeMoPlatform

name, url = os.environ["THE_JOB"], os.environ["NMP_BASE_URL"]
client = NeMoPlatform(base_url=url, workspace="default")
client.jobs.update_status_details(name, body={"percentage_done": 40})
told = {"details": client.jobs.retrieve(name).status_details}
try:
    client.jobs.list()
except nemo_platform.PermissionDeniedError as error:
    told["refused"] = error.response.json()["detail"]
print(json.dumps(told))
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    service = Guarded(tmp_path, settings={"auth": {"enabled": True}})
    yield service
    service.close()


def test_a_task_exchanges_the_token_of_its_file(guarded: Guarded, tmp_path: Path) -> None:
    found = environment()
    if found is None:
        pytest.skip(f"the released client is not installed; {HOW}")
    root = guarded.nemo("auth", "tokens", "create", "root", "--data-dir", str(guarded.data_dir))["token"]
    guarded.start(60)
    place = tmp_path / "place"
    command = [
        "sh",
        "-c",
        f'echo "$NHX_WORKLOAD_IDENTITY_TOKEN_FILE" > {place}.new; mv {place}.new {place}; sleep 600',
    ]
    assert guarded.ask("POST", JOBS, root, job("worker", command)).status == 201
    until(place.exists)
    with ReleasedClient(found / "bin" / "python", guarded.url, tmp_path / "client") as nemo:
        file = place.read_text().strip()
        said = nemo.python(SCRIPT, THE_JOB="worker", NMP_WORKLOAD_IDENTITY_TOKEN_FILE=file)
    assert said.code == 0, said
    told = json.loads(said.out.splitlines()[-1])
    assert told["details"] == {"percentage_done": 40}
    assert "this token belongs to a task of job 'worker'" in told["refused"]
    assert guarded.ask("POST", f"{JOBS}/worker/cancel", root).status == 200

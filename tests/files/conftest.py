import json

import pytest

from nemo_jobs.config import load_settings
from nemo_jobs.files.opening import open_objects
from tests.files.s3 import s3_server


@pytest.fixture
def bucket():
    with s3_server() as running:
        yield running


@pytest.fixture(params=["local", "memory", "s3"])
def objects(request, tmp_path):
    """A store of each kind, as settings open it."""
    if request.param == "local":
        return opened(tmp_path)
    if request.param == "memory":
        return opened(tmp_path, "memory:///")
    return opened(tmp_path, "s3://bucket/some/where", request.getfixturevalue("bucket").options)


def opened(folder, url=None, options=None):
    storage = {"url": url, "options": options or {}}
    file = folder / "config.yaml"
    file.write_text(f"files: {{storage: {json.dumps(storage)}}}\n")
    return open_objects(load_settings(file, {}).settings, folder)

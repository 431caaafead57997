"""A service that asks for tokens, from its first token to what a task may do with its own."""

import http.client
import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import JOBS, NEMO, Answer, Json, Service, job, until

MOST = 60


class Guarded(Service):
    """A service with authentication on, and the command beside it."""

    def nemo(self, *words: str, token: str | None = None, code: int = 0) -> Any:
        environ = {**self.environ, "NHX_BASE_URL": self.url, "XDG_CONFIG_HOME": str(self.root)}
        if token is not None:
            environ["NHX_ACCESS_TOKEN"] = token
        done = subprocess.run([str(NEMO), *words], capture_output=True, text=True, env=environ, timeout=MOST)
        assert done.returncode == code, (words, done)
        return json.loads(done.stdout) if done.stdout.strip() else done.stderr

    def ask(self, method: str, path: str, token: str, body: Json | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    service = Guarded(tmp_path, settings={"auth": {"enabled": True}})
    yield service
    service.close()


SCRIPT = r"""
import json, os, stat, sys, time, urllib.error, urllib.request

file = os.environ["NHX_WORKLOAD_IDENTITY_TOKEN_FILE"]
token = open(file).read()
jobs = os.environ["NHX_JOBS_URL"] + "/apis/jobs/v2/workspaces/default/jobs"
me = os.environ["NEMO_JOB_ID"]

def ask(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(path, data, {"authorization": "Bearer " + token,
                                                  "content-type": "application/json"}, method=method)
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code

print(json.dumps({
    "mode": stat.S_IMODE(os.stat(file).st_mode),
    "in_environment": any(token in value for value in os.environ.values()),
    "principal": json.loads(os.environ["NHX_PRINCIPAL"])["principal_id"],
    "file": file,
    "token": token[:10],
    "own job": ask("GET", f"{jobs}/{me}"),
    "other job": ask("GET", f"{jobs}/other"),
    "list": ask("GET", jobs),
    "own task": ask("PUT", f"{jobs}/{me}/steps/step-1/tasks/{os.environ['NEMO_JOB_TASK']}",
                    {"status": "active", "status_details": {"percentage_done": 50}}),
    "details": ask("PATCH", f"{jobs}/{me}/status-details", {"epoch": 2}),
}), flush=True)
while os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


def started_task(guarded: Guarded, token: str, tmp_path: Path) -> tuple[Path, Path]:
    """A running job that has tried its own token: it ends when the first file is gone, the second
    one holds the token."""
    wait = tmp_path / "wait"
    wait.touch()
    script = tmp_path / "task.py"
    script.write_text(SCRIPT)
    made = guarded.ask("POST", JOBS, token, job("moth", ["python3", str(script), str(wait)]))
    assert made.status == 201, made
    assert guarded.ask("POST", JOBS, token, job("other", ["true"])).status == 201
    lines = until(
        lambda: guarded.ask("GET", f"{JOBS}/moth/logs", token).json["data"], MOST, guarded.diagnosis
    )
    said = json.loads(lines[0]["message"])
    file = Path(said.pop("file"))
    assert said == {
        "mode": 0o600,
        "in_environment": False,
        "principal": "ann",
        "token": "nemo_task_",
        "own job": 200,
        "other job": 403,
        "list": 403,
        "own task": 200,
        "details": 200,
    }
    return wait, file


@pytest.mark.time_limit(180)
def test_from_the_first_token_to_a_task_with_its_own(guarded: Guarded, tmp_path: Path) -> None:
    data = ("--data-dir", str(guarded.data_dir))
    root = guarded.nemo("auth", "tokens", "create", "root", *data)
    assert root["grants"] == {"*": ["admin"]}
    guarded.start()
    assert "no token yet" not in guarded.stderr.read_text()
    spare = guarded.nemo("auth", "tokens", "create", "spare", *data)  # beside the running service
    assert guarded.ask("GET", JOBS, spare["token"]).status == 200
    assert "not signed in (401)" in guarded.nemo("jobs", "list", code=3)
    ann = guarded.nemo(
        "auth", "tokens", "create", "ann", "--grant", "default=write", "--expires", "1d", token=root["token"]
    )
    assert (ann["created_by"], ann["expires_at"] > ann["created_at"]) == ("root", True)
    assert "not allowed (403)" in guarded.nemo("auth", "tokens", "list", token=ann["token"], code=3)
    token = ann["token"]
    wait, file = started_task(guarded, token, tmp_path)
    assert guarded.ask("GET", f"{JOBS}/moth", token).json["status_details"] == {
        "percentage_done": 50,
        "epoch": 2,
    }
    task = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert guarded.ask("GET", f"{JOBS}/moth", task).status == 200
    guarded.kill()
    guarded.start()
    assert guarded.ask("GET", f"{JOBS}/moth", task).status == 200  # the run goes on, and its token too
    wait.unlink()
    until(
        lambda: guarded.ask("GET", f"{JOBS}/moth", token).json["status"] == "completed",
        MOST,
        guarded.diagnosis,
    )
    assert guarded.ask("GET", f"{JOBS}/moth", task).status == 401
    everything = b"".join(
        path.read_bytes() for path in guarded.data_dir.rglob("*") if path.is_file() and path != file
    )
    assert task.encode() not in everything
    assert root["token"].encode() not in everything
    gone = guarded.nemo("auth", "tokens", "revoke", ann["id"], token=root["token"])
    assert gone["revoked_at"]
    assert guarded.ask("GET", JOBS, token).status == 401
    assert guarded.ask("DELETE", f"{JOBS}/moth", root["token"]).status == 204
    until(lambda: not file.exists(), MOST, guarded.diagnosis)

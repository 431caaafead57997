"""What the released client has for workspaces, secrets and files."""

import json
from typing import Any

import pytest

from tests.compat.kit import ReleasedClient
from tests.e2e.service import Client

pytestmark = pytest.mark.time_limit(240)


def test_workspaces(nemo: ReleasedClient) -> None:
    listed = nemo("workspaces", "list", "-f", "json").json["data"]
    assert {"default", "system"} <= {workspace["name"] for workspace in listed}
    made = nemo("workspaces", "create", "lab", "--description", "for moths").json
    assert (made["name"], made["description"]) == ("lab", "for moths")
    again = nemo("workspaces", "create", "lab")
    assert again.code == 1 and "(409)" in again.err and "lab" in again.err
    assert nemo("workspaces", "update", "lab", "--description", "changed").json["description"] == "changed"
    assert nemo("workspaces", "get", "lab").json["id"] == made["id"]
    assert nemo("workspaces", "delete", "lab").code == 0
    gone = nemo("workspaces", "get", "lab")
    assert gone.code == 1 and "(404) no workspace 'lab'" in gone.err
    kept = nemo("workspaces", "delete", "default")
    assert kept.code == 1 and "(409)" in kept.err


def test_a_job_in_another_workspace(nemo: ReleasedClient, client: Client) -> None:
    assert nemo("workspaces", "create", "barn").code == 0
    spec = {"steps": [{"name": "only", "executor": {"provider": "subprocess", "command": ["true"]}}]}
    shown = ("--platform-spec", json.dumps(spec), "--source", "test", "--spec", "{}", "--workspace", "barn")
    assert nemo("jobs", "create", "owl", *shown).json["workspace"] == "barn"
    assert nemo("jobs", "get", "owl").code == 1
    assert nemo("jobs", "get", "owl", "--workspace", "barn").json["name"] == "owl"
    lost = nemo("jobs", "list", "--workspace", "nowhere")
    assert lost.code == 1 and "(404)" in lost.err and "nowhere" in lost.err


def test_secrets_never_show_their_value(nemo: ReleasedClient, client: Client) -> None:
    made = nemo("secrets", "create", "api-key", "--value", "s3cret-value", "--description", "of nobody").json
    assert made["name"] == "api-key" and "s3cret-value" not in json.dumps(made)
    for asked in (("get", "api-key"), ("list", "-f", "json")):
        assert "s3cret-value" not in nemo("secrets", *asked).out
    assert nemo("secrets", "access", "api-key").json["value"] == "s3cret-value"
    assert nemo("secrets", "update", "api-key", "--value", "an0ther-one").code == 0
    spec = {
        "steps": [
            {
                "name": "only",
                "executor": {"provider": "subprocess", "command": ["sh", "-c", 'test "$KEY" = an0ther-one']},
                "environment": [{"name": "KEY", "from_secret": {"name": "api-key"}}],
            }
        ]
    }
    shown = ("--platform-spec", json.dumps(spec), "--source", "test", "--spec", "{}")
    assert nemo("jobs", "create", "keyed", *shown).code == 0
    assert client.wait("keyed")["status"] == "completed"
    assert nemo("secrets", "delete", "api-key").code == 0
    assert nemo("secrets", "get", "api-key").code == 1


def test_filesets_and_files(nemo: ReleasedClient, tmp_path: Any) -> None:
    made = nemo("files", "filesets", "create", "notes", "--description", "of the field").json
    assert (made["name"], made["purpose"]) == ("notes", "generic")
    folder = tmp_path / "up"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("alpha")
    (folder / "deep" / "b.bin").write_bytes(bytes(range(256)))
    sent = nemo("files", "upload", str(folder), "notes")
    assert sent.code == 0, sent
    listed = nemo("files", "list", "notes", "-f", "json")
    assert listed.code == 0 and "a.txt" in listed.out and "deep/b.bin" in listed.out, listed
    target = tmp_path / "down"
    got = nemo("files", "download", "notes", "-o", str(target))
    assert got.code == 0, got
    found = {file.name: file.read_bytes() for file in target.rglob("*") if file.is_file()}
    assert found == {"a.txt": b"alpha", "b.bin": bytes(range(256))}
    assert "notes" in nemo("files", "filesets", "list", "-f", "json").out
    assert nemo("files", "filesets", "get", "notes").json["id"] == made["id"]
    assert nemo("files", "filesets", "delete", "notes").code == 0

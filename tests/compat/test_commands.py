"""Every `jobs` command of the released client, on a running service.

What it prints is compared with what the wire promises. The client's variables are called `NMP_…`,
it has no watch, tail or wait, and a remote error ends it with 1.
"""

import json
import re
from typing import Any

import pytest

from tests.compat.kit import ReleasedClient, Said
from tests.e2e.service import JOBS, Client, until

pytestmark = pytest.mark.time_limit(240)

SPEC: dict[str, Any] = {
    "steps": [
        {
            "name": "first",
            "executor": {"provider": "subprocess", "command": ["sh", "-c", "seq 1 250; echo bad >&2"]},
            "environment": [{"name": "REGION", "value": "north"}],
            "config": {"limit": 40},
        },
        {"name": "second", "executor": {"provider": "subprocess", "command": ["true"]}},
    ]
}
SLEEP = {"steps": [{"name": "only", "executor": {"provider": "subprocess", "command": ["sleep", "300"]}}]}
COMMANDS = {
    "cancel", "create", "delete", "get", "get-logs", "get-status", "list", "list-execution-profiles",
    "pause", "results", "resume", "steps", "tasks", "update-status-details",
}  # fmt: skip


def create(nemo: ReleasedClient, name: str, spec: Any = SPEC, source: str = "nightly") -> Said:
    shown = ("--platform-spec", json.dumps(spec), "--source", source, "--spec", '{"input":{"kind":"csv"}}')
    return nemo("jobs", "create", name, *shown)


@pytest.fixture(scope="module")
def moth(nemo: ReleasedClient, service: Any) -> str:
    """A job of two steps that has completed."""
    made = create(nemo, "moth").json
    assert (made["status"], made["name"], made["workspace"]) == ("created", "moth", "default")
    service.client().wait("moth")
    return "moth"


def test_this_is_the_client_that_was_released(nemo: ReleasedClient) -> None:
    told = nemo.python("import importlib.metadata as m; print(m.version('nemo-platform'))")
    assert told.out.strip() == "0.3.0"
    shown = set(re.findall(r"^  ([a-z-]+)  ", nemo("jobs", "--help").out, re.MULTILINE))
    assert shown == COMMANDS  # each of them is used below


def test_create_and_get_bring_the_spec_back(nemo: ReleasedClient, moth: str) -> None:
    found = nemo("jobs", "get", moth).json
    first, second = found["platform_spec"]["steps"]
    assert first["environment"] == [{"name": "REGION", "value": "north", "from_secret": None}]
    assert first["config"] == {"limit": 40} and second["config"] == {}
    assert first["executor"] == {"profile": "default", **SPEC["steps"][0]["executor"]}
    assert second["environment"] is None
    assert second["lifecycle"] == {"staleness_timeout_seconds": 0}
    assert found["spec"] == {"input": {"kind": "csv"}}
    assert found["fileset"] == "job-fileset-moth" and found["status"] == "completed"
    assert re.fullmatch(r"platform-job-[1-9A-HJ-NP-Za-km-z]{21,22}", found["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", found["created_at"])


def test_create_reads_files_and_generates_names(nemo: ReleasedClient, client: Client) -> None:
    body = {"source": "My Nightly!", "spec": {}, "platform_spec": SPEC, "description": "from stdin"}
    made = nemo("jobs", "create", "--input-file", "-", stdin=json.dumps(body)).json
    assert re.fullmatch(r"my-nightly-[a-z0-9]{8}", made["name"])
    assert made["description"] == "from stdin"
    client.wait(made["name"])


def test_get_has_other_forms(nemo: ReleasedClient, moth: str) -> None:
    assert "\nname: moth\n" in nemo("jobs", "get", moth, "-f", "yaml").out
    assert "moth" in nemo("jobs", "get", moth, "-f", "raw").out
    code = nemo("jobs", "get", moth, "-f", "code")
    assert code.code == 0 and "jobs" in code.out


def test_get_status_is_the_whole_tree(nemo: ReleasedClient, moth: str) -> None:
    tree = nemo("jobs", "get-status", moth).json
    assert [step["name"] for step in tree["steps"]] == ["first", "second"]
    assert tree["status"] == "completed" and tree["error_details"] is None
    for step in tree["steps"]:
        (task,) = step["tasks"]
        assert task["status"] == step["status"] == "completed"
        assert isinstance(step["error_details"], dict) and isinstance(task["error_details"], dict)
        assert task["status_details"]["exit_code"] == 0 and task["error_stack"] is None


def test_list_filters_sorts_and_walks_all_pages(nemo: ReleasedClient, moth: str, client: Client) -> None:
    for number in range(5):
        assert create(nemo, f"walker-{number}", source="walk").code == 0
    for number in range(5):
        client.wait(f"walker-{number}")
    walk = ("--filter.source", "walk")
    whole = nemo(
        "jobs", "list", *walk, "--all-pages", "--page-size", "2", "--sort", "created_at", "-f", "json"
    )
    assert [job["name"] for job in whole.json["data"]] == [f"walker-{n}" for n in range(5)]
    page = nemo("jobs", "list", *walk, "--page-size", "2", "--page", "3", "-f", "json").json
    assert [job["name"] for job in page["data"]] == ["walker-0"]
    assert page["pagination"] == {
        **{"total_results": 5, "total_pages": 3, "page_size": 2, "page": 3, "current_page_size": 1}
    }
    assert page["sort"] == "-created_at" and page["filter"] == {"source": {"$eq": "walk"}}
    for filters, count in (
        (("--filter.status", "completed", *walk), 5),
        (("--filter.status", "error", *walk), 0),
        (("--filter.name", "walker-3"), 1),
        (("--filter", '{"name":{"$like":"alker-"}}'), 5),
        (("--filter", '{"created_at":{"gte":"2020-01-01"}}', *walk), 5),
        (("--filter", '{"created_at":{"lte":"2020-01-01T00:00:00Z"}}'), 0),
        (("--filter", '{"status":["completed","error"]}', *walk), 5),
        (("--filter", '{"source":{"$in":["walk","other"]}}'), 5),
        (("--filter.project", "none"), 0),
        (("--filter.workspace", "default", *walk), 5),
    ):
        found = nemo("jobs", "list", *filters, "-f", "json")
        assert found.json["pagination"]["total_results"] == count, filters
    # This client puts a list of objects on the wire in a form that nobody can read; it is told so.
    either = nemo("jobs", "list", "--filter", '{"$or":[{"source":"walk"},{"name":"moth"}]}')
    assert either.code == 1 and "(400)" in either.err
    bad = nemo("jobs", "list", "--filter", '{"colour":"red"}')
    assert bad.code == 1 and "400" in bad.err and "colour" in bad.err


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "yaml", "raw"])
def test_list_has_other_forms(nemo: ReleasedClient, moth: str, form: str) -> None:
    said = nemo("jobs", "list", "--filter.name", moth, "-f", form)
    assert said.code == 0 and moth in said.out


def test_execution_profiles_are_of_kinds_that_it_knows(nemo: ReleasedClient) -> None:
    profiles = nemo("jobs", "list-execution-profiles", "-f", "json").json
    assert [(p["provider"], p["profile"], p["backend"]) for p in profiles] == [
        ("subprocess",) * 1 + ("default", "subprocess")
    ]
    assert profiles[0]["config"]["ttl_seconds_active"] == 86400


def test_logs_by_page_and_whole(nemo: ReleasedClient, moth: str) -> None:
    page = nemo("jobs", "get-logs", moth, "--limit", "100", "-f", "json").json
    assert set(page["data"][0]) == {"timestamp", "job", "job_step", "job_task", "message"}
    assert page["total"] == 251 and page["prev_page"] is None
    after = nemo(
        "jobs", "get-logs", moth, "--limit", "100", "--page-cursor", page["next_page"], "-f", "json"
    ).json
    assert [line["message"] for line in after["data"]] == [str(n) for n in range(101, 201)]
    whole = nemo("jobs", "get-logs", moth, "--all-pages", "-f", "json").json
    assert sorted(line["message"] for line in whole["data"]) == sorted(
        [*map(str, range(1, 251)), "[stderr] bad"]
    )
    assert whole["next_page"] is None


def test_logs_of_an_attempt_a_step_a_task(nemo: ReleasedClient, moth: str) -> None:
    task = nemo("jobs", "tasks", "list", "first", "--job", moth, "-f", "json").json["data"][0]["name"]
    for narrow in (("--attempt-id", "0"), ("--step-id", "first"), ("--task-id", task)):
        assert nemo("jobs", "get-logs", moth, *narrow, "-f", "json").json["total"] == 251, narrow
    assert nemo("jobs", "get-logs", moth, "--step-id", "second", "-f", "json").json["data"] == []
    lost = nemo("jobs", "get-logs", moth, "--attempt-id", "7")
    assert lost.code == 1 and "404" in lost.err
    bad = nemo("jobs", "get-logs", moth, "--page-cursor", "nonsense")
    assert bad.code == 1 and "(422) Invalid page cursor" in bad.err


def test_steps(nemo: ReleasedClient, moth: str) -> None:
    listed = nemo("jobs", "steps", "list", moth, "-f", "json").json
    assert [step["name"] for step in listed["data"]] == ["first", "second"]
    assert listed["data"][0]["step_spec"]["config"] == {"limit": 40}
    assert listed["data"][0]["auth_context"]["principal_id"] == ""
    assert listed["sort"] == "created_at" and listed["filter"] == {"job": moth}
    pages = ("--page-size", "1", "--all-pages", "--sort=-created_at", "-f", "json")
    assert [s["name"] for s in nemo("jobs", "steps", "list", moth, *pages).json["data"]] == [
        "second",
        "first",
    ]
    for status, count in (("completed", 2), ("error", 0)):
        asked = ("--filter", json.dumps({"status": [status]}), "--filter.source", "nightly")
        found = nemo("jobs", "steps", "list", moth, *asked, "-f", "json").json
        assert len(found["data"]) == count
    one = nemo("jobs", "steps", "get", "first", "--job", moth).json
    assert one["config"] == {"limit": 40, "_step_spec_name": "first"}
    assert one["id"] == one["entity_id"] and one["parent"] == one["attempt_id"]


def test_tasks_are_reported_and_progress_travels_up(nemo: ReleasedClient, client: Client) -> None:
    assert create(nemo, "reporter", SLEEP).code == 0
    client.wait("reporter", "active")
    of = ("--job", "reporter", "--step", "only")
    told = ("--status", "active", "--status-details", '{"percentage_done":35}')
    made = nemo("jobs", "tasks", "create-or-update", "task-mine", *of, *told).json
    assert (made["status"], made["status_details"]) == ("active", {"percentage_done": 35})
    assert made["step_id"] == made["parent"] and made["id"] == made["entity_id"]
    again = nemo("jobs", "tasks", "get", "task-mine", *of).json
    assert again["id"] == made["id"]
    names = [
        t["name"]
        for t in nemo("jobs", "tasks", "list", "only", "--job", "reporter", "-f", "json").json["data"]
    ]
    assert "task-mine" in names and len(names) == 2
    assert nemo("jobs", "get", "reporter").json["status_details"] == {"percentage_done": 35}
    done = nemo("jobs", "update-status-details", "reporter", "--body", '{"epoch":2}')
    assert (done.code, done.out.strip()) == (0, "null")
    assert nemo("jobs", "get", "reporter").json["status_details"] == {"percentage_done": 35, "epoch": 2}


def test_delete_waits_for_cancel(nemo: ReleasedClient, client: Client) -> None:
    assert create(nemo, "sleeper", SLEEP).code == 0
    client.wait("sleeper", "active")
    early = nemo("jobs", "delete", "sleeper")
    assert early.code == 1 and "(409)" in early.err and "cancel" in early.err
    assert nemo("jobs", "cancel", "sleeper").json["status"] in ("cancelling", "cancelled")
    client.wait("sleeper", "cancelled")
    assert nemo("jobs", "cancel", "sleeper").json["status"] == "cancelled"
    assert nemo("jobs", "delete", "sleeper").code == 0
    gone = nemo("jobs", "get", "sleeper")
    assert gone.code == 1 and "(404) no job 'sleeper' in workspace 'default'" in gone.err


def test_pause_and_resume(nemo: ReleasedClient, client: Client) -> None:
    assert create(nemo, "napper", SLEEP).code == 0
    client.wait("napper", "active")
    assert nemo("jobs", "resume", "napper").json["status"] == "active"  # does not apply: unchanged
    assert nemo("jobs", "pause", "napper").json["status"] in ("pausing", "paused")
    client.wait("napper", "paused")
    assert nemo("jobs", "pause", "napper").json["status"] == "paused"
    assert nemo("jobs", "resume", "napper").json["status"] == "resuming"
    client.wait("napper", "active")
    nemo("jobs", "cancel", "napper")


def test_a_step_status_from_outside(nemo: ReleasedClient, client: Client, moth: str) -> None:
    assert create(nemo, "driven", SLEEP).code == 0
    client.wait("driven", "active")
    details = ("--status-details", '{"by":"hand"}', "--error-details", '{"message":"stopped by hand"}')
    step = nemo(
        "jobs", "steps", "update-status", "only", "--job", "driven", "--status", "error", *details
    ).json
    assert step["status"] == "error" and step["status_details"]["by"] == "hand"
    job = client.wait("driven", "error")
    assert job["error_details"]["message"] == "stopped by hand"
    late = nemo("jobs", "steps", "update-status", "first", "--job", moth, "--status", "active")
    assert late.code == 1 and "(409)" in late.err and "active" in late.err


def test_results(nemo: ReleasedClient, client: Client, moth: str, tmp_path: Any) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(bytes(range(256)) * 40)
    sent = nemo("files", "upload", str(file), "job-fileset-moth", "--remote-path", "results/weights")
    assert sent.code == 0, sent
    of = ("--job", moth)
    kind = ("--artifact-storage-type", "fileset")
    made = nemo(
        *("jobs", "results", "create", "weights", *of, *kind),
        *("--artifact-url", "default/job-fileset-moth#results/weights"),
    ).json
    assert made["job"] == nemo("jobs", "get", moth).json["id"] and made["download_url"] is None
    again = nemo(
        *("jobs", "results", "create", "weights", *of, *kind),
        *("--artifact-url", "default/job-fileset-moth#results/weights"),
    )
    assert again.code == 1 and "(409)" in again.err and "weights" in again.err
    assert "weights" in [r["name"] for r in nemo("jobs", "results", "list", moth, "-f", "json").json["data"]]
    assert nemo("jobs", "results", "get", "weights", *of).json["artifact_url"] == made["artifact_url"]
    target = tmp_path / "back.bin"
    got = nemo("jobs", "results", "download", "weights", *of, "-o", str(target))
    assert got.code == 0 and target.read_bytes() == file.read_bytes()
    lost = nemo("jobs", "results", "get", "nothing", *of)
    assert lost.code == 1 and "(404)" in lost.err and "nothing" in lost.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": []}, "steps"),
        ({"steps": [{"name": "A", "executor": SPEC["steps"][0]["executor"]}]}, "name"),
        ({"steps": [{"name": "ab", "executor": {"provider": "moon"}}]}, "union_tag_invalid"),
        (
            {
                "steps": [
                    {"name": "ab", "executor": {"provider": "subprocess", "profile": "no", "command": ["x"]}}
                ]
            },
            "'no'",
        ),
    ],
)
def test_wrong_specs_are_told(nemo: ReleasedClient, change: Any, says: str) -> None:
    said = create(nemo, "wrong", change)
    assert said.code == 1 and "422" in said.err and says in said.err.replace("\n", " "), said


def test_a_taken_name_is_told_once(nemo: ReleasedClient, client: Client, moth: str) -> None:
    before = requests(client)
    said = create(nemo, moth)
    assert said.code == 1 and "(409)" in said.err and moth in said.err
    # The header x-should-retry keeps the client from sending it again.
    assert until(lambda: requests(client) - before, 5) == 1


def requests(client: Client) -> int:
    """How many creates were answered with 409."""
    route = JOBS.replace("default", "{workspace}")
    for line in client.get("/metrics").body.decode().splitlines():
        labels = (f'route="{route}"', 'method="POST"', 'status="409"')
        if line.startswith("nemo_jobs_http_requests_total") and all(label in line for label in labels):
            return int(float(line.rsplit(" ", 1)[1]))
    return 0

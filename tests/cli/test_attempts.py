"""`nemo jobs rerun`, `attempts` and `update` against scripted services."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.cli.conftest import Nemo
from tests.cli.scripted import Reply, job, page, scripted

JOBS = "/apis/jobs/v2/workspaces/default/jobs"
STEPS = '{"steps": [{"name": "a1"}]}'


def attempt(seq: int, **over: object) -> dict:
    return {
        "id": f"platform-job-attempt-{seq}",
        "name": f"att-{seq}",
        "job": "platform-job-one",
        "workspace": "default",
        "seq": seq,
        "spec": {},
        "platform_spec": {"steps": []},
        "status": "error",
        "status_details": {},
        "error_details": None,
        "is_current": False,
        "created_at": "2027-03-04T09:15:27.104233Z",
        "updated_at": "2027-03-04T09:15:27.104233Z",
        **over,
    }


def test_rerun_prints_the_job(nemo: Nemo) -> None:
    with scripted(Reply(body=job("one"))) as server:
        ran = nemo("--base-url", server.url, "jobs", "rerun", "one")
        assert (ran.code, ran.err) == (0, "")
        assert json.loads(ran.out)["name"] == "one"
        ran = nemo("--base-url", server.url, "jobs", "rerun", "one", "--from-step", "fit+1")
        assert ran.code == 0
        assert server.targets == [f"POST {JOBS}/one/rerun", f"POST {JOBS}/one/rerun?from_step=fit%2B1"]
        assert all(seen.headers["idempotency-key"] for seen in server.seen)


def test_a_rerun_that_is_refused_says_why(nemo: Nemo) -> None:
    refusal = Reply(
        409, {"detail": "job 'one' can't be run again: it is active"}, {"x-should-retry": "false"}
    )
    with scripted(refusal) as server:
        ran = nemo("--base-url", server.url, "jobs", "rerun", "one")
        assert ran.code == 3 and "it is active" in ran.err and ran.out == ""
        assert len(server.seen) == 1


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("error", 1)])
def test_rerun_waits_for_the_end_if_it_is_asked_to(nemo: Nemo, status: str, code: int) -> None:
    tree = {
        **{"id": "platform-job-one", "name": "one", "status": status, "status_details": {}, "steps": []},
        **{
            "error_details": None,
            "created_at": "2027-03-04T09:15:27.1Z",
            "updated_at": "2027-03-04T09:15:27.1Z",
        },
    }

    def answer(seen):
        return Reply(body=job("one") if seen.method == "POST" else tree)

    with scripted(answer) as server:
        ran = nemo("--base-url", server.url, "jobs", "rerun", "one", "--wait")
        assert ran.code == code
        assert server.targets == [f"POST {JOBS}/one/rerun", f"GET {JOBS}/one/status"]
    ran = nemo("jobs", "rerun", "one", "--wait", "--watch")
    assert ran.code == 2 and "can't go together" in ran.err


def test_attempts_are_listed_and_shown(nemo: Nemo) -> None:
    with scripted(Reply(body=page([attempt(1, is_current=True), attempt(0)]))) as server:
        ran = nemo("--base-url", server.url, "jobs", "attempts", "list", "one", "-f", "csv")
        lines = ran.out.splitlines()
        assert lines[0] == "seq,id,status,is_current,created_at"
        assert lines[1].startswith("1,platform-job-attempt-1,error,") and len(lines) == 3
        flags = ("--sort", "seq", "--page-size", "5", "--filter.status", "error", "--filter.status", "paused")
        nemo("--base-url", server.url, "jobs", "attempts", "list", "one", *flags)
        assert server.targets == [
            f"GET {JOBS}/one/attempts",
            f"GET {JOBS}/one/attempts?page_size=5&sort=seq&filter="
            + quote('{"status":["error","paused"]}', safe=""),
        ]
    with scripted(Reply(body=attempt(0))) as server:
        for selector in ("current", "platform-job-attempt-0", "0"):
            ran = nemo("--base-url", server.url, "jobs", "attempts", "get", selector, "--job", "one")
            assert ran.code == 0 and json.loads(ran.out)["seq"] == 0
        assert [target.rsplit("/", 1)[1] for target in server.targets] == [
            "current",
            "platform-job-attempt-0",
            "0",
        ]
    assert nemo("jobs", "attempts", "get", "current").code == 2


def test_all_pages_of_attempts(nemo: Nemo) -> None:
    def answer(seen):
        number = 2 if "page=2" in seen.target else 1
        found = page([attempt(2 - number)])
        found["pagination"] |= {"total_pages": 2, "page": number, "total_results": 2}
        return Reply(body=found)

    with scripted(answer) as server:
        ran = nemo("--base-url", server.url, "jobs", "attempts", "list", "one", "--all-pages")
        assert [one["seq"] for one in json.loads(ran.out)["data"]] == [1, 0]


def test_update_sends_what_is_given(nemo: Nemo, tmp_path: Path) -> None:
    file = tmp_path / "change.yaml"
    file.write_text("description: null\nspec: {k: 1}\nplatform_spec: {steps: [{name: a1}]}\n")
    with scripted(Reply(body=job("one"))) as server:
        run = ("--base-url", server.url, "jobs", "update", "one")
        assert nemo(*run, "--description", "text").code == 0
        assert nemo(*run, "--spec", "{}", "--platform-spec", STEPS).code == 0
        assert nemo(*run, "--input-file", str(file)).code == 0
        assert nemo(*run, "--pause-ttl-seconds", "60").code == 0
        assert [seen.json for seen in server.seen] == [
            {"description": "text"},
            {"spec": {}, "platform_spec": {"steps": [{"name": "a1"}]}},
            {"description": None, "spec": {"k": 1}, "platform_spec": {"steps": [{"name": "a1"}]}},
            {"pause_ttl_seconds": 60},
        ]
        assert server.targets == [*[f"PATCH {JOBS}/one"] * 3, f"PATCH {JOBS}/one/control"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "nothing to change"),
        (("--spec", "{}"), "must be given together"),
        (("--spec", "[]"), "must be a JSON object"),
        (("--input-data", '{"name": "x"}'), "name: unknown"),
        (("--pause-ttl-seconds", "-1"), "x>=0"),
    ],
)
def test_update_refuses_what_no_service_would_take(nemo: Nemo, options: tuple[str, ...], words: str) -> None:
    ran = nemo("jobs", "update", "one", *options)
    assert ran.code == 2 and words in ran.err


def test_the_code_form_prints_python_and_sends_nothing(nemo: Nemo) -> None:
    assert (
        "client.rerun_job('one', from_step='fit')"
        in nemo("jobs", "rerun", "one", "--from-step", "fit", "-f", "code").out
    )
    assert (
        "client.get_job_attempt('current', job='one')"
        in nemo("jobs", "attempts", "get", "current", "--job", "one", "-f", "code").out
    )
    assert (
        "client.update_job('one', description='x')"
        in nemo("jobs", "update", "one", "--description", "x", "-f", "code").out
    )

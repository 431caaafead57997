"""Labels, dry runs, projects, and commands on all jobs that match: what is sent, asked and told."""

import json
import sys
from typing import Any

import click
import pytest

from tests.cli.conftest import Nemo
from tests.cli.scripted import Reply, Scripted, Seen, job, page, scripted

SPEC = ("--source", "s", "--spec", "{}", "--platform-spec", '{"steps": [{"name": "a1"}]}')
JOBS = "/apis/jobs/v2/workspaces/default/jobs"
PROJECTS = "/apis/entities/v2/workspaces/default/projects"


class ManyJobs:
    """Answers bulk calls for jobs that match; some may end between two calls."""

    def __init__(self, names: list[str], most: int = 1000, dropping: int = 0) -> None:
        self.left, self.most, self.dropping = names, most, dropping

    def __call__(self, seen: Seen) -> Reply:
        body = seen.json
        place = int(body.get("cursor") or 0)
        here = self.left[place:]
        expected = body.get("expected_count")
        if expected is not None and expected != len(here):
            text = f"{len(here)} jobs match the filter, not {expected} as expected"
            return Reply(409, {"detail": text}, {"x-should-retry": "false"})
        taken = here[: self.most]
        outcomes = ["refused" if name.startswith("no") else "done" for name in taken]
        answer = {
            "action": "cancel",
            "dry_run": expected is None,
            "count": len(here),
            **{name: outcomes.count(name) for name in ("done", "unchanged", "refused", "gone", "failed")},
            "data": [
                {"id": name, "name": name, "status": "cancelled", "outcome": outcome, "detail": None}
                for name, outcome in zip(taken, outcomes, strict=True)
            ],
            "next": str(place + len(taken)) if len(taken) < len(here) else None,
        }
        if expected is not None and self.dropping:
            self.left = self.left[: len(self.left) - self.dropping]
        return Reply(body=answer)


def sent(server: Scripted) -> list[Any]:
    return [request.json for request in server.seen]


@pytest.mark.parametrize("verb", ["cancel", "delete", "rerun"])
def test_a_filter_acts_on_all_that_match_and_says_what_happened(nemo: Nemo, verb: str) -> None:
    with scripted(ManyJobs(["a1", "b2"])) as server:
        ran = nemo("--base-url", server.url, "jobs", verb, "--filter", 'status:"active"', "--yes")
        assert server.targets == [f"POST {JOBS}:{verb}"] * 2
        assert sent(server) == [
            {"filter": 'status:"active"', "dry_run": True},
            {"filter": 'status:"active"', "expected_count": 2},
        ]
        assert ran.code == 0
        assert [item["name"] for item in json.loads(ran.out)["data"]] == ["a1", "b2"]
        assert "2 jobs" in ran.err


def test_labels_join_a_filter_in_json(nemo: Nemo) -> None:
    with scripted(ManyJobs(["a1"])) as server:
        words = ("--filter", '{"status":"active"}', "--label", "team=x", "--label", "app/y.z=a=b")
        assert nemo("--base-url", server.url, "jobs", "cancel", *words, "-y").code == 0
        labels = {"labels.team": "x", "labels.app/y.z": "a=b"}
        assert sent(server)[0]["filter"] == {"$and": [{"status": "active"}, labels]}
        assert nemo("--base-url", server.url, "jobs", "cancel", "--label", "team=", "-y").code == 0
        assert sent(server)[2]["filter"] == {"labels.team": ""}
    ran = nemo("jobs", "cancel", "--filter", 'name:"x"', "--label", "a=b", "-y")
    assert (ran.code, "put all into the text" in ran.err) == (2, True)


def test_without_a_terminal_yes_is_needed(nemo: Nemo) -> None:
    with scripted(ManyJobs(["a1"])) as server:
        ran = nemo("--base-url", server.url, "jobs", "delete", "--filter", 'name~""')
        assert (ran.code, ran.out) == (2, "")
        assert "--yes" in ran.err
        assert server.seen == []


def test_a_terminal_is_asked_with_the_number_and_no_means_no(
    nemo: Nemo, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def confirm(text: str, **given: Any) -> bool:
        asked.append(text)
        return len(asked) > 1

    monkeypatch.setattr("nemo_jobs.cli.jobs_bulk.can_ask", lambda: True)
    monkeypatch.setattr(click, "confirm", confirm)
    with scripted(ManyJobs([f"job-{n}" for n in range(7)])) as server:
        words = ("--base-url", server.url, "jobs", "cancel", "--filter", 'name~"job"')
        ran = nemo(*words)
        assert (ran.code, ran.out, ran.err) == (1, "", "nothing was done\n")
        assert asked == ["cancel 7 jobs in workspace 'default' (job-0, job-1, job-2, job-3, job-4, …)?"]
        assert len(server.seen) == 1
        assert nemo(*words).code == 0
        assert sent(server)[-1]["expected_count"] == 7


def test_one_who_can_be_asked_sits_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_jobs.cli.session import can_ask

    class Stream:
        def __init__(self, terminal: bool) -> None:
            self.terminal = terminal

        def isatty(self) -> bool:
            return self.terminal

    for stdin, stderr, expected in ((True, True, True), (True, False, False), (False, True, False)):
        monkeypatch.setattr(sys, "stdin", Stream(stdin))
        monkeypatch.setattr(sys, "stderr", Stream(stderr))
        assert can_ask() is expected
    monkeypatch.setattr(sys, "stdin", None)
    assert not can_ask()


def test_a_dry_run_only_tells(nemo: Nemo) -> None:
    with scripted(ManyJobs(["a1", "no-way"])) as server:
        ran = nemo("--base-url", server.url, "jobs", "delete", "--filter", 'name~""', "--dry-run")
        assert (ran.code, ran.err) == (0, "2 jobs match; nothing was done\n")
        assert sent(server) == [{"filter": 'name~""', "dry_run": True}]
        assert [item["outcome"] for item in json.loads(ran.out)["data"]] == ["done", "refused"]
        table = nemo("--base-url", server.url, "jobs", "delete", "--label", "a=b", "--dry-run", "-f", "csv")
        assert table.out.startswith("name,outcome,status,detail\na1,done,cancelled,\n")


def test_no_match_is_no_error(nemo: Nemo) -> None:
    with scripted(ManyJobs([])) as server:
        ran = nemo("--base-url", server.url, "jobs", "cancel", "--filter", 'name~"x"', "--yes")
        assert (ran.code, ran.out, ran.err) == (0, "", "no job matches; nothing was done\n")


def test_a_refused_job_makes_the_exit_code_1(nemo: Nemo) -> None:
    with scripted(ManyJobs(["a1", "no-way"])) as server:
        ran = nemo("--base-url", server.url, "jobs", "delete", "--filter", 'name~""', "--yes")
        assert (ran.code, "deleted: 1 job; 1 refused" in ran.err) == (1, True)


def test_more_than_a_call_takes_are_done_in_several(nemo: Nemo) -> None:
    with scripted(ManyJobs([f"job-{n}" for n in range(10)], most=4)) as server:
        ran = nemo("--base-url", server.url, "jobs", "cancel", "--filter", 'name~""', "--yes")
        assert ran.code == 0
        assert len(json.loads(ran.out)["data"]) == 10
        assert [(body.get("expected_count"), body.get("cursor")) for body in sent(server)] == [
            (None, None),
            (10, None),
            (6, "4"),
            (2, "8"),
        ]


def test_jobs_that_drop_out_between_the_calls_are_counted_anew(nemo: Nemo) -> None:
    with scripted(ManyJobs([f"job-{n}" for n in range(10)], most=4, dropping=1)) as server:
        ran = nemo("--base-url", server.url, "jobs", "cancel", "--filter", 'name~""', "--yes")
        assert ran.code == 0
        assert [item["name"] for item in json.loads(ran.out)["data"]] == [f"job-{n}" for n in range(8)]
        assert max(body.get("expected_count") or 0 for body in sent(server)) == 10


def test_more_jobs_than_were_agreed_to_are_left_alone(nemo: Nemo) -> None:
    class Growing(ManyJobs):
        def __call__(self, seen: Seen) -> Reply:
            reply = super().__call__(seen)
            self.left = [*self.left, "late", "later"]
            return reply

    with scripted(Growing(["a1"])) as server:
        ran = nemo("--base-url", server.url, "jobs", "cancel", "--filter", 'name~""', "--yes")
        assert (ran.code, ran.out) == (3, "")
        assert "not 1 as expected" in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "Give its NAME, or --filter"),
        (("x", "--filter", 'name:"x"'), "a NAME can't go together"),
        (("x", "--label", "a=b"), "a NAME can't go together"),
        (("x", "--yes"), "go with --filter or --label"),
        (("x", "--dry-run"), "go with --filter or --label"),
        (("--label", "novalue"), "must look like KEY=VALUE"),
        (("--label", "=x"), "must look like KEY=VALUE"),
        (("--label", "a=1", "--label", "a=2"), "'a' is given twice"),
    ],
)
def test_words_that_do_not_fit_exit_with_2(nemo: Nemo, words: tuple[str, ...], says: str) -> None:
    for verb in ("cancel", "delete", "rerun"):
        ran = nemo("jobs", verb, *words)
        assert (ran.code, ran.out) == (2, "")
        assert says in ran.err


def test_labels_of_a_new_job(nemo: Nemo) -> None:
    with scripted(Reply(201, job())) as server:
        fields = ("--custom-fields", '{"a": 1, "labels": {"x": "1", "y": "2"}}')
        words = ("--label", "y=3", "--label", "z=")
        assert nemo("--base-url", server.url, "jobs", "create", "moth", *SPEC, *fields, *words).code == 0
        assert sent(server)[0]["custom_fields"] == {"a": 1, "labels": {"x": "1", "y": "3", "z": ""}}
        assert nemo("--base-url", server.url, "jobs", "run", "--label", "a=b", "--", "true").code == 0
        assert sent(server)[1]["custom_fields"] == {"labels": {"a": "b"}}
        assert nemo("--base-url", server.url, "jobs", "run", "--", "true").code == 0
        assert "custom_fields" not in sent(server)[2]
        keys = [request.headers.get("idempotency-key") for request in server.seen]
        assert all(keys) and len(set(keys)) == 3
    ran = nemo("jobs", "create", "moth", *SPEC, "--custom-fields", '{"labels": []}', "--label", "a=b")
    assert ran.code == 2


def test_a_list_by_label(nemo: Nemo) -> None:
    with scripted(Reply(body=page([]))) as server:
        words = ("--label", "team=x", "--filter.status", "error")
        assert nemo("--base-url", server.url, "jobs", "list", *words).code == 0
        from urllib.parse import parse_qs, urlsplit

        query = parse_qs(urlsplit(server.seen[0].target).query)
        assert json.loads(query["filter"][0]) == {"labels.team": "x", "status": ["error"]}


def test_create_dry_run_shows_the_plan(nemo: Nemo) -> None:
    plan = {"name": "moth", "dry_run": True, "steps": []}
    with scripted(Reply(body=plan)) as server:
        ran = nemo("--base-url", server.url, "jobs", "create", "moth", *SPEC, "--dry-run", "--label", "a=b")
        assert (ran.code, json.loads(ran.out)) == (0, plan)
        assert server.targets == [f"POST {JOBS}?dry_run=true"]
        assert sent(server)[0]["custom_fields"] == {"labels": {"a": "b"}}
    for option in ("--wait", "--watch"):
        assert nemo("jobs", "create", "moth", *SPEC, "--dry-run", option).code == 2


def test_projects(nemo: Nemo) -> None:
    project = {"id": "p", "name": "apollo", "workspace": "default", "description": None}
    with scripted(Reply(201, project)) as server:
        base = ("--base-url", server.url, "projects")
        assert json.loads(nemo(*base, "create", "apollo", "--description", "d").out) == project
        assert json.loads(nemo(*base, "get", "apollo").out) == project
        assert json.loads(nemo(*base, "update", "apollo", "--description", "e").out) == project
        ran = nemo(*base, "delete", "apollo", "--workspace", "lab")
        assert (ran.code, ran.out, ran.err) == (0, "", "deleted project 'apollo'\n")
        assert server.targets == [
            f"POST {PROJECTS}",
            f"GET {PROJECTS}/apollo",
            f"PATCH {PROJECTS}/apollo",
            f"DELETE {PROJECTS.replace('default', 'lab')}/apollo",
        ]
        assert server.seen[0].json == {"name": "apollo", "description": "d"}
    with scripted(Reply(body=page([project]))) as server:
        ran = nemo("--base-url", server.url, "projects", "list", "-f", "csv")
        assert ran.out == "name,description,created_at\napollo,,\n"
        assert nemo("--base-url", server.url, "projects", "list", "--all-pages").code == 0
    assert nemo("projects", "update", "apollo").code == 2
    assert nemo("projects", "get", "apollo", "-f", "code").out.endswith("client.get_project('apollo')\n")

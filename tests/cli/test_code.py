"""`-f code` prints Python that makes the same requests, and sends nothing itself."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Nemo
from tests.cli.scripted import Reply, Scripted, job, page, scripted, tree

SPEC = '{"steps": [{"name": "fit", "executor": {"provider": "subprocess", "command": ["ö\\u2028"]}}]}'
COUNTS = {"count": 1, "done": 1, "unchanged": 0, "refused": 0, "gone": 0, "failed": 0, "next": None}
ANSWER = {
    **job(),
    **page([]),
    **tree("completed"),
    **{"next_page": None, "prev_page": None, "total": 0},
    **COUNTS,
}
AT = ("--workspace", "lab")
COMMANDS = [
    ("create", "moth", "--source", "s", "--spec", "{}", "--platform-spec", SPEC, *AT),
    ("create", "moth", "--source", "s", "--spec", "{}", "--platform-spec", SPEC, "--dry-run"),
    ("run", "--name", "moth", "-e", "K=ü", "--", "echo", "it's", 'a "b"', "\\n"),
    ("list", "--filter.status", "error", "--filter.source", "x", "--page-size", "5", *AT),
    ("list", "--filter", 'source~"é"', "--sort", "-updated_at"),
    ("list-execution-profiles",),
    ("get", "m/ö", *AT),
    ("get-status", "m"),
    ("cancel", "m"),
    ("pause", "m"),
    ("resume", "m"),
    ("rerun", "m", "--from-step", "fit"),
    ("delete", "m"),
    ("delete", "--label", "a=b", "--yes"),
    ("cancel", "--filter", 'name:"m"', "--dry-run"),
    ("rerun", "--filter", 'name:"m"', "--yes"),
    ("get-logs", "m", "--attempt-id", "0", "--step-id", "s", "--limit", "5"),
    ("tail", "m", "-n", "7", "--output-format", "code"),
    ("update-status-details", "m", "--body", '{"a": null, "b": true}'),
    ("update", "m", "--description", "d"),
    ("attempts", "list", "m"),
    ("attempts", "get", "current", "--job", "m"),
    ("results", "list", "m"),
    ("results", "get", "w", "--job", "m"),
    ("results", "create", "w", "--job", "m", "--artifact-url", "f#w", "--artifact-storage-type", "fileset"),
    ("steps", "list", "m", "--filter", '{"status": ["error"]}'),
    ("steps", "get", "fit", "--job", "m"),
    ("steps", "update-status", "fit", "--job", "m", "--status", "active"),
    ("tasks", "list", "fit", "--job", "m"),
    ("tasks", "get", "t", "--job", "m", "--step", "fit"),
    ("tasks", "create-or-update", "t", "--job", "m", "--step", "fit", "--error-stack", "x\ny"),
]


def requests(server: Scripted) -> list[tuple[str, str, Any]]:
    return [(seen.method, seen.target, seen.json if seen.body else None) for seen in server.seen]


def answer(seen: Any) -> Reply:
    if seen.target.endswith("execution-profiles"):
        return Reply(body=[])
    return Reply(201 if seen.method == "POST" else 200, ANSWER)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words[:2]))
def test_the_code_does_what_the_command_does(nemo: Nemo, words: tuple[str, ...]) -> None:
    with scripted(answer) as server:
        at = ("--base-url", server.url, "-f", "code")
        printed = nemo(*at, "jobs", *words)
        assert (printed.code, printed.err, server.seen) == (0, "", [])
        scope: dict[str, Any] = {}
        exec(compile(printed.out, "printed", "exec"), scope)
        scope["client"].close()
        by_code = requests(server)
        server.seen.clear()
        done = nemo(*at[:2], "jobs", *(word for word in words if word not in ("--output-format", "code")))
        assert done.code == 0, done.err
        assert requests(server)[: len(by_code)] == by_code != []


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (("list", "--all-pages", "--sort", "source"), "iter_jobs(page_size=1000, sort='source')"),
        (("steps", "list", "m", "--all-pages"), "iter_steps('m', page_size=1000)"),
        (("watch", "m", "--step-id", "s"), "follow_logs('m', step_id='s')"),
        (("tail", "m", "--follow", "-n", "5"), "follow_logs('m', tail=5)"),
    ],
)
def test_what_asks_again_and_again_has_a_method_that_does(
    nemo: Nemo, words: tuple[str, ...], call: str
) -> None:
    ran = nemo("-f", "code", "jobs", *words)
    assert ran.out.splitlines()[-1] == f"answer = client.{call}"


WAITS = "answer = client.wait(answer['name'], timeout={})"
PRINTS = ["for line in client.follow_logs(answer['name']):", "    print(line['message'])"]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ((*COMMANDS[0], "--wait"), [WAITS.format(1200)]),
        ((*COMMANDS[0], "--watch", "--timeout", "9"), [*PRINTS, WAITS.format(9)]),
        (("rerun", "m", "--watch"), [*PRINTS, WAITS.format(None)]),
        (("run", "--follow", "--", "true"), [*PRINTS, WAITS.format(None)]),
        (("results", "download", "w", "--job", "m", "-o", "it's"), ['print(answer.write_to_file("it\'s"))']),
        (
            ("results", "download", "w", "--job", "m", "-o", "-"),
            ["import sys", "sys.stdout.buffer.write(answer.read())"],
        ),
    ],
    ids=["create-wait", "create-watch", "rerun", "run", "file", "output"],
)
def test_what_follows_the_call_is_printed_as_well(
    nemo: Nemo, words: tuple[str, ...], lines: list[str]
) -> None:
    printed = nemo("-f", "code", "jobs", *words).out
    compile(printed, "printed", "exec")
    call, *after = printed.splitlines()[3:]
    assert call.startswith("answer = client.")
    assert after == lines


@pytest.mark.parametrize("command", ["list", "tail", "watch", "cancel"])
def test_a_preference_for_code_sends_nothing_either(
    nemo: Nemo, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("NHX_OUTPUT_FORMAT", "code")
    with scripted(answer) as server:
        ran = nemo("--base-url", server.url, "jobs", command, *(() if command == "list" else ("m",)))
        assert ran.out.startswith("from nemo_jobs.client import JobsClient")
        assert server.seen == []
        # A flag goes before the environment.
        ran = nemo("--base-url", server.url, "jobs", "list", "-f", "json")
        assert json.loads(ran.out)["data"] == []


def test_a_token_is_sent_but_never_printed(nemo: Nemo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NHX_ACCESS_TOKEN", "s3cret")
    with scripted(answer) as server:
        printed = nemo("--base-url", server.url, "jobs", "get", "m", "-f", "code").out
        assert "s3cret" not in printed
        scope: dict[str, Any] = {}
        exec(compile(printed, "printed", "exec"), scope)
        scope["client"].close()
        assert server.seen[0].headers["authorization"] == "Bearer s3cret"

"""Shells complete commands, options, values and names of jobs."""

import os
import shutil
import subprocess

import pytest

from tests.cli.scripted import Reply, job, page, scripted
from tests.e2e.service import NEMO


def complete(*words: str, url: str = "http://127.0.0.1:9", **more: str) -> list[str]:
    ran = subprocess.run(
        [NEMO],
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "NHX_BASE_URL": url,
            "_NEMO_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("nemo", *words)),
            "COMP_CWORD": str(len(words)),
            **more,
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ran.stderr == ""
    return [line.partition(",")[2] for line in ran.stdout.splitlines() if line]


def test_commands_and_options_are_completed() -> None:
    assert complete("jo") == ["jobs"]
    assert "steps" in complete("jobs", "st")
    assert complete("jobs", "list", "--filter.st") == ["--filter.status"]
    assert complete("jobs", "list", "--output-format", "ya") == ["yaml"]
    assert complete("completion", "") == ["bash", "zsh", "fish"]


def test_jobs_are_completed_by_name() -> None:
    with scripted(Reply(body=page([job("moth-1"), job("moth-2")]))) as server:
        assert complete("jobs", "get", "mo", url=server.url) == ["moth-1", "moth-2"]
        assert "startsWith" in server.seen[0].target
        assert complete("jobs", "steps", "get", "work", "--job", "mo", url=server.url) == ["moth-1", "moth-2"]


def test_workspaces_and_states_are_completed() -> None:
    with scripted(Reply(body=page([{"name": "moths"}, {"name": "default"}]))) as server:
        assert complete("jobs", "list", "--workspace", "mo", url=server.url) == ["moths"]
        assert complete("jobs", "get", "-w", "", url=server.url) == ["moths", "default"]
    assert complete("jobs", "get", "-w", "mo") == []
    assert complete("jobs", "list", "--filter.status", "ca") == ["cancelled", "cancelling"]
    assert complete("jobs", "attempts", "list", "j", "--filter.status", "er") == ["error"]


def test_a_service_that_is_away_or_refuses_completes_nothing_and_says_nothing() -> None:
    assert complete("jobs", "get", "mo") == []
    with scripted(Reply(401, {"detail": "no"})) as server:
        assert complete("jobs", "get", "mo", url=server.url) == []
    assert complete("jobs", "get", "mo", NHX_CONFIG_FILE="/nonexistent/x") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_one_that_it_takes(shell: str) -> None:
    ran = subprocess.run([NEMO, "completion", shell], capture_output=True, text=True, timeout=30, check=True)
    assert f"_NEMO_COMPLETE={shell}_complete" in ran.stdout
    if program := shutil.which(shell):
        checked = subprocess.run(
            [program, "-n"], input=ran.stdout, text=True, capture_output=True, timeout=30
        )
        assert checked.returncode == 0, checked.stderr


def test_bash_completes_in_earnest() -> None:
    script = (
        f'PATH="{NEMO.parent}:$PATH"; eval "$(nemo completion bash)"\n'
        'COMP_WORDS=(nemo jobs update-st); COMP_CWORD=2; _nemo_completion nemo; echo "${COMPREPLY[@]}"'
    )
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout.split() == ["update-status-details"]


def test_an_unknown_shell_names_the_known_ones() -> None:
    ran = subprocess.run([NEMO, "completion", "tcsh"], capture_output=True, text=True, timeout=30)
    assert ran.returncode == 2
    assert "'bash', 'zsh', 'fish'" in ran.stderr

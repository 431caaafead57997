"""How processes start and end, through the API."""

import itertools
import json
import os
import random
import sys
import time

import pytest

from tests.cases.kit import cancel, create, first_line, marked, script, step_of
from tests.e2e.service import JOBS, Client, Service, in_threads, proc_file, state_of, until

TREE = "sleep 600 & (setsid sleep 601 &) ; sleep 602 & echo up; wait"


def test_c002_c089_nothing_is_left_after_a_cancel(client: Client) -> None:
    script(client, "c002", TREE, MARK="c002-mark")
    first_line(client, "c002")
    until(lambda: len(marked("c002-mark")) >= 4)
    cancel(client, "c002")
    client.wait("c002", "cancelled")
    assert marked("c002-mark") == []


def test_c002_c077_nothing_is_left_after_the_time_limit_and_it_is_named(client: Client) -> None:
    text = f"trap 'echo bye; exit 0' TERM; {TREE}"
    script(client, "c077", text, profile="short", MARK="c077-mark")
    job = client.wait("c077", "error")
    assert marked("c077-mark") == []
    assert "1 s (ttl_seconds_active)" in job["error_details"]["message"]
    assert "bye" in client.messages("c077")


def test_c089_a_step_that_hides_its_task_name_is_ended_and_hurts_no_other(client: Client) -> None:
    script(client, "c089-a", TREE, MARK="c089-mark-a", NEMO_JOB_TASK="task-invented")
    first_line(client, "c089-a")
    task = step_of(client, "c089-a")["tasks"][0]["name"]
    script(client, "c089-b", TREE, MARK="c089-mark-b", NEMO_JOB_TASK=task)
    first_line(client, "c089-b")
    cancel(client, "c089-a")
    client.wait("c089-a", "cancelled")
    assert marked("c089-mark-a") == []
    assert len(marked("c089-mark-b")) >= 4
    cancel(client, "c089-b")
    client.wait("c089-b", "cancelled")
    assert marked("c089-mark-b") == []


def test_c010_the_grace_is_given_and_then_force_is_used(client: Client) -> None:
    script(
        client, "c010-saves", "trap 'sleep .5; echo saved; exit 0' TERM; echo up; while :; do sleep .05; done"
    )
    script(client, "c010-ignores", "trap '' TERM; echo up; while :; do sleep .05; done", profile="one")
    for name in ("c010-saves", "c010-ignores"):
        first_line(client, name)
        began = time.monotonic()
        cancel(client, name)
        client.wait(name, "cancelled")
        assert time.monotonic() - began < 5
    assert client.messages("c010-saves")[-1] == "saved"
    assert step_of(client, "c010-ignores")["status_details"]["signal"] == "SIGKILL"


def test_c011_a_cancel_at_any_moment_never_ends_as_an_error(shared: Service) -> None:
    def one(number: int) -> None:
        client, chance = shared.client(), random.Random(number)
        for turn in range(5):
            name = f"c011-{number}-{turn}"
            create(client, name, ["sleep", "0.1"])
            time.sleep(chance.uniform(0, 0.15))
            cancel(client, name)
            assert client.wait(name)["status"] in ("cancelled", "completed")

    in_threads(one, 4)


@pytest.mark.parametrize(
    ("text", "code", "name", "words"),
    [
        ("kill -9 $$", 137, "SIGKILL", "killed by SIGKILL (possibly out of memory)"),
        ("kill -11 $$", 139, "SIGSEGV", "killed by SIGSEGV"),
        ("exit 255", 255, None, "code 255"),
    ],
)
def test_c017_signals_and_codes_are_told(
    client: Client, text: str, code: int, name: str | None, words: str
) -> None:
    job = f"c017-{code}"
    script(client, job, text)
    details = client.wait(job, "error")["error_details"]
    assert (details["exit_code"], details.get("signal")) == (code, name)
    assert words in details["message"]
    task = step_of(client, job)["tasks"][0]
    assert (task["status"], task["status_details"]["exit_code"]) == ("error", code)


def test_c017_a_missing_program_is_named(client: Client) -> None:
    create(client, "c017-missing", ["no-such-program"])
    assert (
        "'no-such-program' was not found" in client.wait("c017-missing", "error")["error_details"]["message"]
    )


def test_c044_a_task_sees_nothing_of_the_service(client: Client, shared: Service) -> None:
    code = (
        "import json, os, stat; print(json.dumps([dict(os.environ), sorted(os.listdir('/proc/self/fd'))[:4], "
        "os.getcwd(), stat.S_IMODE(os.stat('.').st_mode)]))"
    )
    create(
        client,
        "c044",
        [sys.executable, "-S", "-c", code],
        LEVEL="s",
        NHX_JOBS_URL="mine",
        NEMO_JOB_STEP="mine",
    )
    assert client.wait("c044")["status"] == "completed"
    [line] = client.messages("c044")
    assert "canary" not in line
    env, files, folder, mode = json.loads(line)
    assert files == ["0", "1", "2", "3"]  # 3 is the one that lists them
    assert (folder, mode) == (env["HOME"], 0o700)
    assert env["HOME"] == env["TMPDIR"] == step_of(client, "c044")["status_details"]["subprocess_work_dir"]
    inherited = {"PATH": os.environ["PATH"], "NEMO_AGENTS_WHEEL": "wheel"}
    own = {"FROM_PROFILE": "1", "LEVEL": "s", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    rest = {name: env[name] for name in env if not name.startswith(("NEMO_JOB_", "NHX_", "LOG_"))}
    assert rest.items() >= (inherited | own).items()
    assert rest.keys() <= {*inherited, *own, "HOME", "TMPDIR", "LC_CTYPE"}
    assert (env["NEMO_JOB_ID"], env["NEMO_JOB_STEP"]) == ("c044", "mine")
    assert env["NHX_JOBS_URL"] == f"http://localhost:{shared.port}"


def test_c048_words_and_variables_arrive_as_they_were_sent(client: Client) -> None:
    words = ["a b", "$HOME", "$(PATH)", "`id`", "*", "", "x\ny", "--", "é"]
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['V']]))"
    create(client, "c048", [sys.executable, "-c", code, *words], V="$HOME=$(X)\n`id` é")
    client.wait("c048")
    assert json.loads(client.messages("c048")[0]) == [words, "$HOME=$(X)\n`id` é"]


@pytest.mark.parametrize("word", ["python", "python3"])
def test_python_is_the_interpreter_of_the_service(client: Client, word: str) -> None:
    create(client, f"its-{word}", [word, "-c", "import sys; print(sys.prefix)"])
    client.wait(f"its-{word}")
    assert client.messages(f"its-{word}") == [sys.prefix]


def test_c061_the_exit_code_is_that_of_the_command(client: Client) -> None:
    create(client, "c061-pipe", ["sh", "-c", "false | cat"])
    create(client, "c061-false", ["false"])
    assert client.wait("c061-pipe")["status"] == "completed"
    assert client.wait("c061-false")["error_details"]["exit_code"] == 1


def test_c061_the_grace_lasts_until_the_whole_tree_has_ended(client: Client) -> None:
    saver = "trap 'sleep .7; echo saved; exit' TERM; echo up; while :; do sleep .05; done"
    script(client, "c061-saver", f'bash -c "{saver}"; :', MARK="c061-mark")
    first_line(client, "c061-saver")
    cancel(client, "c061-saver")
    client.wait("c061-saver", "cancelled")
    assert "saved" in client.messages("c061-saver")
    assert marked("c061-mark") == []


def test_c072_who_asks_the_keyboard_gets_the_end_of_the_input(client: Client) -> None:
    create(client, "c072-asks", ["python3", "-c", "input('Continue? ')"])
    create(client, "c072-cat", ["cat"])
    client.wait("c072-asks", "error")
    assert any("EOFError" in line for line in client.messages("c072-asks"))
    assert "EOFError" in step_of(client, "c072-asks")["tasks"][0]["error_stack"]
    assert client.wait("c072-cat")["status"] == "completed"


def test_c086_names_are_never_run_and_never_lead_elsewhere(client: Client, shared: Service) -> None:
    proof = shared.root / "pwned"
    for name in (f"x;touch {proof}", f"$(touch {proof})", "-v/:/h", "a\nb: c", "..", "a/b", "../../x"):
        assert client.create(name, ["true"]).status == 422
        steps = [{"name": name, "executor": {"provider": "subprocess", "command": ["true"]}}]
        body = {"name": "c086-step", "source": name, "spec": {}, "platform_spec": {"steps": steps}}
        assert client.post(JOBS, body).status == 422
    assert not proof.exists()


def test_c101_many_short_jobs_leave_no_zombies_and_no_open_files(shared: Service) -> None:
    turns = itertools.count()

    def one(number: int) -> None:
        client, turn = shared.client(), next(turns)
        names = [f"c101-{turn}-{index}" for index in range(10)]
        for name in names:
            create(client, name, ["sh", "-c", "(sleep .2 &) ; exit 0"])
        for name in names:
            client.wait(name, "completed")

    def counts() -> list[int]:
        folders = [f"/proc/{pid}/{part}" for pid in owners for part in ("fd", "task")]
        return [len(os.listdir(folder)) for folder in folders]

    in_threads(one, 4)
    owners = [shared.pid, *shared.keepers()]
    before = counts()
    in_threads(one, 8)
    until(
        lambda: all(now <= then + 4 for now, then in zip(counts(), before, strict=True)),
        10,
        lambda: str(counts()),
    )
    until(lambda: zombies(owners) == [], 10)


def zombies(parents: list[int]) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and state_of(int(name)) == "Z"]
    parent = {pid: proc_file(pid, "stat").rpartition(b")")[2].split()[1:2] for pid in pids}
    return [pid for pid in pids if parent[pid] and int(parent[pid][0]) in parents]

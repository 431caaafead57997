"""Processes of the host backend: how they start, what they see, how all of them end."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.backends.api import Handle, Observation, Phase, Rejected, Unavailable
from nemo_jobs.backends.keeper_process import StartTimes, process
from nemo_jobs.backends.subprocess import SubprocessBackend
from tests.backends.host import HostHarness, having, output, until_ended, zombies_of


def marker() -> tuple[dict[str, str], str]:
    value = uuid.uuid4().hex
    return {"MARK": value}, f"MARK={value}"


async def ran(host: HostHarness, command: list[str], **changes: Any) -> tuple[Observation, dict[str, bytes]]:
    backend = await host.host()
    handle = await backend.submit(host.command(command, **changes))
    seen = await until_ended(backend, handle)
    return seen, await output(backend, handle)


async def first_output(backend: SubprocessBackend, handle: Handle) -> bytes:
    async with asyncio.timeout(10):
        return (await anext(aiter(backend.logs(handle, None)))).data


async def test_c002_stop_ends_every_child(host: HostHarness) -> None:
    env, mark = marker()
    backend = await host.host()
    script = "sleep 600 & sleep 601 & echo up; wait"
    handle = await backend.submit(host.command(["bash", "-c", script], env=env))
    await first_output(backend, handle)
    assert len(having(mark)) == 3
    await backend.stop(handle, 5.0)
    assert (await until_ended(backend, handle)).phase is Phase.STOPPED
    assert having(mark) == []


async def test_c010_a_program_that_saves_on_sigterm_has_the_time(host: HostHarness) -> None:
    backend = await host.host()
    script = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    handle = await backend.submit(host.command(["sh", "-c", script]))
    await first_output(backend, handle)
    await backend.stop(handle, 10.0)
    seen = await until_ended(backend, handle)
    assert (seen.phase, seen.tasks[0].exit_code) == (Phase.STOPPED, 0)
    assert (await output(backend, handle))["stdout"] == b"up\nsaved\n"


async def test_c010_a_tree_that_ignores_sigterm_is_killed_after_the_grace(host: HostHarness) -> None:
    env, mark = marker()
    backend = await host.host()
    script = "trap '' TERM; (sleep 600) & echo up; sleep 601"
    handle = await backend.submit(host.command(["sh", "-c", script], env=env))
    await first_output(backend, handle)
    began = time.monotonic()
    await backend.stop(handle, 0.3)
    seen = await until_ended(backend, handle)
    assert 0.3 <= time.monotonic() - began < 3
    assert (seen.phase, seen.tasks[0].signal) == (Phase.STOPPED, "SIGKILL")
    assert having(mark) == []


async def test_a_halted_process_is_woken_to_end(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["sh", "-c", "echo up; kill -STOP $$; sleep 600"]))
    await first_output(backend, handle)
    await asyncio.sleep(0.05)
    await backend.stop(handle, 30.0)
    assert (await until_ended(backend, handle, 5)).tasks[0].signal == "SIGTERM"


async def test_c011_a_stop_at_any_moment_is_never_a_failure(host: HostHarness) -> None:
    backend = await host.host()

    async def one(delay: float) -> Phase:
        handle = await backend.submit(host.command(["sleep", "0.05"]))
        await asyncio.sleep(delay)
        await backend.stop(handle, 5.0)
        return (await until_ended(backend, handle)).phase

    chance = random.Random(11)
    phases = await asyncio.gather(*(one(chance.uniform(0, 0.1)) for _ in range(40)))
    assert set(phases) <= {Phase.STOPPED, Phase.SUCCEEDED}


@pytest.mark.parametrize(
    ("script", "code", "name"),
    [
        ("kill -9 $$", 137, "SIGKILL"),
        ("kill -11 $$", 139, "SIGSEGV"),
        ("exit 255", 255, None),
        ("exit 256", 0, None),
    ],
)
async def test_c017_signals_and_codes(host: HostHarness, script: str, code: int, name: str | None) -> None:
    seen, _ = await ran(host, ["bash", "-c", script])
    assert (seen.tasks[0].exit_code, seen.tasks[0].signal) == (code, name)
    assert seen.phase is (Phase.FAILED if code else Phase.SUCCEEDED)
    if name == "SIGKILL":
        assert "killed by SIGKILL (possibly out of memory)" in seen.message
        assert seen.reason == "signal"


async def test_cpu_and_memory_of_the_process_are_told(host: HostHarness) -> None:
    code = "x = bytearray(50_000_000)\nfor i in range(0, len(x), 4096): x[i] = 1\nsum(range(1_000_000))"
    seen, _ = await ran(host, ["python", "-c", code])
    assert (seen.tasks[0].cpu_seconds or 0) > 0.005
    assert 50e6 < (seen.tasks[0].peak_memory_bytes or 0) < 200e6


async def test_c044_nothing_of_the_service_reaches_a_task(
    host: HostHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "canary")
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    read, write = os.pipe()
    os.set_inheritable(read, True)
    code = (
        "import os, json, signal; print(json.dumps([dict(os.environ), os.listdir('/proc/self/fd'), "
        "os.getcwd(), os.umask(0), os.getsid(0) == os.getpid(), str(signal.getsignal(signal.SIGHUP))]))"
    )
    backend = await host.host()
    plan = host.command([sys.executable, "-S", "-c", code], profile_env={"FROM_PROFILE": "1"})
    handle = await backend.submit(plan)
    await until_ended(backend, handle)
    env, files, directory, umask, leads, hangup = json.loads((await output(backend, handle))["stdout"])
    os.close(read)
    os.close(write)
    home = str(host.root / "default" / plan.job / plan.attempt_id / "step" / plan.task)
    assert directory == env["HOME"] == env["TMPDIR"] == home
    assert len(files) == 4  # the three and the one that lists them
    assert (umask, leads, hangup) == (0o077, True, str(signal.SIG_DFL))
    names = {"PATH", "VIRTUAL_ENV", "HOME", "TMPDIR", "LANG", "PYTHONUNBUFFERED", "FROM_PROFILE", "LC_CTYPE"}
    assert {name for name in env if not name.startswith(("NEMO_JOB_", "NHX_", "LOG_"))} <= names
    assert env["NHX_BASE_URL"] == "http://localhost:8080"
    assert env["NHX_JOBS_URL"] == "http://example.org/jobs"


async def test_c044_the_keeper_holds_nothing_of_the_service(host: HostHarness) -> None:
    await host.host()
    pid = host.keeper_pid()
    assert b"PATH" not in Path(f"/proc/{pid}/environ").read_bytes()
    held = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    inside = [path for path in held if path.startswith("/") and "keeper" not in path]
    assert inside == ["/dev/null"]
    assert os.getsid(pid) != os.getsid(0)
    for path in (host.data_dir / "keeper").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


async def test_c048_words_and_variables_arrive_byte_for_byte(host: HostHarness) -> None:
    words = ["a b", "$HOME", "$(PATH)", "`id`", "*", "", "x\ny", "--", "é", "日本", '"', "'", "\\", "\x1b[0m"]
    env = {f"V{number}": word for number, word in enumerate(words)} | {"E": "a=b$c"}
    code = (
        "import sys, os, json; "
        "print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items() if k[0] in 'VE'}]))"
    )
    seen, text = await ran(host, ["python3", "-X", "utf8", "-c", code, *words], env=env)
    assert seen.phase is Phase.SUCCEEDED
    got_words, got_env = json.loads(text["stdout"])
    got_env.pop("VIRTUAL_ENV", None)
    assert (got_words, got_env) == (words, env)


async def test_c061_the_command_itself_decides_and_the_grace_is_the_whole_trees(host: HostHarness) -> None:
    assert (await ran(host, ["sh", "-c", "false | cat"]))[0].phase is Phase.SUCCEEDED
    assert (await ran(host, ["false"]))[0].tasks[0].exit_code == 1
    backend = await host.host()
    saver = "trap 'sleep 0.4; echo saved; exit' TERM; echo up; while :; do sleep 0.02; done"
    handle = await backend.submit(host.command(["sh", "-c", f"sh -c '{saver.replace(chr(39), chr(34))}'; :"]))
    await first_output(backend, handle)
    await backend.stop(handle, 10.0)
    assert (await until_ended(backend, handle)).phase is Phase.STOPPED
    assert b"saved" in (await output(backend, handle))["stdout"]


async def test_c072_standard_input_is_empty(host: HostHarness) -> None:
    assert (await ran(host, ["cat"]))[0].phase is Phase.SUCCEEDED
    seen, text = await ran(host, ["python3", "-c", "input('Continue? ')"])
    assert seen.phase is Phase.FAILED
    assert b"EOFError" in text["stderr"]
    assert "EOFError" in (seen.tasks[0].error_stack or "")


ESCAPES = {
    "another session": "setsid sleep 600 &",
    "a daemon": "(setsid sh -c 'sleep 600 & exec sleep 600' &)",
    "a daemon without its environment": "(setsid env -i sleep 600 &)",
    "a daemon that hides": "(env -i setsid sh -c 'sleep 600' >/dev/null 2>&1 </dev/null &)",
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
@pytest.mark.parametrize("ending", ["stop", "normal"])
async def test_c089_what_escaped_the_group_ends_too(host: HostHarness, escape: str, ending: str) -> None:
    env, mark = marker()
    backend = await host.host()
    bystander = await backend.submit(host.command(["sleep", "600"], env=env))
    last = "sleep 600" if ending == "stop" else "exit 3"
    script = f"{escape}\necho up; sleep 0.1; {last}"
    handle = await backend.submit(host.command(["sh", "-c", script], env=env))
    await first_output(backend, handle)
    await asyncio.sleep(0.2)
    if ending == "stop":
        await backend.stop(handle, 5.0)
        assert (await until_ended(backend, handle)).phase is Phase.STOPPED
        assert len(sleepers(host)) == 1
    else:
        assert (await until_ended(backend, handle)).tasks[0].exit_code == 3
        await eventually(lambda: len(sleepers(host)) == 1)
    assert having(mark) == [bystander.data["pid"]]


@pytest.mark.alone
async def test_what_is_left_behind_does_not_delay_the_end(host: HostHarness) -> None:
    env, mark = marker()
    backend = await host.host()
    script = "(trap '' TERM; sleep 600; sleep 600) & sleep 0.1; exit 0"
    handle = await backend.submit(host.command(["sh", "-c", script], env=env, grace=1.0))
    began = time.monotonic()
    assert (await until_ended(backend, handle)).phase is Phase.SUCCEEDED
    assert time.monotonic() - began < 0.9
    assert having(mark) != []
    await eventually(lambda: having(mark) == [])
    assert time.monotonic() - began > 0.9


async def test_c101_no_zombies_and_no_growing_lists(host: HostHarness) -> None:
    backend = await host.host()
    pid = host.keeper_pid()
    before = len(os.listdir(f"/proc/{pid}/fd"))

    async def one() -> None:
        handle = await backend.submit(host.command(["sh", "-c", "(sleep 0.2 &) ; exit 0"]))
        await until_ended(backend, handle)
        await backend.remove(handle, wipe_storage=True)

    for _ in range(10):
        await asyncio.gather(*(one() for _ in range(10)))
    await eventually(lambda: zombies_of(pid) == 0)
    assert len(os.listdir(f"/proc/{pid}/fd")) == before
    assert zombies_of(os.getpid()) == 0
    link = await backend._keeper(backend._keeper_dir).connect()
    assert (await link.ask({"op": "hello"}, 5.0))["jobs"] == {}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-program-x"], "'no-such-program-x' was not found in"),
        (["/no/such/program"], "'/no/such/program' was not found"),
        (["./missing"], "'./missing' could not be started: No such file"),
        (["/etc"], "'/etc' is a directory"),
        (["/etc/passwd"], "'/etc/passwd' is not executable"),
        ([""], "first word of the command is empty"),
    ],
)
async def test_a_missing_program_is_named(host: HostHarness, command: list[str], words: str) -> None:
    backend = await host.host()
    plan = host.command(command)
    with pytest.raises(Rejected, match=words.replace("(", r"\(")) as caught:
        await backend.submit(plan)
    assert caught.value.reason == "program_not_found"
    assert not host.root.exists() or [path.name for path in host.root.iterdir()] == [".keepers"]


async def test_programs_that_cannot_run_are_rejected_with_the_reason(host: HostHarness) -> None:
    backend = await host.host()
    script = host.directory / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    with pytest.raises(Rejected, match="interpreter that its first line names"):
        await backend.submit(host.command([str(script)]))
    script.write_text("no first line\n")
    with pytest.raises(Rejected, match=r"[Ee]xec format error"):
        await backend.submit(host.command([str(script)]))
    with pytest.raises(Rejected, match="word 1 of the command contains a NUL"):
        await backend.submit(host.command(["echo", "a\0b"]))
    with pytest.raises(Rejected, match="larger than the system allows"):
        await backend.submit(host.command(["true"], env={"BIG": "x" * 3_000_000}))
    with pytest.raises(Rejected, match="half a surrogate"):
        await backend.submit(host.command(["true"], env={"ODD": "\ud800"}))
    with pytest.raises(Rejected, match="can't be the name of an environment variable"):
        await backend.submit(host.command(["true"], env={"A=B": "x"}))
    handle = await backend.submit(host.command(["true"]))
    assert (await until_ended(backend, handle)).phase is Phase.SUCCEEDED


async def test_programs_come_from_the_virtual_environment_first(
    host: HostHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, name in (("venv/bin", "python"), ("venv/bin", "tool"), ("path", "tool"), ("path", "other")):
        program = host.directory / place / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {place} {name}\n")
        program.chmod(0o700)
    monkeypatch.setenv("VIRTUAL_ENV", str(host.directory / "venv"))
    env = {"PATH": f"{host.directory}/path:/bin:/usr/bin"}
    expectations = (("python", "venv/bin python"), ("tool", "venv/bin tool"), ("other", "path other"))
    for command, expected in expectations:
        assert (await ran(host, [command], env=env))[1]["stdout"].decode() == expected + "\n"


async def test_the_directories_are_as_promised(host: HostHarness) -> None:
    backend = await host.host()
    script = (
        "cat $NEMO_JOB_STEP_CONFIG_FILE_PATH; echo kept > $NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/note; "
        "echo gone > $NEMO_JOB_EPHEMERAL_TASK_STORAGE_PATH/note; ls"
    )
    plan = host.command(["sh", "-c", script], config={"text": "é", "n": 1})
    handle = await backend.submit(plan)
    seen = await until_ended(backend, handle)
    printed = (await output(backend, handle))["stdout"].decode()
    assert printed == '{"text": "é", "n": 1}config\nresults\nscratch\n'
    attempt = host.root / "default" / plan.job / plan.attempt_id
    task = attempt / "step" / plan.task
    assert (attempt / "job-storage" / "note").read_text() == "kept\n"
    assert (task / "scratch" / "note").read_text() == "gone\n"
    details = seen.tasks[0].details
    assert details["subprocess_work_dir"] == str(task)
    assert details["subprocess_persistent_storage_path"] == str(attempt / "job-storage")
    assert details["pid"] == details["pgid"] == handle.data["pid"]
    assert details["exit_code"] == 0
    for path in (host.root, *host.root.rglob("*")):
        assert path.is_symlink() or path.stat().st_mode & 0o077 == 0, path
    await backend.remove(handle)
    assert not task.exists()
    assert (attempt / "job-storage" / "note").exists()
    await backend.remove(handle, wipe_storage=True)
    assert [path.name for path in host.root.iterdir()] == [".keepers"]


async def test_steps_of_an_attempt_share_their_storage(host: HostHarness) -> None:
    backend = await host.host()
    write = "echo from one > $NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/note"
    first = host.command(["sh", "-c", write], step="one")
    handle = await backend.submit(first)
    await until_ended(backend, handle)
    await backend.remove(handle)
    second = host.command(
        ["sh", "-c", "cat $NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/note"],
        step="two", job=first.job, attempt_id=first.attempt_id,
    )  # fmt: skip
    handle = await backend.submit(second)
    await until_ended(backend, handle)
    assert (await output(backend, handle))["stdout"] == b"from one\n"


async def test_a_working_directory_that_others_can_enter_is_refused(host: HostHarness) -> None:
    backend = await host.host()
    host.root.mkdir(mode=0o755)
    host.root.chmod(0o755)
    with pytest.raises(Rejected, match=r"has mode 0755 and must have 0700"):
        await backend.submit(host.command(["true"]))
    host.root.chmod(0o700)
    handle = await backend.submit(host.command(["true"]))
    assert (await until_ended(backend, handle)).phase is Phase.SUCCEEDED


async def test_a_name_that_leads_out_of_the_working_directory_is_refused(host: HostHarness) -> None:
    backend = await host.host()
    for bad in ("..", ".", "a/b", "", "/etc", ".keepers"):
        with pytest.raises(Rejected, match="name of a directory"):
            await backend.submit(host.command(["true"], job=bad))


async def test_remove_follows_no_link_and_takes_what_is_hard_to_delete(host: HostHarness) -> None:
    treasure = host.directory / "treasure"
    treasure.mkdir()
    (treasure / "gold").write_text("mine")
    script = (
        f"ln -s {treasure} link; ln -s {treasure} scratch/link; mkdir -p locked/inner; touch locked/inner/f; "
        "chmod 000 locked/inner locked; d=$(printf '%0200d' 0); "
        "for i in $(seq 40); do mkdir $d; cd $d; done; touch f"
    )
    backend = await host.host()
    plan = host.command(["bash", "-c", script])
    handle = await backend.submit(plan)
    assert (await until_ended(backend, handle)).phase is Phase.SUCCEEDED
    await backend.remove(handle, wipe_storage=True)
    assert (treasure / "gold").read_text() == "mine"
    assert not (host.root / "default").exists()


async def test_a_process_of_another_host_is_neither_lost_nor_touched(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["sleep", "600"]))
    stranger = await host.host(host.directory / "other", host_id="another")
    seen = (await stranger.observe([handle]))[handle.key]
    assert (seen.phase, seen.reason) == (Phase.WAITING, "host_unreachable")
    await stranger.stop(handle, 0.1)
    with pytest.raises(Unavailable):
        await stranger.remove(handle)
    assert (await backend.observe([handle]))[handle.key].phase is Phase.RUNNING


async def test_another_boot_of_this_host_means_lost(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["true"]))
    await until_ended(backend, handle)
    old = Handle(handle.backend, "nj-unknown-0", 1, {**handle.data, "boot": "an earlier one"})
    seen = (await backend.observe([old]))[old.key]
    assert (seen.phase, seen.reason) == (Phase.LOST, "host_restarted")


def sleepers(host: HostHarness) -> list[int]:
    """The `sleep 600` processes below the keeper, whatever their environment says."""
    keeper, found = host.keeper_pid(), []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if Path(f"/proc/{int(name)}/cmdline").read_bytes() != b"sleep\x00600\x00":
                continue
            pid = int(name)
            while pid > 1 and pid != keeper:
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if pid == keeper:
                found.append(int(name))
    return found


async def eventually(true: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_a_childs_start_time_from_the_clock_is_the_one_in_proc() -> None:
    started = StartTimes()
    for _ in range(50):
        started.before()
        pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
        try:
            found = process(pid)
            assert found is not None and started.of(pid) == found.start
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_clock_that_disagrees_with_proc_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    started = StartTimes()
    monkeypatch.setattr(StartTimes, "_now", lambda self: 7)
    for _ in range(3):
        started.before()
        pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
        try:
            found = process(pid)
            assert found is not None and started.of(pid) == found.start != 7
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

"""The keeper: it outlives the service, and what it started outlives the keeper."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.backends import keeper, keeper_files, keeper_journal
from nemo_jobs.backends.api import ENDED, Handle, Observation, Phase, Plan, Unavailable
from nemo_jobs.backends.keeper_process import boot_id, process
from nemo_jobs.backends.subprocess import SubprocessBackend
from tests.backends.host import HostHarness, having, output, until_ended
from tests.backends.test_processes import ESCAPES, eventually, first_output, marker


async def look(backend: SubprocessBackend, handle: Handle) -> Observation:
    return (await backend.observe([handle]))[handle.key]


async def test_it_outlives_the_service_and_is_found_again(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["sh", "-c", "sleep 0.3; echo done; exit 4"]))
    pid = host.keeper_pid()
    await backend.aclose()
    other = await host.host()
    assert host.keeper_pid() == pid
    assert (await until_ended(other, handle)).tasks[0].exit_code == 4
    assert (await output(other, handle))["stdout"] == b"done\n"


async def test_c026_an_end_while_the_service_was_away_is_told_right(host: HostHarness) -> None:
    backend = await host.host()
    codes = {}
    for code in (0, 3):
        codes[code] = await backend.submit(host.command(["sh", "-c", f"sleep 0.1; echo late; exit {code}"]))
    running = await backend.submit(host.command(["sh", "-c", "trap 'exit 0' TERM; echo up; sleep 600"]))
    await backend.aclose()
    await asyncio.sleep(0.3)
    other = await host.host()
    for code, handle in codes.items():
        seen = await look(other, handle)
        assert (seen.tasks[0].exit_code, seen.phase in ENDED) == (code, True)
        assert (await output(other, handle))["stdout"] == b"late\n"
    assert (await look(other, running)).phase is Phase.RUNNING
    await other.stop(running, 5.0)
    assert (await until_ended(other, running)).phase is Phase.STOPPED


def run_keeper(directory: Path, idle: float) -> int:
    """The keeper program with an idle time of its own; its exit code."""
    command = [sys.executable, "-I", "-S", "-X", "utf8", keeper.__file__, str(directory), str(idle)]
    return subprocess.run(command, check=False, timeout=20).returncode


def waiting_for(host: HostHarness, name: str) -> str:
    """Shell words that end once there is such a file: however slow the machine is, not before."""
    return f"until [ -e {host.directory}/{name} ]; do sleep 0.05; done"


async def test_it_ends_by_itself_when_nothing_is_left_to_keep(host: HostHarness) -> None:
    assert run_keeper(host.data_dir / "keeper", 0.1) == 0
    backend = await host.host()
    handle = await backend.submit(host.command(["sh", "-c", waiting_for(host, "go")]))
    await backend.aclose()
    await asyncio.sleep(0.25)
    assert host.keeper_pid() != 0  # its job runs
    (host.directory / "go").touch()
    await eventually(lambda: host.keeper_pid() == 0)
    assert not (host.data_dir / "keeper" / "socket").exists()
    other = await host.host()
    assert (await look(other, handle)).phase is Phase.SUCCEEDED


async def test_only_one_serves_a_directory(host: HostHarness) -> None:
    await host.host()
    pid = host.keeper_pid()
    assert run_keeper(host.data_dir / "keeper", 1.0) == keeper.LOCKED
    assert host.keeper_pid() == pid


async def test_a_directory_with_a_very_long_name(host: HostHarness) -> None:
    data_dir = host.directory / ("d" * 120) / ("e" * 120) / "data"
    backend = await host.host(data_dir)
    handle = await backend.submit(host.command(["echo", "far away"]))
    assert (await until_ended(backend, handle)).phase is Phase.SUCCEEDED
    assert (await output(backend, handle))["stdout"] == b"far away\n"


async def test_nonsense_from_one_client_hurts_nobody(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["sleep", "0.3"]))
    requests = (b"nonsense\n", b"[]\n", b'{"op": "no"}\n', b'{"op": "start"}\n', b'{"op": "ack"}\n', b"\xff")
    for text in requests:
        with socket.socket(socket.AF_UNIX) as sock:
            place = os.open(host.data_dir / "keeper", os.O_PATH)
            sock.connect(f"/proc/self/fd/{place}/socket")
            os.close(place)
            sock.sendall(text)
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(5)
            while sock.recv(1000):
                pass
    assert (await until_ended(backend, handle)).phase is Phase.SUCCEEDED


async def test_sigterm_lets_it_finish_what_runs(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["sh", "-c", "sleep 0.3; exit 6"]))
    os.kill(host.keeper_pid(), signal.SIGTERM)
    assert (await until_ended(backend, handle)).tasks[0].exit_code == 6


async def test_it_is_found_again_although_somebody_deleted_its_socket(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["sh", "-c", "echo up; sleep 4; exit 4"]))
    await first_output(backend, handle)
    pid = host.keeper_pid()
    (host.data_dir / "keeper" / keeper.SOCKET).unlink()
    await backend.aclose()
    other = await host.host()
    assert host.keeper_pid() == pid
    assert (await until_ended(other, handle)).tasks[0].exit_code == 4


# -- the keeper is killed ------------------------------------------------------------------------


async def test_after_its_kill_what_runs_is_adopted_and_its_end_told_as_lost(host: HostHarness) -> None:
    backend = await host.host()
    script = f"echo up; {waiting_for(host, 'go')}; echo more"
    handle = await backend.submit(host.command(["sh", "-c", script]))
    await first_output(backend, handle)
    host.kill_keeper()
    await eventually(lambda: host.keeper_pid() != 0)
    assert (await look(backend, handle)).phase is Phase.RUNNING
    (host.directory / "go").touch()
    seen = await until_ended(backend, handle)
    assert (seen.phase, seen.reason, seen.tasks[0].exit_code) == (Phase.LOST, "lost", None)
    assert "keeper that was killed" in seen.message
    assert (await output(backend, handle))["stdout"] == b"up\nmore\n"


async def test_an_end_before_its_kill_keeps_its_code(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["sh", "-c", "exit 5"]))
    await until_ended(backend, handle)
    await backend.aclose()
    host.kill_keeper()
    other = await host.host()
    assert (await look(other, handle)).tasks[0].exit_code == 5


async def test_an_end_while_no_keeper_lives_is_lost(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["sh", "-c", "echo up; sleep 0.2; exit 5"]))
    await first_output(backend, handle)
    await backend.aclose()
    host.kill_keeper()
    await eventually(lambda: process(handle.data["pid"]) is None)
    other = await host.host()
    seen = await look(other, handle)
    assert (seen.phase, seen.reason) == (Phase.LOST, "lost")
    assert (await output(other, handle))["stdout"] == b"up\n"


@pytest.mark.parametrize("escape", ["", *ESCAPES.values()], ids=["nothing escaped", *ESCAPES.keys()])
async def test_stop_of_an_adopted_one_ends_its_whole_tree(host: HostHarness, escape: str) -> None:
    env, mark = marker()
    nap = f"600.{random.randrange(10**9):09d}"  # tells these processes from those of any other run
    backend = await host.host()
    bystander = await backend.submit(host.command(["sleep", nap], env=env))
    script = f"{escape}\nsleep 600 & echo up; sleep 0.1; wait; sleep 600".replace("sleep 600", f"sleep {nap}")
    handle = await backend.submit(host.command(["sh", "-c", script], env=env))
    await first_output(backend, handle)
    await asyncio.sleep(0.2)
    before = sleeping(nap)
    assert len(before) >= 2
    host.kill_keeper()
    await eventually(lambda: host.keeper_pid() != 0)
    await backend.stop(handle, 5.0)
    assert (await until_ended(backend, handle)).phase is Phase.STOPPED
    assert having(mark) == [bystander.data["pid"]]
    assert sleeping(nap) == {bystander.data["pid"]}


def sleeping(nap: str) -> set[int]:
    """The processes that sleep this long."""
    found = set()
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if Path(f"/proc/{int(name)}/cmdline").read_bytes() == b"sleep\0%s\0" % nap.encode():
                found.add(int(name))
    return found


async def test_rests_of_an_ended_job_are_ended_by_the_next_keeper(host: HostHarness) -> None:
    env, mark = marker()
    backend = await host.host()
    script = "(trap '' TERM; while :; do sleep 0.1; done) & sleep 0.1; exit 0"
    handle = await backend.submit(host.command(["sh", "-c", script], env=env, grace=0.8))
    assert (await until_ended(backend, handle)).phase is Phase.SUCCEEDED
    host.kill_keeper()
    assert having(mark) != []
    await eventually(lambda: having(mark) == [])
    assert (await look(backend, handle)).phase is Phase.SUCCEEDED


def write_journal(host: HostHarness, plan: Plan, *facts: tuple[bytes, dict[str, Any]], **changes: Any) -> str:
    """A journal as a killed keeper left it; the path of the task's output files."""
    directory = str(host.data_dir / "keeper")
    os.makedirs(directory, mode=0o700)
    keeper_files.check_root(str(host.root))
    task_dir = str(host.root / "default" / plan.job / plan.attempt_id / "step" / plan.task)
    first = {"task": plan.task, "root": str(host.root), "dir": task_dir, "grace": 0.2}
    first |= {"boot": boot_id(), "state": "starting", **changes}
    journal = keeper_journal.Journal(directory)
    journal.append(keeper_journal.STARTING, plan.key, first)
    for kind, more in facts:
        journal.append(kind, plan.key, more)
    journal.close()
    return keeper_files.out_of(directory, plan.task)


def make_directories(host: HostHarness, plan: Plan) -> None:
    task_dir = str(host.root / "default" / plan.job / plan.attempt_id / "step" / plan.task)
    identity = keeper_files.identity_of(str(host.data_dir / "keeper"))
    keeper_files.make_task(str(host.root), task_dir, "{}", identity)


async def test_a_start_that_never_reached_its_program_may_be_made_again(host: HostHarness) -> None:
    plan = host.command(["echo", "once"])
    write_journal(host, plan)
    make_directories(host, plan)
    backend = await host.host()
    assert [handle async for handle in backend.handles()] == []
    handle = await backend.submit(plan)
    assert (await until_ended(backend, handle)).phase is Phase.SUCCEEDED
    assert (await output(backend, handle))["stdout"] == b"once\n"


async def test_c029_a_start_that_may_have_run_is_lost_and_never_made_again(host: HostHarness) -> None:
    plan = host.command(["echo", "twice"])
    out = write_journal(host, plan)
    os.makedirs(os.path.dirname(out))
    Path(out + ".out").write_bytes(b"once\n")
    make_directories(host, plan)
    backend = await host.host()
    handle = await backend.submit(plan)
    assert (await look(backend, handle)).phase is Phase.LOST
    assert (await output(backend, handle))["stdout"] == b"once\n"


async def test_a_start_without_its_record_is_found_by_its_marker(host: HostHarness) -> None:
    plan = host.command(["true"])
    write_journal(host, plan)
    orphan = subprocess.Popen(["sleep", "0.6"], env={"NEMO_JOB_TASK": plan.task}, start_new_session=True)
    backend = await host.host()
    handle = await backend.submit(plan)
    assert handle.data["pid"] == orphan.pid
    assert (await look(backend, handle)).phase is Phase.RUNNING
    await asyncio.to_thread(orphan.wait)
    assert (await until_ended(backend, handle)).phase is Phase.LOST


async def test_a_pid_that_was_given_to_another_process_is_left_alone(host: HostHarness) -> None:
    innocent = subprocess.Popen(["sleep", "600"], start_new_session=True)
    now = process(innocent.pid)
    assert now is not None
    plan = host.command(["true"])
    facts = {"state": "running", "pid": innocent.pid, "start": now.start - 100, "began": 1}
    write_journal(host, plan, (keeper_journal.RUNNING, facts))
    backend = await host.host()
    handle = await backend.submit(plan)
    seen = await look(backend, handle)
    assert (seen.phase, seen.reason) == (Phase.LOST, "lost")
    await backend.stop(handle, 0.0)
    await backend.remove(handle)
    assert innocent.poll() is None
    innocent.kill()
    innocent.wait()


async def test_a_journal_of_an_earlier_boot_means_that_the_host_restarted(host: HostHarness) -> None:
    now = process(os.getpid())
    assert now is not None
    plan = host.command(["true"])
    facts = {"state": "running", "pid": now.pid, "start": now.start, "began": 1}
    write_journal(host, plan, (keeper_journal.RUNNING, facts), boot="an earlier boot")
    backend = await host.host()
    [handle] = [handle async for handle in backend.handles()]
    seen = await look(backend, handle)
    assert (seen.phase, seen.reason) == (Phase.LOST, "host_restarted")


async def test_c029_two_services_on_one_host_start_a_key_once(host: HostHarness) -> None:
    one, two = await host.host(), await host.host(host.directory / "other")
    plan = host.command(["sh", "-c", f"echo x >> {host.directory}/starts; sleep 0.3; exit 3"])
    handles = await asyncio.gather(*(backend.submit(plan) for backend in (one, two, one, two)))
    assert len({handle.data["keeper_dir"] for handle in handles}) == 1
    assert handles[0] == handles[1] == handles[2] == handles[3]
    for backend in (one, two):
        assert (await until_ended(backend, handles[0])).tasks[0].exit_code == 3
    assert (host.directory / "starts").read_text() == "x\n"
    await two.remove(handles[0], wipe_storage=True)


async def test_c029_another_service_takes_over_a_start_of_a_killed_one(host: HostHarness) -> None:
    one = await host.host()
    plan = host.command(["sh", "-c", f"echo x >> {host.directory}/starts; echo up; sleep 600"])
    first = await one.submit(plan)
    await first_output(one, first)
    await one.aclose()
    host.kill_keeper()
    two = await host.host(host.directory / "other")
    assert await two.submit(plan) == first
    assert (await look(two, first)).phase is Phase.RUNNING
    await two.stop(first, 5.0)
    assert (await until_ended(two, first)).phase is Phase.STOPPED
    assert (host.directory / "starts").read_text() == "x\n"


@pytest.mark.time_limit(120)
async def test_many_kills_at_random_moments(host: HostHarness) -> None:
    """No key starts twice, none is stuck, no output is lost, no end is wrong."""
    backend = await host.host()
    env, mark = marker()
    chance = random.Random(int(time.time()))
    killing = True

    async def one(number: int) -> tuple[Handle, Observation]:
        script = (
            f"echo {number} >> {host.directory}/started; echo one; sleep 0.0{number % 5}; echo two; exit 3"
        )
        plan = host.command(["sh", "-c", script], env=env)
        await asyncio.sleep(chance.uniform(0, 3))
        while True:
            with contextlib.suppress(Unavailable):
                handle = await backend.submit(plan)
                break
            await asyncio.sleep(0.01)
        while True:
            with contextlib.suppress(Unavailable):
                seen = await look(backend, handle)
                if seen.phase in ENDED:
                    return handle, seen
            await asyncio.sleep(0.02)

    async def kill() -> int:
        kills = 0
        while killing:
            await asyncio.sleep(chance.uniform(0.0, 0.15))
            if pid := host.keeper_pid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        return kills

    killer = asyncio.ensure_future(kill())
    async with asyncio.timeout(90):
        ends = await asyncio.gather(*(one(number) for number in range(200)))
    killing = False
    kills = await killer
    assert kills >= 10
    started = (host.directory / "started").read_text().split()
    assert len(started) == len(set(started))
    lost = 0
    for handle, seen in ends:
        text = (await output(backend, handle))["stdout"]
        lost += seen.phase is Phase.LOST
        if seen.phase is Phase.FAILED:
            assert (seen.tasks[0].exit_code, text) == (3, b"one\ntwo\n")
        else:
            assert seen.phase is Phase.LOST, seen
            assert text in (b"one\ntwo\n", b"one\n", b"")
    assert len(started) >= 200 - lost
    await eventually(lambda: having(mark) == [])


# -- the journal ---------------------------------------------------------------------------------


def test_the_journal_adds_up_facts_and_survives_a_torn_line(tmp_path: Path) -> None:
    journal = keeper_journal.Journal(str(tmp_path))
    journal.append(keeper_journal.STARTING, "nj-a-0", {"a": 1, "state": "starting"})
    journal.append(keeper_journal.RUNNING, "nj-a-0", {"pid": 5, "state": "running"})
    journal.append(keeper_journal.STARTING, "nj-b-0", {"state": "starting"})
    journal.append(keeper_journal.VOID, "nj-b-0", {})
    journal.close()
    with open(journal.path, "ab") as file:
        file.write(b'E nj-a-0 {"code": 1')
    journal = keeper_journal.Journal(str(tmp_path))
    assert keeper_journal.unfinished(journal.path) == {"nj-a-0": {"a": 1, "pid": 5, "state": "running"}}
    journal.append(keeper_journal.ENDED, "nj-a-0", {"code": 3, "state": "exited"})
    assert journal.recall("nj-a-0") == {"a": 1, "pid": 5, "state": "exited", "code": 3}
    assert journal.recall("nj-b-0") is None
    assert keeper_journal.unfinished(journal.path) == {}


def test_the_journal_drops_what_is_forgotten(tmp_path: Path) -> None:
    journal = keeper_journal.Journal(str(tmp_path))
    for number in range(4000):
        key = f"nj-{number}-0"
        journal.append(keeper_journal.STARTING, key, {"padding": "x" * 300})
        journal.append(keeper_journal.ENDED, key, {"code": number})
        if number % 4:
            journal.append(keeper_journal.FORGOTTEN, key, {})
    journal.append(keeper_journal.VOID, "nj-0-0", {})
    journal.append(keeper_journal.STARTING, "nj-0-0", {"again": 1})
    before = keeper_journal.fold(journal.path)
    assert journal.worth_compacting()
    journal.compact()
    assert not journal.worth_compacting()
    assert os.path.getsize(journal.path) < 500_000
    journal.append(keeper_journal.STARTING, "nj-new-0", {"n": 1})
    after = keeper_journal.fold(journal.path)
    assert after.pop("nj-new-0") == {"n": 1}
    assert after == before
    assert len(after) == 1000


def test_the_journal_takes_a_half_line_back_when_the_disk_is_full(tmp_path: Path) -> None:
    script = (
        "import resource, sys, signal; from nemo_jobs.backends import keeper_journal as j\n"
        "journal = j.Journal(sys.argv[1]); journal.append(j.STARTING, 'nj-a-0', {'a': 1})\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (60, 60))\n"
        "try: journal.append(j.STARTING, 'nj-b-0', {'b': 'x' * 100})\n"
        "except OSError: print('refused')\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.check_output(command, text=True) == "refused\n"
    assert (tmp_path / "journal").read_bytes() == b'S nj-a-0 {"a":1}\n'

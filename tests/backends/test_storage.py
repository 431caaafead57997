"""The storage of host jobs moves from attempt to attempt whole, and goes wherever it went."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_jobs.backends import subprocess_storage
from nemo_jobs.backends.api import Earlier, Handle, Plan, Rejected, Unavailable
from tests.backends.host import HostHarness, until_ended


def place(host: HostHarness, plan: Plan, job: str = "moth") -> Path:
    return host.root / "default" / job / plan.attempt_id / "job-storage"


async def first(host: HostHarness, text: str = "1") -> tuple[Plan, Handle]:
    """An attempt that wrote into its storage."""
    backend = await host.host()
    plan = host.command(["sh", "-c", f'echo {text} > "$NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/x"'], job="moth")
    handle = await backend.submit(plan)
    await until_ended(backend, handle)
    return plan, handle


def after(host: HostHarness, old: tuple[Plan, Handle | None], *command: str, needed: bool = True) -> Plan:
    plan, handle = old
    made = host.command(list(command) or ["true"], job="moth")
    return replace(made, earlier=(Earlier(plan.attempt_id, handle),), needs_storage=needed)


async def test_what_was_stored_is_there_for_the_next_attempt(host: HostHarness) -> None:
    old = await first(host)
    backend = await host.host()
    plan = after(host, old, "sh", "-c", 'grep 1 "$NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/x"')
    handle = await backend.submit(plan)
    assert (await until_ended(backend, handle)).tasks[0].exit_code == 0
    assert not place(host, old[0]).exists()
    await backend.remove(old[1])  # what is left of the old attempt goes, the storage does not
    assert place(host, plan).joinpath("x").read_text() == "1\n"


async def test_the_work_before_must_have_ended(host: HostHarness) -> None:
    backend = await host.host()
    plan = host.command(["sleep", "600"], job="moth")
    handle = await backend.submit(plan)
    later = after(host, (plan, handle))
    with pytest.raises(Unavailable, match="still ending"):
        await backend.submit(later)
    assert place(host, plan).exists() and not place(host, later).exists()
    await backend.stop(handle, 5)
    await until_ended(backend, handle)
    await until_ended(backend, await backend.submit(later))
    assert place(host, later).exists()


async def test_storage_that_moved_to_a_start_that_failed_is_wiped_with_the_first(host: HostHarness) -> None:
    old = await first(host)
    backend = await host.host()
    script = host.directory / "broken"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    failed = after(host, old, str(script))
    with pytest.raises(Rejected):
        await backend.submit(failed)
    assert place(host, failed).joinpath("x").exists()  # nobody has a handle for it
    await backend.remove(old[1], wipe_storage=True)
    assert not place(host, failed).exists()
    assert not (host.root / "default").exists()


async def test_it_is_found_behind_starts_that_failed(host: HostHarness) -> None:
    old = await first(host)
    backend = await host.host()
    never = host.command(["true"], job="moth")
    plan = after(host, old, "sh", "-c", 'cat "$NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/x"')
    plan = replace(plan, earlier=(Earlier(never.attempt_id), *plan.earlier))
    handle = await backend.submit(plan)
    assert (await until_ended(backend, handle)).tasks[0].exit_code == 0


async def test_it_is_found_by_the_notes_of_who_got_it(host: HostHarness) -> None:
    """Also when nothing is known of the attempt whose start failed."""
    old = await first(host)
    backend = await host.host()
    script = host.directory / "broken"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    for _ in range(2):
        with pytest.raises(Rejected, match="interpreter"):
            await backend.submit(after(host, old, str(script)))
    handle = await backend.submit(
        after(host, old, "sh", "-c", 'cat "$NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/x"')
    )
    assert (await until_ended(backend, handle)).tasks[0].exit_code == 0


async def test_another_profile_shares_it_where_the_directory_is_the_same(host: HostHarness) -> None:
    old = await first(host)
    backend = await host.host()
    earlier = (Earlier(old[0].attempt_id, old[1], own=False),)
    root = host.root
    host.root = host.directory / "elsewhere"
    apart = replace(after(host, old), earlier=earlier)
    await until_ended(backend, await backend.submit(apart))
    assert list(place(host, apart).iterdir()) == []
    host.root = root
    shared = replace(after(host, old), earlier=earlier)
    await until_ended(backend, await backend.submit(shared))
    assert place(host, shared).joinpath("x").exists()


async def test_without_storage_a_job_starts_anew_unless_it_needs_it(host: HostHarness) -> None:
    old = await first(host)
    backend = await host.host()
    await backend.remove(old[1], wipe_storage=True)
    with pytest.raises(Rejected, match="run the job again from its first step"):
        await backend.submit(after(host, old))
    await until_ended(backend, await backend.submit(after(host, old, needed=False)))


async def test_a_working_directory_that_was_changed_still_gets_it(host: HostHarness) -> None:
    old = await first(host)
    backend = await host.host()
    host.root = host.directory / "elsewhere"
    plan = after(host, old, "sh", "-c", 'cat "$NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/x"')
    assert (await until_ended(backend, await backend.submit(plan))).tasks[0].exit_code == 0


def make(folder: Path) -> Path:
    (folder / "job-storage").mkdir(parents=True)
    (folder / "job-storage" / "x").write_text("1")
    return folder


def test_a_crash_at_any_point_of_the_move_is_gone_over_again(tmp_path: Path) -> None:
    old, new = make(tmp_path / "ws" / "job" / "old"), tmp_path / "ws" / "job" / "new"
    (old / subprocess_storage.NOTE_NAME).write_text("new")  # the note was written, the move was not done
    for _ in range(2):
        subprocess_storage.take_over(str(new), str(tmp_path), [str(old)], needed=True)
        assert (new / "job-storage" / "x").read_text() == "1" and not (old / "job-storage").exists()
    subprocess_storage.wipe(str(old), str(tmp_path), float("inf"))
    assert not (new / "job-storage").exists() and not old.joinpath(subprocess_storage.NOTE_NAME).exists()


@pytest.mark.parametrize("note", ["../../precious", "/precious", "..", "", "x" * 300, "old", "a\0b"])
def test_a_note_leads_nowhere_but_to_a_sibling(tmp_path: Path, note: str) -> None:
    old = make(tmp_path / "ws" / "job" / "old")
    precious = make(tmp_path / "precious")
    (old / subprocess_storage.NOTE_NAME).write_text(note)
    subprocess_storage.wipe(str(old), str(tmp_path), float("inf"))
    assert (precious / "job-storage" / "x").exists() and not (old / "job-storage").exists()


def test_links_are_neither_taken_over_nor_followed(tmp_path: Path) -> None:
    precious = make(tmp_path / "precious")
    old, new = tmp_path / "ws" / "job" / "old", tmp_path / "ws" / "job" / "new"
    old.mkdir(parents=True)
    os.symlink(precious / "job-storage", old / "job-storage")
    os.symlink(precious / "job-storage" / "x", old / subprocess_storage.NOTE_NAME)
    subprocess_storage.take_over(str(new), str(tmp_path), [str(old)], needed=False)
    assert not (new / "job-storage").exists()
    subprocess_storage.wipe(str(old), str(tmp_path), float("inf"))
    assert (precious / "job-storage" / "x").read_text() == "1"

"""The token of a host task: in a file that only its user reads, for as long as the work is kept."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_jobs.backends.api import Rejected
from nemo_jobs.backends.subprocess_identity import VARIABLE, erase_token, token_file, write_token
from tests.backends.host import HostHarness, output, until_ended

TOKEN = "nemo_task_0123"


def files(host: HostHarness) -> list[str]:
    folder = host.data_dir / "keeper" / "tokens"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def test_a_task_reads_its_token_from_a_file_of_its_own(host: HostHarness) -> None:
    backend = await host.host()
    plan = replace(host.command(["sh", "-c", f'cat "${VARIABLE}"; env']), token=TOKEN)
    assert TOKEN not in str(backend.render(plan))
    handle = await backend.submit(plan)
    await until_ended(backend, handle)
    printed = (await output(backend, handle))["stdout"]
    assert printed.decode().startswith(TOKEN)
    assert printed.decode().count(TOKEN) == 1  # and not in the environment
    assert files(host) == [plan.key]
    assert stat.S_IMODE(os.stat(token_file(str(host.data_dir / "keeper"), plan.key)).st_mode) == 0o600
    journal = (host.data_dir / "keeper" / "journal").read_bytes()
    assert TOKEN.encode() not in journal
    await backend.remove(handle)
    assert files(host) == []


async def test_without_a_token_there_is_no_file_and_no_variable(host: HostHarness) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["env"]))
    await until_ended(backend, handle)
    printed = (await output(backend, handle))["stdout"]
    assert VARIABLE.encode() not in printed
    assert files(host) == []


async def test_what_is_refused_leaves_no_token(host: HostHarness) -> None:
    backend = await host.host()
    plan = replace(host.command(["./not-there"]), token=TOKEN)
    with pytest.raises(Rejected):
        await backend.submit(plan)
    assert files(host) == []


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    keeper, victim = str(tmp_path / "keeper"), tmp_path / "victim"
    victim.write_text("mine")
    path = Path(write_token(keeper, "nj-1", "one"))
    assert path.read_text() == "one"
    path.unlink()
    path.symlink_to(victim)
    Path(f"{path}.part").symlink_to(victim)
    write_token(keeper, "nj-1", "two")
    assert (path.is_symlink(), path.read_text(), victim.read_text()) == (False, "two", "mine")
    erase_token(keeper, "nj-1")
    erase_token(keeper, "nj-1")
    assert not path.exists()

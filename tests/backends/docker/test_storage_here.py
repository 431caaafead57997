"""The storage of jobs inside a volume whose disk is this host's."""

from pathlib import Path

import pytest

from nemo_jobs.backends.docker.storage import Found, Place
from nemo_jobs.backends.docker.storage_here import FolderHere

PLACE = Place("volume", "space", "a-job")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return tmp_path


async def test_it_is_made_given_on_and_deleted(top: Path) -> None:
    disk = FolderHere(str(top))
    assert await disk.look(PLACE) == Found()
    await disk.claim(PLACE, "one")
    folder = top / "jobs" / "space" / "a-job"
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("x")
    assert await disk.look(PLACE) == Found(True, "one")
    await disk.claim(PLACE, "two")
    assert await disk.look(PLACE) == Found(True, "two")
    assert (folder / "deep" / "file").exists()
    await disk.wipe(PLACE)
    await disk.wipe(PLACE)
    assert await disk.look(PLACE) == Found()
    assert list((top / "jobs" / "space").iterdir()) == []


async def test_what_somebody_else_made_there_is_kept(top: Path) -> None:
    (top / "jobs" / "space" / "a-job").mkdir(parents=True)
    (top / "jobs" / "space" / "a-job" / "file").write_text("theirs")
    assert await FolderHere(str(top)).look(PLACE) == Found(True, None)
    await FolderHere(str(top)).claim(PLACE, "one")
    assert (top / "jobs" / "space" / "a-job" / "file").read_text() == "theirs"


async def test_jobs_whose_names_begin_alike_do_not_touch_each_other(top: Path) -> None:
    disk, other = FolderHere(str(top)), Place("volume", "space", "a-job.b")
    await disk.claim(PLACE, "one")
    await disk.claim(other, "other")
    await disk.wipe(PLACE)
    assert await disk.look(other) == Found(True, "other")


async def test_what_a_crash_left_of_a_deletion_goes_too(top: Path) -> None:
    disk = FolderHere(str(top))
    await disk.claim(PLACE, "one")
    half = top / "jobs" / "space" / ".a-job.1234abcd.gone"
    half.mkdir()
    (half / "file").write_text("x")
    await disk.wipe(PLACE)
    assert not half.exists()


@pytest.mark.parametrize("level", ["jobs", "jobs/space"])
async def test_no_link_on_the_way_is_followed(top: Path, tmp_path: Path, level: str) -> None:
    outside = tmp_path / "outside" / "space"
    (outside / "a-job").mkdir(parents=True)
    way = top / level
    way.parent.mkdir(exist_ok=True)
    way.symlink_to(outside if level.endswith("space") else outside.parent)
    disk = FolderHere(str(top))
    for act in (disk.look(PLACE), disk.claim(PLACE, "one"), disk.wipe(PLACE)):
        with pytest.raises(OSError, match="directory"):
            await act
    assert (outside / "a-job").is_dir()

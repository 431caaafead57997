"""What an engine's tar may hold, and where nothing of it may lead."""

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nemo_jobs.backends.docker import unpack as module
from nemo_jobs.backends.docker.errors import EngineAway
from nemo_jobs.backends.docker.unpack import unpack


class Tar:
    """A tar as the engine sends one of the folder `.results`."""

    def __init__(self) -> None:
        self._entries: list[tuple[tarfile.TarInfo, bytes]] = []
        self.add(".results", kind=tarfile.DIRTYPE)

    def add(self, name: str, text: str = "", kind: bytes = tarfile.REGTYPE, link: str = "") -> "Tar":
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.mode = kind, link, 0o777
        data = text.encode()
        entry.size = len(data) if kind == tarfile.REGTYPE else 0
        self._entries.append((entry, data))
        return self

    def whole(self) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for entry, data in self._entries:
                tar.addfile(entry, io.BytesIO(data))
        return buffer.getvalue()

    async def pieces(self, size: int = 1000) -> AsyncIterator[bytes]:
        data = self.whole()
        for at in range(0, len(data), size):
            yield data[at : at + size]


def found(target: Path) -> dict[str, str]:
    """Files by path, and where links lead."""
    return {
        str(path.relative_to(target)): f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
        for path in sorted(target.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


async def test_files_folders_and_links_are_as_they_were(tmp_path: Path) -> None:
    tar = (
        Tar().add(".results/a", "one").add(".results/d", kind=tarfile.DIRTYPE).add(".results/d/b", "x" * 5000)
    )
    tar.add(".results/soft", kind=tarfile.SYMTYPE, link="/var/run/scratch/task/.results/a")
    tar.add(".results/hard", kind=tarfile.LNKTYPE, link=".results/d/b")
    target = tmp_path / "there"
    assert await unpack(tar.pieces(), str(target), 1 << 20) == []
    assert found(target) == {
        "a": "one",
        "d/b": "x" * 5000,
        "soft": "-> /var/run/scratch/task/.results/a",
        "hard": "x" * 5000,
    }
    assert {path.stat().st_mode & 0o777 for path in (target, target / "d")} == {0o700}


@pytest.mark.parametrize(
    "name", ["../evil", ".results/../../evil", ".results/x/../../../evil", "/.results/../../evil"]
)
async def test_no_name_leads_out(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    notes = await unpack(Tar().add(name, "evil").pieces(), str(tmp_path / "in" / "there"), 1 << 20)
    assert len(notes) == 1
    assert found(tmp_path) == {}


async def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("before")
    tar = Tar().add(".results/way", kind=tarfile.SYMTYPE, link=str(outside)).add(".results/way/file", "evil")
    tar.add(".results/f", kind=tarfile.SYMTYPE, link=str(outside / "file")).add(".results/f", "evil")
    tar.add(".results/h", kind=tarfile.LNKTYPE, link=".results/way/file")
    notes = await unpack(tar.pieces(), str(tmp_path / "there"), 1 << 20)
    assert len(notes) == 2
    assert (outside / "file").read_text() == "before"
    assert sorted(found(tmp_path / "there")) == ["f", "way"]


async def test_an_item_that_does_not_fit_is_dropped_whole(tmp_path: Path) -> None:
    tar = Tar().add(".results/big", kind=tarfile.DIRTYPE)
    for number in range(5):
        tar.add(f".results/big/{number}", "x" * 400)
    tar.add(".results/large", "y" * 1001).add(".results/small", "z" * 1000)
    notes = await unpack(tar.pieces(), str(tmp_path / "there"), 1000)
    assert found(tmp_path / "there") == {"small": "z" * 1000}
    assert [note.split()[0] for note in notes] == ["big", "large"]


async def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    tar = Tar().add(".results/pipe", kind=tarfile.FIFOTYPE).add(".results/device", kind=tarfile.CHRTYPE)
    notes = await unpack(tar.pieces(), str(tmp_path / "there"), 1000)
    assert [note.split(" was")[0] for note in notes] == ["'pipe'", "'device'"]


async def test_more_than_anybody_wants_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_MEMBERS", 3)
    tar = Tar()
    for number in range(200):
        tar.add(f".results/{number}", "x" * 3000)
    notes = await unpack(tar.pieces(), str(tmp_path / "there"), 1 << 20)
    assert len(found(tmp_path / "there")) == 2
    assert "after 3 files" in notes[0]


async def test_an_archive_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield Tar().add(".results/a", "x" * 100_000).whole()[:5000]
        raise EngineAway("gone")

    with pytest.raises(EngineAway, match="gone"):
        await unpack(broken(), str(tmp_path / "there"), 1 << 20)


async def test_what_is_no_archive_is_an_error(tmp_path: Path) -> None:
    async def wrong() -> AsyncIterator[bytes]:
        yield b"no tar at all" * 1000

    with pytest.raises(OSError, match="can't be read"):
        await unpack(wrong(), str(tmp_path / "there"), 1 << 20)

"""What a task leaves in its directory of results: found, read, and nothing from outside with it."""

import os
from pathlib import Path

import pytest

from nemo_jobs.backends import subprocess_results as results
from nemo_jobs.backends.api import Collects, Left, LeftChanged, LeftFile
from tests.backends.host import HostHarness, until_ended

PLENTY = 1 << 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "task" / "results"
    made.mkdir(parents=True)
    (tmp_path / "outside").write_text("treasure")
    return made


def root_of(folder: Path) -> str:
    return str(folder.parent.parent)


def look(folder: Path, most: int = PLENTY) -> Left:
    return results.look_through(root_of(folder), str(folder), most)


def contents(folder: Path, most: int = PLENTY) -> dict[str, bytes]:
    """Everything that would be stored, by result and path."""
    return {
        f"{item.name}/{file.path}" if item.folder else item.name: b"".join(
            results.read(root_of(folder), str(folder), file)
        )
        for item in look(folder, most).items
        for file in item.files
    }


def notes(folder: Path, most: int = PLENTY) -> str:
    return "\n".join(look(folder, most).notes)


def test_files_and_folders_come_whole_and_in_order(folder: Path) -> None:
    (folder / "model.json").write_text("{}")
    (folder / "ckpt" / "inner").mkdir(parents=True)
    (folder / "ckpt" / "b").write_bytes(b"\0" * 3_000_000)
    (folder / "ckpt" / "inner" / "a").write_text("deep")
    (folder / "empty").mkdir()
    (folder / ".hidden").write_text("")
    found = look(folder)
    assert [(item.name, item.folder) for item in found.items] == [
        (".hidden", False), ("ckpt", True), ("model.json", False),
    ]  # fmt: skip
    assert contents(folder) == {
        ".hidden": b"", "ckpt/b": b"\0" * 3_000_000, "ckpt/inner/a": b"deep", "model.json": b"{}",
    }  # fmt: skip
    assert found.notes == ("empty was left out: there is no file in it that could be stored",)


def test_c052_links_inside_are_what_they_lead_to(folder: Path) -> None:
    (folder / "ckpt-900").mkdir()
    (folder / "ckpt-900" / "w").write_text("900")
    (folder / "latest").symlink_to("ckpt-900")
    (folder / "newest").symlink_to(folder / "latest")
    (folder / "one").symlink_to("latest/../ckpt-900/./w")
    (folder / "ckpt-900" / "self").symlink_to("w")
    assert contents(folder) == {
        "ckpt-900/self": b"900", "ckpt-900/w": b"900", "latest/self": b"900", "latest/w": b"900",
        "newest/self": b"900", "newest/w": b"900", "one": b"900",
    }  # fmt: skip
    assert notes(folder) == ""


def test_c052_links_out_loops_and_dangling_ones_are_told_and_left_out(folder: Path) -> None:
    (folder / "kept").mkdir()
    (folder / "kept" / "file").write_text("here")
    for name, target in {
        "absolute": folder.parent.parent / "outside",
        "relative": Path("../../outside"),
        "etc": Path("/etc"),
        "sneaky": Path("kept/../../../outside"),
        "beside": Path(f"{folder}-other"),
        "dangling": Path("nothing"),
        "circle": Path("circle"),
        "itself": Path("."),
    }.items():
        (folder / name).symlink_to(target)
        (folder / "kept" / name).symlink_to(target)
    (folder / "kept" / "up").symlink_to("..")
    (folder / "kept" / "back").symlink_to("../kept")
    assert contents(folder) == {"kept/file": b"here"}
    told = look(folder).notes
    assert len(told) == 18
    assert "absolute was left out: it is a link out of the directory" in told
    assert "circle was left out: it is a link that leads in a circle" in told
    assert "kept/back was left out: it leads back to a folder that it is in" in told
    assert "dangling was left out: it can't be read: No such file or directory" in told


def test_c052_a_way_to_the_directory_that_became_a_link_is_not_gone(folder: Path) -> None:
    (folder / "mine").write_text("x")
    (found,) = look(folder).items[0].files
    other = folder.parent.parent / "other"
    (other / "results").mkdir(parents=True)
    (other / "results" / "mine").write_text("y")
    folder.parent.rename(folder.parent.parent / "moved")
    folder.parent.symlink_to(other)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        look(folder)
    with pytest.raises(LeftChanged):
        list(results.read(root_of(folder), str(folder), found))


def test_a_crowd_of_names_is_bounded_whatever_is_behind_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_MOST_SEEN", 30)
    monkeypatch.setattr(results, "MOST_FILES", 10)
    monkeypatch.setattr(results, "MOST_ITEMS", 10)
    for name in ("aa", "bb", "cc", "dd"):
        for inner in range(9):
            (folder / name / str(inner)).mkdir(parents=True)
    (folder / "ee").mkdir()
    for number in range(11):
        (folder / "ee" / str(number)).mkdir()
    for number in range(15):
        (folder / f"zz-{number:02}").touch()
    found = look(folder)
    assert found.items == ()
    assert "dd was left out: it is one thing too many: more than 30 were looked at" in found.notes
    assert "10 more than 10 files and folders were left out" in found.notes


def test_special_files_are_left_out_without_opening_them(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "good").write_text("x")
    assert contents(folder) == {"good": b"x"}
    assert notes(folder) == "pipe was left out: it is neither a file nor a folder"


def test_what_does_not_fit_is_left_out_whole_and_smaller_things_still_fit(folder: Path) -> None:
    (folder / "a").write_bytes(b"1" * 60)
    (folder / "b").mkdir()
    for name in "xy":
        (folder / "b" / name).write_bytes(b"2" * 30)
    (folder / "c").write_bytes(b"3" * 40)
    assert sorted(contents(folder, 100)) == ["a", "c"]
    assert notes(folder, 100) == "b was left out: it has 60 bytes, and only 40 more may be stored"


def test_too_many_files_too_deep_and_too_long_names_are_bounded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "MOST_FILES", 5)
    monkeypatch.setattr(results, "MOST_ITEMS", 4)
    (folder / "a-many" / "inner").mkdir(parents=True)
    for number in range(6):
        (folder / "a-many" / "inner" / str(number)).touch()
    deep = folder / "b-deep" / "/".join("d" * 40)
    deep.mkdir(parents=True)
    (deep / "lost").touch()
    (folder / "b-deep" / "kept").touch()
    long = folder / "c-long" / ("n" * 250) / ("n" * 250) / ("n" * 250)
    long.mkdir(parents=True)
    (long / ("n" * 250)).touch()
    (folder / "c-long" / "kept").touch()
    for name in ("d", "e", "f"):
        (folder / name).touch()
    assert sorted(contents(folder)) == ["b-deep/kept", "c-long/kept", "d"]
    told = notes(folder)
    assert "a-many was left out: it would make more than 5 files" in told
    assert "was left out: it is more than 32 folders deep" in told
    assert "its name is longer than 800 bytes" in told
    assert "2 more than 4 files and folders were left out" in told


def test_links_that_double_at_each_level_end_at_the_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "MOST_FILES", 50)
    for number in range(20):
        (folder / f"l{number}").mkdir()
        (folder / f"l{number}" / "f").touch()
        for twin in "ab":
            (folder / f"l{number}" / twin).symlink_to(f"../l{number + 1}")
    assert sum(len(item.files) for item in look(folder).items) <= 50


def test_names_that_are_no_text_are_replaced_and_told_apart(folder: Path) -> None:
    (folder / "d").mkdir()
    for name in (b"a\xff", b"a\xfe", b"b\nc", b"..\\x", b"%2e%2e%2fx", b"100%", b"\xff" * 200):
        with open(os.path.join(os.fsencode(folder), b"d", name), "wb") as file:
            file.write(name)
    assert contents(folder) == {
        "d/100%": b"100%",
        "d/_2e_2e_2fx": b"%2e%2e%2fx",
        "d/" + "\ufffd" * 85: b"\xff" * 200,
        "d/..\ufffdx": b"..\\x", "d/a\ufffd": b"a\xfe", "d/a\ufffd~2": b"a\xff", "d/b\ufffdc": b"b\nc",
    }  # fmt: skip


def test_things_whose_names_are_no_text_are_told_apart(folder: Path) -> None:
    for name in (b"a\xff", b"a\xfe"):
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(name)
    assert contents(folder) == {"a\ufffd": b"a\xfe", "a\ufffd~2": b"a\xff"}


def test_c084_what_changed_or_vanished_is_never_half_read(folder: Path) -> None:
    path = folder / "log"
    path.write_text("first")
    (found,) = look(folder).items[0].files
    reading = results.read(root_of(folder), str(folder), found)
    path.write_text("second")
    with pytest.raises(LeftChanged, match="changed"):
        next(reading)
    (found,) = look(folder).items[0].files
    reading = results.read(root_of(folder), str(folder), found)
    assert next(reading) == b"second"
    with path.open("a") as file:
        file.write(" and more")
    with pytest.raises(LeftChanged, match="changed"):
        next(reading)
    path.unlink()
    with pytest.raises(LeftChanged, match="gone"):
        list(results.read(root_of(folder), str(folder), found))
    path.symlink_to("../../outside")
    with pytest.raises(LeftChanged):
        list(results.read(root_of(folder), str(folder), found))


def test_a_place_that_leads_out_is_never_opened(folder: Path) -> None:
    outside = (folder.parent.parent / "outside").stat()
    for place in ("../../outside", f"{folder.parent.parent}/outside", "./../../outside"):
        with pytest.raises(LeftChanged):
            list(
                results.read(
                    root_of(folder), str(folder), LeftFile(place, "", outside.st_size, outside.st_mtime_ns)
                )
            )


async def test_a_task_finds_the_directory_and_what_it_left_is_given(host: HostHarness) -> None:
    backend = await host.host()
    assert isinstance(backend, Collects)
    script = 'cd $NEMO_JOB_RESULTS_PATH; echo "{}" > m.json; mkdir d; echo x > d/x'
    handle = await backend.submit(host.command(["sh", "-c", script]))
    await until_ended(backend, handle)
    left = await backend.left(handle, PLENTY)
    assert left is not None
    read = {
        (item.name, file.path): b"".join([piece async for piece in backend.read_left(handle, file)])
        for item in left.items
        for file in item.files
    }
    assert read == {("d", "x"): b"x\n", ("m.json", ""): b"{}\n"}
    await backend.remove(handle)
    assert await backend.left(handle, PLENTY) is None


async def test_nothing_left_is_told_without_a_thread(
    host: HostHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await host.host()
    handle = await backend.submit(host.command(["true"]))
    await until_ended(backend, handle)

    def refuse(*_: object) -> None:
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr("asyncio.to_thread", refuse)
    assert await backend.left(handle, PLENTY) is None


async def test_the_results_of_another_host_are_not_looked_for_here(host: HostHarness) -> None:
    backend, other = await host.host(), await host.host(host_id="other")
    handle = await backend.submit(host.command(["sh", "-c", "echo x > $NEMO_JOB_RESULTS_PATH/x"]))
    await until_ended(backend, handle)
    assert await other.left(handle, PLENTY) is None

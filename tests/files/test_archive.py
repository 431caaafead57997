"""Folders as archives that are made on the way."""

import io
import os
import tarfile
import tracemalloc

import pytest

from nemo_jobs.files.archive import Member, tar_stream
from nemo_jobs.files.objects import ObjectMissing, ObjectsUnavailable, new_key
from tests.files.test_objects import chunks

AT = 1_800_000_000_000_000


async def stored(objects, **files):
    """Members with these bytes."""
    found = []
    for path, data in files.items():
        key = new_key()
        await objects.put(key, chunks(data))
        found.append(Member(path.replace("__", "/"), len(data), AT, key))
    return found


async def each(members):
    for member in members:
        yield member


async def packed(objects, members, top="weights"):
    return b"".join([piece async for piece in tar_stream(objects, top, each(members), AT)])


async def test_what_is_packed_is_unpacked_with_one_top_directory(objects, tmp_path):
    files = {"a": b"", "b__c": b"x" * 512, "b__d__ü ☃": os.urandom(700_001), "z" * 120: b"long"}
    data = await packed(objects, await stored(objects, **files))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        tar.extractall(tmp_path / "out", filter="data")
        one = tar.getmember("weights/b/c")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["weights"]
    found = {
        str(path.relative_to(tmp_path / "out" / "weights")).replace("/", "__"): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert found == files
    assert (one.mtime, one.mode, one.uid) == (AT // 10**6, 0o644, 0)


async def test_an_empty_folder_is_an_archive_with_the_directory_alone(objects):
    data = await packed(objects, [])
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        assert [(entry.name, entry.isdir()) for entry in tar] == [("weights", True)]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", "a//b", ".", "", "a/\0"])
async def test_c082_no_member_leads_outside(objects, path):
    (good,) = await stored(objects, a=b"x")
    with pytest.raises(ValueError, match="can't be in an archive"):
        await packed(objects, [Member(path, good.size, AT, good.key)])


async def test_bytes_that_are_missing_or_too_few_are_an_error_not_a_whole_archive(objects):
    (good,) = await stored(objects, a=b"x" * 1000)
    with pytest.raises(ObjectMissing):
        await packed(objects, [good, Member("b", 10, AT, new_key())])
    for size in (999, 1001):
        with pytest.raises(ObjectsUnavailable, match="'a' are not as many"):
            await packed(objects, [Member("a", size, AT, good.key)])


async def test_memory_does_not_grow_with_the_folder(tmp_path):
    from tests.files.conftest import opened

    objects = opened(tmp_path)
    members = await stored(objects, **{f"f{number}": os.urandom(4_000_000) for number in range(8)})
    tracemalloc.start()
    size = 0
    async for piece in tar_stream(objects, "top", each(members), AT):
        size += len(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 32_000_000
    assert peak < 8_000_000

"""What every store must do, whatever it is."""

import asyncio
import hashlib
import os

import pytest

from nemo_jobs.files.objects import ObjectMissing, ObjectsUnavailable, TooLarge, new_key
from tests.files.conftest import opened

MIB = 1024 * 1024


async def chunks(*given, then=None):
    for chunk in given:
        yield chunk
    if then is not None:
        raise then


async def content(objects, key, *span):
    return b"".join([piece async for piece in objects.read(key, *span)])


@pytest.mark.parametrize("size", [0, 1, 100_000, 3 * MIB, 20 * MIB + 7])
async def test_what_was_put_is_read_and_its_size_and_digest_are_told(objects, size):
    data = os.urandom(size)
    key = new_key()
    pieces = [data[at : at + 300_000] for at in range(0, size, 300_000)]
    stored = await objects.put(key, chunks(*pieces))
    assert (stored.key, stored.size) == (key, size)
    assert stored.digest == hashlib.sha256(data).hexdigest()
    assert await content(objects, key) == data


async def test_a_part_is_read_without_the_rest(objects):
    key, data = new_key(), os.urandom(2 * MIB)
    await objects.put(key, chunks(data))
    for start, end in ((0, 10), (5, 5), (100, MIB + 100), (MIB, None), (2 * MIB - 1, 2 * MIB)):
        assert await content(objects, key, start, end) == data[start:end]


async def test_an_object_that_is_not_there_is_told_before_the_first_byte(objects):
    with pytest.raises(ObjectMissing):
        await content(objects, new_key())
    await objects.remove(new_key())


async def test_a_removed_object_is_gone(objects):
    key = new_key()
    await objects.put(key, chunks(b"x"))
    await objects.remove(key)
    await objects.remove(key)
    with pytest.raises(ObjectMissing):
        await content(objects, key)


@pytest.mark.parametrize("size", [10, 20 * MIB])
async def test_c034_an_upload_that_is_cut_leaves_nothing(objects, size):
    key = new_key()
    with pytest.raises(ConnectionResetError):
        await objects.put(key, chunks(bytes(size), then=ConnectionResetError("cut")))
    with pytest.raises(ObjectMissing):
        await content(objects, key)


async def test_an_upload_that_is_cancelled_leaves_nothing(objects):
    key, begun = new_key(), asyncio.Event()

    async def slow():
        yield bytes(6 * MIB)
        begun.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(objects.put(key, slow()))
    await begun.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    with pytest.raises(ObjectMissing):
        await content(objects, key)


async def test_more_than_the_limit_is_refused_and_leaves_nothing(objects):
    key = new_key()
    with pytest.raises(TooLarge) as caught:
        await objects.put(key, chunks(bytes(60), bytes(60)), 100)
    assert caught.value.limit == 100
    with pytest.raises(ObjectMissing):
        await content(objects, key)
    assert (await objects.put(new_key(), chunks(bytes(50), bytes(50)), 100)).size == 100


@pytest.mark.parametrize("key", ["", "../x", "a" * 31, "A" * 32, "a" * 32 + "\n", "/" + "a" * 31])
async def test_only_keys_that_were_made_here_become_paths(objects, key):
    with pytest.raises(ValueError, match="no key"):
        await objects.put(key, chunks(b"x"))
    with pytest.raises(ValueError, match="no key"):
        await content(objects, key)
    with pytest.raises(ValueError, match="no key"):
        await objects.remove(key)


async def test_a_store_keeps_its_identity_and_shares_it_with_nobody(objects, tmp_path):
    found = set(await asyncio.gather(*(objects.identity() for _ in range(5))))
    assert len(found) == 1
    other = tmp_path / "other"
    other.mkdir()
    assert await opened(other).identity() not in found
    assert await objects.check() is None


async def test_readers_that_stop_early_leave_nothing_open(objects):
    key = new_key()
    await objects.put(key, chunks(os.urandom(5 * MIB)))
    reading = objects.read(key)
    assert await anext(reading)
    await reading.aclose()
    assert len(await content(objects, key)) == 5 * MIB


async def test_a_bucket_that_refuses_says_so_without_its_secret(bucket, tmp_path):
    objects = opened(tmp_path, "s3://bucket/p", bucket.options)
    bucket.failing = True
    for work in (
        objects.put(new_key(), chunks(b"x")),
        content(objects, new_key()),
        objects.remove(new_key()),
        objects.identity(),
    ):
        with pytest.raises(ObjectsUnavailable, match="s3://bucket/p can't be used") as caught:
            await work
        assert "not-a-secret" not in str(caught.value)
    assert "s3://bucket/p can't be used" in (await objects.check() or "")


async def test_a_bucket_that_is_away_is_told_soon(tmp_path):
    options = {
        "endpoint": "http://127.0.0.1:9",
        "region": "x",
        "access_key_id": "a",
        "secret_access_key": "b",
    }
    objects = opened(tmp_path, "s3://bucket/p", options)
    async with asyncio.timeout(20):
        assert "s3://bucket/p can't be used" in (await objects.check() or "")


async def test_all_of_a_bucket_is_below_its_prefix(bucket, tmp_path):
    objects = opened(tmp_path, "s3://bucket/team/nemo", bucket.options)
    await objects.put(new_key(), chunks(bytes(20 * MIB)))
    await objects.identity()
    assert all(path.startswith("/bucket/team/nemo/") for path in bucket.objects)
    assert bucket.parts == {}


async def test_parts_of_an_upload_that_is_cut_do_not_stay_in_the_bucket(bucket, tmp_path):
    objects = opened(tmp_path, "s3://bucket/p", bucket.options)
    with pytest.raises(ConnectionResetError):
        await objects.put(new_key(), chunks(*[bytes(9 * MIB)] * 3, then=ConnectionResetError("cut")))
    assert bucket.parts == {}
    assert bucket.objects == {}


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("s3://bucket", {"colour": "red"}, "'colour' is not valid"),
        ("file:///proc/nowhere", {}, "/proc/nowhere can't be used"),
    ],
)
def test_a_store_that_can_not_be_opened_says_why(tmp_path, url, options, says):
    with pytest.raises(ObjectsUnavailable, match=says):
        opened(tmp_path, url, options)

"""Objects that nothing names, and a store that does not let go of them."""

import pytest

from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.engine.sweep_objects import ObjectSweeper
from nemo_jobs.files.objects import new_key
from nemo_jobs.store import files
from nemo_jobs.store.db import Database
from tests.files.conftest import opened
from tests.files.test_objects import chunks


@pytest.fixture
async def db(tmp_path):
    opened_db = Database.open(f"sqlite:///{tmp_path}/jobs.db")
    await opened_db.start()
    yield opened_db
    await opened_db.aclose()


async def test_what_a_kill_left_between_bytes_and_row_goes_after_a_day(db, tmp_path):
    objects, clock, key = opened(tmp_path), ManualClock(), new_key()
    sweeper = ObjectSweeper(db, objects, clock)
    await db.write(files.announce, [key], clock.now())
    await objects.put(key, chunks(b"x"))
    clock.advance(86_000)
    assert await sweeper.remove_due() == 0
    clock.advance(1_000)
    assert await sweeper.remove_due() == 1
    assert not [path for path in (tmp_path / "files" / "objects").rglob("*") if path.is_file()]
    clock.advance(1_000_000)
    assert await sweeper.remove_due() == 0


async def test_a_store_that_refuses_is_told_and_asked_again_later(db, tmp_path, bucket):
    objects = opened(tmp_path, "s3://bucket/p", bucket.options)
    clock, keys = ManualClock(), [new_key() for _ in range(3)]
    sweeper = ObjectSweeper(db, objects, clock)
    await db.write(files.announce, keys, clock.now())
    for key in keys:
        await objects.put(key, chunks(b"x"))
    clock.advance(90_000)
    bucket.failing = True
    assert await sweeper.remove_due() == 3
    (problem,) = sweeper.problems()
    assert "s3://bucket/p can't be used" in problem
    assert await sweeper.remove_due() == 0
    bucket.failing = False
    clock.advance(31)
    assert await sweeper.remove_due() == 3
    assert sweeper.problems() == []
    assert bucket.objects == {}

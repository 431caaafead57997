"""Results on their way from a run's directory into the file store, with all that can go wrong."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from nemo_jobs.backends.api import Handle, Left, LeftItem
from nemo_jobs.domain.states import Trigger
from nemo_jobs.engine import gather
from nemo_jobs.files.local import LocalObjects
from nemo_jobs.files.objects import ObjectsUnavailable, Stored
from nemo_jobs.store import filesets, jobs, results
from nemo_jobs.store.rerun import Rerun, rerun
from nemo_jobs.store.results import ResultRecord
from nemo_jobs.store.tables import removal
from nemo_jobs.store.tables_files import file, fileset, object_removal
from nemo_jobs.testing import FakeBackend
from tests.engine.bench import WORKSPACE, Bench, open_place

LEFT = {"FAKE_RESULTS": json.dumps({"model.json": "{}", "ckpt/a": "aa", "ckpt/deep/b": "bb"})}


class Objects(LocalObjects):
    """A store that can be away, and that waits where a test wants to look."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.away = 0  # puts that fail
        self.reached = asyncio.Event()
        self.hold: asyncio.Event | None = None

    async def put(
        self, key: str, chunks: AsyncIterator[bytes], limit: int | None = None, size: int | None = None
    ) -> Stored:
        self.reached.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.away:
            self.away -= 1
            raise ObjectsUnavailable("the bucket is away")
        return await super().put(key, chunks, limit, size)

    def kept(self) -> set[str]:
        return {path.name for path in self.root.glob("objects/*/*")}


@pytest.fixture
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    marker = request.node.get_closest_marker("config")
    place = await open_place(f"{tmp_path}/nemo-jobs.db", **(marker.kwargs if marker else {}))
    place.objects = Objects(tmp_path / "files")
    place.objects.prepare()
    made = Bench(place)
    yield made
    await made.close()


def objects_of(bench: Bench) -> Objects:
    assert isinstance(bench.place.objects, Objects)
    return bench.place.objects


async def results_of(bench: Bench, name: str, attempt: int | None = None) -> dict[str, ResultRecord]:
    _, found = await bench.db.read(results.list_results, WORKSPACE, name, "created_at", attempt)
    return {record.name: record for record in found}


async def contents(bench: Bench) -> dict[str, str]:
    """Every file of every fileset, without the attempt's part of the path."""
    found = {}
    for path, key in await bench.db.read(lambda tx: tx.run(sa.select(file.c.path, file.c.object))):
        pieces = [piece async for piece in objects_of(bench).read(key)]
        found[path.split("/", 2)[2]] = b"".join(pieces).decode()
    return found


async def announced(bench: Bench) -> int:
    return len(await bench.db.read(lambda tx: tx.run(sa.select(object_removal.c.object))))


async def note_of(bench: Bench, name: str) -> str:
    tree = await bench.db.read(jobs.status_tree, WORKSPACE, name)
    return str(tree.steps[-1][0].status_details.get("results_note", ""))


async def test_what_a_step_left_is_there_when_its_end_is(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", LEFT)
    await bench.until("moth", "completed")
    found = await results_of(bench, "moth")
    assert {name: record.artifact.folder for name, record in found.items()} == {
        "ckpt": True, "model.json": False,
    }  # fmt: skip
    assert await contents(bench) == {"ckpt/a": "aa", "ckpt/deep/b": "bb", "model.json": "{}"}
    assert await note_of(bench, "moth") == ""
    assert await announced(bench) == 0


async def test_two_names_for_one_file_are_two_results(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = FakeBackend.left

    async def left(self: FakeBackend, handle: Handle, most_bytes: int) -> Left | None:
        found = await plain(self, handle, most_bytes)
        assert found is not None
        (file,) = next(item for item in found.items if item.name == "model.json").files
        return Left((*found.items, LeftItem("link", False, (file,))), found.notes)

    monkeypatch.setattr(FakeBackend, "left", left)
    await bench.start()
    await bench.create("moth", LEFT)
    await bench.until("moth", "completed")
    assert sorted(await results_of(bench, "moth")) == ["ckpt", "link", "model.json"]
    assert await contents(bench) == {"ckpt/a": "aa", "ckpt/deep/b": "bb", "link": "{}", "model.json": "{}"}
    assert await note_of(bench, "moth") == ""


async def test_c096_failed_and_cancelled_steps_keep_what_they_left(bench: Bench) -> None:
    await bench.start()
    await bench.create("failed", {**LEFT, "FAKE_EXIT_CODE": "1"})
    await bench.until("failed", "error")
    assert sorted(await results_of(bench, "failed")) == ["ckpt", "model.json"]
    await bench.create("cancelled", {**LEFT, "FAKE_RUN_SECONDS": "forever"})
    await bench.until("cancelled", "active")
    await bench.ask("cancelled", Trigger.CANCEL)
    await bench.until("cancelled", "cancelled")
    assert sorted(await results_of(bench, "cancelled")) == ["ckpt", "model.json"]


async def test_a_step_that_leaves_nothing_touches_neither_store(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth")
    await bench.until("moth", "completed")
    assert bench.place.world.calls["left"] == 1
    assert not objects_of(bench).reached.is_set()
    assert await announced(bench) == 0


async def test_c034_nothing_is_listed_before_all_of_it_is_stored(bench: Bench) -> None:
    objects = objects_of(bench)
    objects.hold = asyncio.Event()
    await bench.start()
    await bench.create("moth", LEFT)
    await objects.reached.wait()
    job = await bench.until("moth", "active")
    assert job.message == "step-0 has ended; its results are being stored: 3 files, 6 bytes"
    assert await results_of(bench, "moth") == {}
    assert await contents(bench) == {}
    objects.hold.set()
    await bench.until("moth", "completed")
    assert len(await results_of(bench, "moth")) == 2


async def test_a_long_upload_delays_nobody_else(bench: Bench) -> None:
    objects = objects_of(bench)
    objects.hold = asyncio.Event()
    await bench.start()
    await bench.create("slow", LEFT)
    await objects.reached.wait()
    await bench.create("quick")
    await bench.until("quick", "completed")
    assert await bench.ask("slow", Trigger.CANCEL) in ("cancelling", "cancelled")
    objects.hold.set()
    await bench.until("slow", "cancelled", "completed")
    assert len(await results_of(bench, "slow")) == 2


async def test_a_crash_in_the_middle_is_made_good_without_doubling(bench: Bench) -> None:
    objects = objects_of(bench)
    objects.hold = asyncio.Event()
    await bench.start()
    await bench.create("moth", LEFT)
    await objects.reached.wait()
    await bench.crash()
    assert await announced(bench) > 0
    objects.hold = None
    await bench.move(40)
    await bench.start()
    await bench.move_until("moth", "completed")
    assert sorted(await results_of(bench, "moth")) == ["ckpt", "model.json"]
    assert len(await contents(bench)) == 3
    assert await announced(bench) > 0, "what the first try announced goes a day later"


async def test_a_crash_between_the_results_and_the_end_doubles_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = asyncio.Event()

    async def never(self: gather.Gathering, tell: object) -> bool:
        assert await original(self, tell)  # type: ignore[arg-type]
        stuck.set()
        await asyncio.Event().wait()
        return True

    original = gather.Gathering.run
    monkeypatch.setattr(gather.Gathering, "run", never)
    await bench.start()
    await bench.create("moth", LEFT)
    await stuck.wait()
    before = await results_of(bench, "moth")
    assert sorted(before) == ["ckpt", "model.json"]
    await bench.crash()
    monkeypatch.setattr(gather.Gathering, "run", original)
    await bench.move(40)
    await bench.start()
    await bench.move_until("moth", "completed")
    after = await results_of(bench, "moth")
    assert {name: record.id for name, record in after.items()} == {
        name: record.id for name, record in before.items()
    }
    assert len(await contents(bench)) == 3


async def test_c084_a_file_that_changes_is_read_again(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {**LEFT, "FAKE_RESULTS_CHANGE": "2"})
    await bench.until("moth", "completed")
    assert len(await contents(bench)) == 3
    assert await note_of(bench, "moth") == ""


@pytest.mark.config(graceful_shutdown_timeout_seconds=0)
async def test_c084_one_that_never_rests_is_told_and_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "SETTLE_SECONDS", 0.05)
    await bench.start()
    await bench.create("moth", {"FAKE_RESULTS": '{"a": "x"}', "FAKE_RESULTS_CHANGE": "999"})
    job = await bench.until("moth", "completed")
    assert job.reason == "finished"
    assert await results_of(bench, "moth") == {}
    assert await note_of(bench, "moth") == "a was left out: it changed while it was collected"
    assert await announced(bench) > 0


async def test_a_file_store_that_is_away_for_a_moment_is_waited_for(bench: Bench) -> None:
    objects_of(bench).away = 1
    await bench.start()
    await bench.create("moth", LEFT)
    await bench.until("moth", "completed")
    assert len(await contents(bench)) == 3


async def test_a_file_store_that_stays_away_does_not_change_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "OUTAGE_SECONDS", 0.1)
    objects_of(bench).away = 999
    await bench.start()
    await bench.create("moth", LEFT)
    await bench.until("moth", "completed")
    assert await results_of(bench, "moth") == {}
    assert await note_of(bench, "moth") == "the rest was left out: the bucket is away"


async def test_storing_that_takes_too_long_keeps_whole_things_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = objects_of(bench)
    original = Objects.put

    async def slow(self: Objects, *given: object) -> Stored:
        stored: Stored = await original(self, *given)  # type: ignore[arg-type]
        if len(self.kept()) == 3:
            raise TimeoutError  # as if all the time had passed here
        return stored

    monkeypatch.setattr(Objects, "put", slow)
    await bench.start()
    await bench.create("moth", {"FAKE_RESULTS": '{"aa": "1", "b/x": "2", "b/y": "3", "c": "4"}'})
    await bench.until("moth", "completed")
    assert list(await results_of(bench, "moth")) == ["aa"]
    assert "took longer than 3600 s" in await note_of(bench, "moth")
    assert len(objects.kept()) == 3


@pytest.mark.config(results_max_bytes=3)
async def test_the_profiles_limit_holds_and_is_told(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", LEFT)
    await bench.until("moth", "completed")
    assert list(await results_of(bench, "moth")) == ["model.json"]
    assert await note_of(bench, "moth") == "ckpt was left out: it does not fit"


@pytest.mark.config(results_max_bytes=3, cleanup_completed_jobs_immediately=True)
async def test_the_directory_is_kept_for_a_while_when_something_was_left_out(bench: Bench) -> None:
    await bench.start()
    await bench.create("whole", {"FAKE_RESULTS": '{"aa": "1"}'})
    await bench.until("whole", "completed")
    await bench.create("parts", LEFT)
    await bench.until("parts", "completed")
    (parts,) = [
        work
        for work in bench.place.world.works.values()
        if work.script.get("FAKE_RESULTS") == LEFT["FAKE_RESULTS"]
    ]
    due = dict(await bench.db.read(lambda tx: tx.run(sa.select(removal.c.key, removal.c.due_at))))
    assert due[parts.handle.key] == bench.place.clock.now() + 3600 * 1_000_000


async def test_a_fileset_that_is_gone_is_told_and_the_step_ends_as_it_did(bench: Bench) -> None:
    await bench.start()
    place = await bench.db.write(
        filesets.create_fileset, WORKSPACE, "shared", {}, bench.place.clock.now(), "test"
    )
    new = replace(bench.new_job("moth", LEFT), fileset="shared", output_location="shared")
    objects = objects_of(bench)
    objects.hold = asyncio.Event()
    await bench.db.write(jobs.create_job, new, bench.place.clock.now(), "test")
    await objects.reached.wait()
    await bench.db.write(lambda tx: tx.count(sa.delete(fileset).where(fileset.c.id == place.id)))
    objects.hold.set()
    await bench.until("moth", "completed")
    assert await note_of(bench, "moth") == (
        "results could not be recorded: no fileset 'shared' in workspace 'default'"
    )


async def test_a_paused_run_keeps_what_it_left_and_the_next_one_replaces_it(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {**LEFT, "FAKE_RUN_SECONDS": "20"})
    await bench.until("moth", "active")
    await bench.ask("moth", Trigger.PAUSE)
    await bench.until("moth", "paused")
    before = await results_of(bench, "moth")
    assert sorted(before) == ["ckpt", "model.json"]
    await bench.ask("moth", Trigger.RESUME)
    await bench.until("moth", "active")
    await bench.move_until("moth", "completed")
    after = await results_of(bench, "moth")
    assert {name: one.id for name, one in after.items()} == {name: one.id for name, one in before.items()}
    assert len(await contents(bench)) == 3


async def test_each_attempt_has_its_own(bench: Bench) -> None:
    await bench.start()
    await bench.create("moth", {**LEFT, "FAKE_EXIT_CODE": "1"})
    await bench.until("moth", "error")
    await bench.db.write(rerun, WORKSPACE, "moth", Rerun("test", "{}"), bench.place.clock.now())
    bench.engine.nudge()  # type: ignore[union-attr]
    await bench.move_until("moth", "error")
    first, shown = await results_of(bench, "moth", 0), await results_of(bench, "moth")
    assert sorted(first) == sorted(shown) == ["ckpt", "model.json"]
    assert {one.attempt_id for one in first.values()} != {one.attempt_id for one in shown.values()}

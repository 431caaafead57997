"""Filesets and files: what is there, what is not yet, and what goes with what."""

import asyncio
import contextlib
import random

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.model import Conflict, Invalid, NotFound
from nemo_jobs.domain.states import Trigger
from nemo_jobs.files.objects import Stored, new_key
from nemo_jobs.store import files, filesets, jobs, workspaces
from nemo_jobs.store.agreement import agreed
from nemo_jobs.store.sql import prepare_once
from tests.store.kit import SECOND

OWN = "job-fileset-moth"


async def put(store, path, name="data", size=5, workspace="default"):
    """Store a file as an upload does; its key."""
    key = new_key()
    place = await store.write(files.begin_upload, workspace, name, path, key, store.now())
    made = await store.write(
        files.put_file, place.id, path, Stored(key, size, "d" * 64), store.now(), "tester"
    )
    return made.object


async def make(store, name="data", **given):
    return await store.write(filesets.create_fileset, "default", name, given, store.now(), "tester")


async def paths(store, name="data", **given):
    found = await store.read(filesets.get_fileset, "default", name)
    return [record.path for record in await store.read(files.list_files, found.id, **given)]


async def due(store, after=0):
    """The objects that may be removed `after` seconds from now."""
    at = store.now() + int(after * SECOND)
    return set(await store.write(files.claim_removals, at, 100))


async def names(store, **given):
    found, total = await store.read(filesets.list_filesets, "default", **given)
    return [record.name for record in found], total


async def test_a_fileset_is_made_found_changed_and_deleted(store):
    made = await make(store, description="moths", purpose="dataset", custom_fields={"a": 1})
    assert made == await store.read(filesets.get_fileset, "default", "data")
    with pytest.raises(Conflict, match=r"fileset 'data' exists already in workspace 'default'"):
        await make(store)
    changed = await store.write(
        filesets.update_fileset,
        "default",
        "data",
        {"description": None, "metadata": {"m": 2}},
        store.now(),
        "x",
    )
    assert (changed.description, changed.metadata, changed.custom_fields) == (None, '{"m":2}', '{"a":1}')
    assert changed.updated_at > made.updated_at
    await store.write(filesets.delete_fileset, "default", "data", store.now())
    with pytest.raises(NotFound, match=r"no fileset 'data' in workspace 'default'"):
        await store.read(filesets.get_fileset, "default", "data")


async def test_a_new_job_has_its_fileset_without_a_row(store):
    job = await store.create("moth")
    found = await store.read(filesets.get_fileset, "default", OWN)
    assert (found.job_id, found.created_at, found.purpose) == (job.id, job.created_at, "generic")
    assert await names(store) == ([OWN], 1)
    with pytest.raises(Conflict, match="exists already"):
        await make(store, OWN)
    await put(store, "a.txt", OWN)
    assert await store.read(filesets.get_fileset, "default", OWN) == found
    assert await names(store) == ([OWN], 1)


async def test_lists_mix_filesets_of_people_and_of_jobs_in_order(store):
    await make(store, "one")
    await store.create("moth")
    await make(store, "two")
    await store.create("owl")
    await put(store, "a", "job-fileset-owl")
    await store.create("bat", output_location="one", fileset="one")
    everything = ["one", OWN, "two", "job-fileset-owl"]
    assert await names(store, sort="created_at") == (everything, 4)
    assert await names(store, sort="-created_at") == (everything[::-1], 4)
    assert await names(store, sort="name") == (sorted(everything), 4)
    assert await names(store, sort="created_at", page=2, page_size=3) == (everything[3:], 4)
    assert await names(store, page=3, page_size=3) == ([], 4)
    with pytest.raises(NotFound, match="no workspace 'nowhere'"):
        await store.read(filesets.list_filesets, "nowhere")


async def test_pages_from_both_ends_meet(store):
    for number in range(7):
        await store.create(f"job-{number}")
        await make(store, f"set-{number}")
        await put(store, "a", f"job-fileset-job-{number}") if number % 2 else None
    await store.create("last")
    for sort in ("created_at", "-created_at", "updated_at", "-updated_at", "name", "-name"):
        everything, total = await names(store, sort=sort, page_size=100)
        assert total == len(set(everything)) == 15
        for size in (1, 2, 4, 7, 14):
            pages = [await names(store, sort=sort, page=n, page_size=size) for n in range(1, 17)]
            assert [name for found, _ in pages for name in found] == everything, (sort, size)


async def test_a_list_looks_at_few_of_many_jobs(sqlite_url, open_store):
    store = await open_store(sqlite_url)

    def plan(tx):
        found = []
        for by in ("created_at", "updated_at", "name"):
            query = filesets._sorted("default", by, True, 10, 0)
            ready = prepare_once(query, "sqlite", {})
            tx._cursor.execute(f"EXPLAIN QUERY PLAN {ready.sql}", ready.values({}))
            found.append([row[3] for row in tx._cursor.fetchall()])
        return found

    for steps, index in zip(
        await store.read(plan), ("job_created", "job_created", "sqlite_autoindex_job_2"), strict=True
    ):
        assert f"SEARCH job USING INDEX {index} (workspace=?)" in steps
        # The rest of the plan sorts the few rows that came out of the two sides.
        behind = steps[steps.index(f"SEARCH job USING INDEX {index} (workspace=?)") :]
        assert "USE TEMP B-TREE FOR ORDER BY" not in behind[:3]


async def test_the_name_of_a_jobs_fileset_may_be_taken(store):
    await make(store, OWN)
    with pytest.raises(Conflict, match=r"fileset 'job-fileset-moth'.*exists already"):
        await store.create("moth")
    with pytest.raises(NotFound):
        await store.job("moth")
    await store.write(filesets.delete_fileset, "default", OWN, store.now())
    await store.create("moth")
    with pytest.raises(Conflict, match="job name 'moth' is taken"):
        await store.create("moth")
    await put(store, "a", OWN)
    with pytest.raises(Conflict, match="job name 'moth' is taken"):
        await store.create("moth")


async def test_an_output_location_must_exist_and_is_never_touched(store):
    with pytest.raises(Invalid, match=r"output_location 'data': no such fileset"):
        await store.create("moth", output_location="data", fileset="data")
    await make(store)
    kept = await put(store, "kept")
    await store.create("moth", output_location="data", fileset="data")
    with pytest.raises(NotFound):
        await store.read(filesets.get_fileset, "default", OWN)
    with pytest.raises(Conflict, match=r"output_location of job 'moth', which has not ended"):
        await store.write(filesets.delete_fileset, "default", "data", store.now())
    await store.request("moth", Trigger.CANCEL)
    await store.write(jobs.delete_job, "default", "moth", store.now())
    assert await paths(store) == ["kept"]
    assert kept not in await due(store, 10**6)


async def test_a_deleted_job_takes_its_fileset_and_its_files_along(store):
    await store.create("moth")
    key = await put(store, "results/a", OWN)
    await store.request("moth", Trigger.CANCEL)
    await store.write(jobs.delete_job, "default", "moth", store.now())
    with pytest.raises(NotFound):
        await store.read(filesets.get_fileset, "default", OWN)
    assert await due(store) == set()
    assert await due(store, 601) == {key}
    await store.create("moth")
    assert await paths(store, OWN) == []


async def test_a_jobs_fileset_that_another_job_writes_to_outlives_the_job(store):
    await store.create("moth")
    await store.create("owl", output_location=OWN, fileset=OWN)
    await put(store, "a", OWN)
    await store.request("moth", Trigger.CANCEL)
    await store.write(jobs.delete_job, "default", "moth", store.now())
    assert (await store.read(filesets.get_fileset, "default", OWN)).job_id is None
    assert await paths(store, OWN) == ["a"]


async def test_a_jobs_fileset_can_be_deleted_before_the_job_and_come_back(store):
    job = await store.create("moth")
    await put(store, "a", OWN)
    await store.write(filesets.delete_fileset, "default", OWN, store.now())
    with pytest.raises(NotFound):
        await put(store, "b", OWN)
    assert await names(store) == ([], 0)
    again = await make(store, OWN, description="again")
    assert (again.job_id, again.description) == (job.id, "again")
    assert await paths(store, OWN) == []
    await store.write(filesets.delete_fileset, "default", OWN, store.now())
    place = await store.write(filesets.ensure_job_fileset, job, store.now(), "service:jobs")
    assert place.job_id == job.id
    await store.request("moth", Trigger.CANCEL)
    await store.write(jobs.delete_job, "default", "moth", store.now())
    assert await names(store) == ([], 0)


async def test_a_job_that_is_gone_gets_no_fileset(store):
    job = await store.create("moth")
    await store.request("moth", Trigger.CANCEL)
    await store.write(jobs.delete_job, "default", "moth", store.now())
    with pytest.raises(NotFound):
        await store.write(filesets.ensure_job_fileset, job, store.now(), "service:jobs")


async def test_the_last_complete_upload_of_a_name_wins_and_the_old_bytes_go(store):
    await make(store)
    old = await put(store, "a")
    new = await put(store, "a", size=7)
    record = await store.read(files.get_file, "default", "data", "a")
    assert (record.object, record.size) == (new, 7)
    assert await due(store, 601) == {old}


async def test_an_upload_that_is_cut_leaves_only_a_note_to_remove_it(store):
    await make(store)
    lost, failed = new_key(), new_key()
    for key in (lost, failed):
        await store.write(files.begin_upload, "default", "data", "a", key, store.now())
    await store.write(files.end_upload, failed, store.now())
    assert await paths(store) == []
    assert await due(store, 601) == {failed}
    assert lost in await due(store, 86_401)


async def test_an_upload_of_more_than_a_day_is_given_up(store):
    await make(store)
    key = new_key()
    place = await store.write(files.begin_upload, "default", "data", "a", key, store.now())
    assert await due(store, 86_401) == {key}
    await store.write(files.forget_removals, [key])
    with pytest.raises(Conflict, match="more than a day"):
        await store.write(files.put_file, place.id, "a", Stored(key, 1, "d"), store.now(), "tester")


async def test_a_removal_that_fails_comes_again_later_and_later(store):
    await make(store)
    await put(store, "a")
    await put(store, "a")
    now, waits = store.now() + 601 * SECOND, []
    for _ in range(9):
        assert len(await store.write(files.claim_removals, now, 10)) == 1
        begin = now
        while not await store.read(files.any_removal_due, now):
            now += 10 * SECOND
        waits.append((now - begin) // SECOND)
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (30, 3600)


async def test_a_path_is_a_file_or_a_folder_never_both(store):
    await make(store)
    await put(store, "a/b")
    for path, says in (("a", "is a folder"), ("a/b/c", "'a/b' is a file"), ("a/b/c/d", "'a/b' is a file")):
        with pytest.raises(Conflict, match=says):
            await put(store, path)
    await put(store, "a0")
    await put(store, "a.txt")
    assert await paths(store) == ["a.txt", "a/b", "a0"]


async def test_files_are_listed_by_folder_in_pages_and_by_their_bytes(store):
    await make(store)
    all_of_them = ["B", "a", "a-b/x", "b/c/é", "b/c/\U0001f98b", "b0", "bz"]
    for path in all_of_them:
        await put(store, path)
    assert await paths(store) == sorted(all_of_them, key=str.encode)
    assert await paths(store, below="b") == ["b/c/é", "b/c/\U0001f98b"]
    assert await paths(store, below="b/c/é") == ["b/c/é"]
    assert await paths(store, below="a") == ["a"]
    assert await paths(store, below="nothing") == []
    assert await paths(store, after="a", limit=2) == ["a-b/x", "b/c/é"]
    assert await paths(store, below="b", after="b/c/é") == ["b/c/\U0001f98b"]
    found = await store.read(filesets.get_fileset, "default", "data")
    assert await store.read(files.measure, found.id, "b") == (2, 10)
    assert await store.read(files.paths_below, found.id, "b") == ["b/c/é", "b/c/\U0001f98b"]


async def test_a_missing_file_and_a_folder_are_told_apart(store):
    await make(store)
    await put(store, "a/b")
    with pytest.raises(NotFound, match=r"no file 'x' in fileset 'data' of workspace 'default'"):
        await store.read(files.get_file, "default", "data", "x")
    with pytest.raises(NotFound, match=r"'a' in fileset 'data'.* is a folder"):
        await store.read(files.get_file, "default", "data", "a")
    with pytest.raises(NotFound, match="no file 'x'"):
        await store.write(files.delete_file, "default", "data", "x", store.now())
    gone = await store.write(files.delete_file, "default", "data", "a/b", store.now())
    assert gone.path == "a/b"
    assert await paths(store) == []


async def test_many_uploads_of_one_name_at_once_leave_one_file(store):
    await make(store)
    keys = set(await asyncio.gather(*(put(store, "a") for _ in range(12))))
    record = await store.read(files.get_file, "default", "data", "a")
    assert await due(store, 601) == keys - {record.object}


async def test_a_fileset_deleted_under_an_upload_says_so(store):
    await make(store)
    key = new_key()
    place = await store.write(files.begin_upload, "default", "data", "a", key, store.now())
    await store.write(filesets.delete_fileset, "default", "data", store.now())
    with pytest.raises(NotFound, match="was deleted while 'a' was on its way"):
        await store.write(files.put_file, place.id, "a", Stored(key, 1, "d"), store.now(), "tester")


async def test_a_workspace_with_filesets_stays(store):
    await store.write(workspaces.create_workspace, "lab", None, store.now(), "tester")
    await store.write(filesets.create_fileset, "lab", "data", {}, store.now(), "tester")
    with pytest.raises(Conflict, match="1 fileset"):
        await store.write(workspaces.delete_workspace, "lab")
    await store.write(filesets.delete_fileset, "lab", "data", store.now())
    await store.write(workspaces.delete_workspace, "lab")


async def test_the_first_to_start_says_what_all_agree_on(store):
    assert await store.write(agreed, "files_store_check", "one") == "one"
    assert await store.write(agreed, "files_store_check", "two") == "one"


async def test_everything_at_once_keeps_the_books(store):
    """Whatever happens beside what: each object is a file's or is noted for removal, never both,
    and no fileset of a job outlives it."""
    chance, keys = random.Random(7), set()
    await make(store, "shared")

    async def upload(name):
        key = new_key()
        path = chance.choice(["a", "b", "a/x", "c/y"])
        keys.add(key)
        place = await store.write(files.begin_upload, "default", name, path, key, store.now())
        await asyncio.sleep(0)
        await store.write(files.put_file, place.id, path, Stored(key, 1, "d"), store.now(), "tester")

    async def create(number):
        given = {"output_location": "shared", "fileset": "shared"} if chance.random() < 0.3 else {}
        await store.create(f"job-{number}", **given)

    async def end(number):
        await store.request(f"job-{number}", Trigger.CANCEL)
        await store.write(jobs.delete_job, "default", f"job-{number}", store.now())

    async def act(kind, number, name):
        if kind == "upload":
            await upload(name)
        elif kind == "create":
            await create(number)
        elif kind == "end":
            await end(number)
        elif kind == "make":
            await make(store, "shared")
        elif kind == "delete fileset":
            await store.write(filesets.delete_fileset, "default", name, store.now())
        else:
            await store.write(files.delete_file, "default", name, "a", store.now())

    async def worker():
        kinds = ["upload"] * 4 + ["create"] * 2 + ["end", "make", "delete fileset", "delete file"]
        for _ in range(40):
            number = chance.randrange(3)
            name = chance.choice([f"job-fileset-job-{number}", "shared"])
            with contextlib.suppress(NotFound, Conflict, Invalid):
                await act(chance.choice(kinds), number, name)

    await asyncio.gather(*(worker() for _ in range(6)))
    named = {key for (key,) in await store.read(lambda tx: tx.run(sa.text("SELECT object FROM file")))}
    noted = {
        key for (key,) in await store.read(lambda tx: tx.run(sa.text("SELECT object FROM object_removal")))
    }
    assert len(keys) > 30
    assert named & noted == set()
    # An upload that was refused at its beginning never had an object.
    assert named | noted <= keys
    lost = "SELECT count(*) FROM fileset WHERE job_id IS NOT NULL AND job_id NOT IN (SELECT id FROM job)"
    assert await store.read(lambda tx: tx.run(sa.text(lost))) == [(0,)]
    everything, total = await names(store, page_size=100)
    assert len(everything) == total == len(set(everything))

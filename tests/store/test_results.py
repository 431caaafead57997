"""Results: names that are posted once, and what steps leave, attempt by attempt."""

import itertools
from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.model import Conflict, Invalid, JobRecord, NotFound, StepRecord
from nemo_jobs.domain.names import is_name, result_name
from nemo_jobs.domain.states import Trigger
from nemo_jobs.files.objects import Stored, new_key
from nemo_jobs.store import files, filesets, jobs, results
from nemo_jobs.store.rerun import Rerun, rerun
from nemo_jobs.store.results import Gathered, ResultRecord
from nemo_jobs.store.tables_files import file, object_removal, result
from tests.store.kit import STARTED, SUBMITTED, SUCCEEDED, Store

sizes = itertools.count(1)


def stored() -> Stored:
    return Stored(new_key(), next(sizes), "d" * 64)


def one(name: str) -> Gathered:
    return Gathered(name, False, (("", stored()),))


def folder(name: str, *paths: str) -> Gathered:
    return Gathered(name, True, tuple((path, stored()) for path in paths))


async def announce(store: Store, left: Sequence[Gathered]) -> None:
    keys = [written.key for item in left for _, written in item.files]
    await store.write(files.announce, keys, store.now())


async def collect(store: Store, step: StepRecord, *left: Gathered, token: str = "") -> list[str] | None:
    await announce(store, left)
    names: list[str] | None = await store.write(
        results.collect, token or store.token, step.id, left, store.now()
    )
    return names


async def post(store: Store, job: str, name: str, url: str, attempt: int | str | None = None) -> ResultRecord:
    made: ResultRecord = await store.write(
        results.add_result, "default", job, name, url, attempt, store.now()
    )
    return made


async def listed(
    store: Store, job: str, attempt: int | str | None = None, sort: str = "created_at"
) -> list[str]:
    _, found = await store.read(results.list_results, "default", job, sort, attempt)
    return [record.name for record in found]


async def paths(store: Store, job: JobRecord | StepRecord) -> list[str]:
    rows = await store.read(lambda tx: tx.run(sa.select(file.c.path).order_by(file.c.path)))
    return [row[0] for row in rows]


async def doomed(store: Store) -> set[str]:
    return {row[0] for row in await store.read(lambda tx: tx.run(sa.select(object_removal.c.object)))}


async def again(store: Store, name: str) -> StepRecord:
    """A further attempt of an ended job, with its first step running."""
    await store.write(rerun, "default", name, Rerun("tester", '{"principal_id":""}'), store.now())
    (claimed,) = await store.claim()
    return await store.moved(claimed, SUBMITTED, STARTED, **store.started(claimed))


def own(job: str, path: str) -> str:
    return f"default/job-fileset-{job}#{path}"


async def test_a_posted_name_is_there_once_and_keeps_what_was_said(store: Store) -> None:
    job = await store.create("moth")
    made = await post(store, "moth", "weights", own("moth", "results/weights"))
    assert (made.job_id, made.attempt_id, made.collected, made.step) == (job.id, job.attempt_id, 0, None)
    with pytest.raises(Conflict, match="'moth' in workspace 'default' has a result 'weights'"):
        await post(store, "moth", "weights", own("moth", "results/other"))
    assert await store.read(results.get_result, "default", "moth", "weights", None) == made
    assert await store.read(results.get_result, "default", job.id, "weights", job.attempt_id) == made
    with pytest.raises(NotFound, match="no result 'other' in job 'moth' of workspace 'default'"):
        await store.read(results.get_result, "default", "moth", "other", None)
    for attempt in (7, "platform-job-attempt-x"):
        with pytest.raises(NotFound, match="no attempt"):
            await post(store, "moth", "other", own("moth", "x"), attempt)
    with pytest.raises(NotFound, match="no job 'mole'"):
        await post(store, "mole", "other", own("moth", "x"))


async def test_c099_only_what_a_job_may_show_can_become_its_result(store: Store) -> None:
    await store.create("moth")
    await store.create("other")
    await store.write(filesets.create_fileset, "default", "shared", {}, store.now(), "tester")
    await store.write(filesets.create_fileset, "system", "shared", {}, store.now(), "tester")
    await post(store, "moth", "own", "job-fileset-moth#a")
    await post(store, "moth", "shared", "fileset://default/shared#a/b/")
    await post(store, "moth", "elsewhere", "system/shared#a")
    with pytest.raises(Invalid, match="belongs to another job"):
        await post(store, "moth", "theirs", own("other", "secret"))
    with pytest.raises(Invalid, match="no fileset 'nothing' in workspace 'default'"):
        await post(store, "moth", "nothing", "nothing#a")
    for url in (
        "http://169.254.169.254/x#y", "file:///etc/passwd", "http://localhost:8080/#x", "s3://bucket/x#y",
        "fileset://shared#x", "default/shared", "default/shared#", "default/shared#/etc/passwd",
        "default/shared#a/../../b", "default/shared#a//b", "default/shared#..", "default/shared#a\\b",
        "default/shared#a\nb", "a/default/shared#x", "DEFAULT/shared#x", "", "#", "shared#" + "x" * 3000,
    ):  # fmt: skip
        with pytest.raises(Invalid, match="artifact_url"):
            await post(store, "moth", "bad", url)


async def test_the_number_of_results_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_RESULTS", 2)
    await store.create("moth")
    for name in ("one", "two"):
        await post(store, "moth", name, "job-fileset-moth#a")
    with pytest.raises(Conflict, match="has 2 results, the most"):
        await post(store, "moth", "three", "job-fileset-moth#a")


async def test_lists_are_sorted_by_either_time_and_then_by_name(store: Store) -> None:
    await store.create("moth")
    for name in ("bb", "aa", "cc"):
        await post(store, "moth", name, "job-fileset-moth#a")
    assert await listed(store, "moth") == ["bb", "aa", "cc"]
    assert await listed(store, "moth", sort="-updated_at") == ["cc", "aa", "bb"]
    with pytest.raises(NotFound):
        await listed(store, "moth", 3)


async def test_what_a_step_left_is_known_all_at_once_under_legal_names(store: Store) -> None:
    step = await store.running("moth", "fit")
    left = (one("Model v1.JSON"), folder("ckpt", "w", "deep/w"), one("model-v1.json"), one("--"))
    assert await collect(store, step, *left) == ["model-v1.json", "ckpt", "model-v1-fit.json", "result"]
    found = await store.read(results.get_result, "default", "moth", "model-v1.json", None)
    base = f"collected/{step.attempt_id}"
    assert (found.step, found.collected, found.original_name) == ("fit", 1, "Model v1.JSON")
    assert found.artifact_url == f"default/job-fileset-moth#{base}/model-v1.json"
    found = await store.read(results.get_result, "default", "moth", "ckpt", None)
    assert (found.original_name, found.artifact_url) == (None, f"default/job-fileset-moth#{base}/ckpt/")
    assert await paths(store, step) == [
        f"{base}/{name}" for name in ("ckpt/deep/w", "ckpt/w", "model-v1-fit.json", "model-v1.json", "result")
    ]
    assert await doomed(store) == set()


async def test_a_collection_that_is_repeated_doubles_nothing(store: Store) -> None:
    step = await store.running("moth", "fit")
    first = (folder("ckpt", "a", "b"), one("M.json"))
    names = await collect(store, step, *first)
    # The same transaction again: its answer was lost.
    assert await store.write(results.collect, store.token, step.id, first, store.now()) == names
    assert await doomed(store) == set()
    # A crash before the step's end was recorded; meanwhile one file is gone, one folder became a file.
    assert await collect(store, step, one("ckpt"), one("M.json")) == ["ckpt", "m.json"]
    assert await listed(store, "moth") == ["ckpt", "m.json"]
    base = f"collected/{step.attempt_id}"
    assert await paths(store, step) == [f"{base}/ckpt", f"{base}/m.json"]
    assert await doomed(store) == {written.key for item in first for _, written in item.files}


async def test_a_lost_lease_or_a_forgotten_object_writes_nothing(store: Store) -> None:
    step = await store.running("moth", "fit")
    assert await collect(store, step, one("model"), token="another") is None
    with pytest.raises(Conflict, match="more than a day"):
        await store.write(results.collect, store.token, step.id, [one("model")], store.now())
    assert await listed(store, "moth") == []
    assert await paths(store, step) == []


async def test_what_was_announced_and_not_used_can_go_and_what_was_used_stays(store: Store) -> None:
    step = await store.running("moth", "fit")
    used, unused = one("used"), one("unused")
    await announce(store, [used, unused])
    await store.write(results.collect, store.token, step.id, [used], store.now())
    keys = [item.files[0][1].key for item in (used, unused)]
    now = store.now()
    await store.write(results.abandon, keys, now)
    due = await store.read(lambda tx: tx.run(sa.select(object_removal.c.object, object_removal.c.due_at)))
    assert [tuple(row) for row in due] == [(keys[1], now + filesets.REMOVAL_GRACE)]


async def test_posted_and_collected_results_never_meet(store: Store) -> None:
    step = await store.running("moth", "fit")
    await post(store, "moth", "weights", own("moth", f"results/{step.attempt_id}/weights"))
    assert await collect(store, step, one("weights")) == ["weights-fit"]
    with pytest.raises(Conflict):
        await post(store, "moth", "weights-fit", own("moth", "x"))
    found = await store.read(results.get_result, "default", "moth", "weights", None)
    assert found.collected == 0


async def test_each_step_has_names_of_its_own_and_the_first_comes_first(store: Store) -> None:
    step = await store.running("moth", "prepare", "fit")
    assert await collect(store, step, one("report.html")) == ["report.html"]
    applied = await store.apply(step, SUCCEEDED)
    assert applied is not None
    assert applied.next_step is not None
    second = await store.moved(applied.next_step, SUBMITTED, STARTED, **store.started(applied.next_step))
    left = [one("report.html"), one("Report.html"), one("REPORT.html")]
    expected = ["report-fit.html", "report-fit-2.html", "report-fit-3.html"]
    assert await collect(store, second, *left) == expected
    assert await collect(store, second, *[one(item.name) for item in left]) == expected


async def test_a_later_attempts_is_shown_and_earlier_ones_when_asked_for(store: Store) -> None:
    step = await store.running("moth", "fit")
    await collect(store, step, one("model"), one("only-first"))
    await post(store, "moth", "posted", own("moth", "x"))
    await store.apply(step, Trigger.FAILED)
    later = await again(store, "moth")
    assert await listed(store, "moth") == ["model", "only-first", "posted"]
    assert await collect(store, later, one("model"), one("posted")) == ["model", "posted"]
    assert await listed(store, "moth") == ["only-first", "model", "posted"]
    assert await listed(store, "moth", 0) == ["model", "only-first", "posted"]
    assert await listed(store, "moth", later.attempt_id) == ["model", "posted"]

    async def attempt_of(name: str, attempt: int | str | None) -> str:
        found = await store.read(results.get_result, "default", "moth", name, attempt)
        return str(found.attempt_id)

    assert await attempt_of("model", None) == later.attempt_id
    assert await attempt_of("model", 0) == step.attempt_id
    assert await attempt_of("only-first", None) == step.attempt_id
    with pytest.raises(NotFound, match="no result 'only-first' of attempt 1"):
        await attempt_of("only-first", 1)


async def test_results_go_with_their_job_and_the_files_with_them(store: Store) -> None:
    step = await store.running("moth", "fit")
    left = folder("ckpt", "a", "b")
    await collect(store, step, left)
    await store.apply(step, SUCCEEDED)
    await store.write(jobs.delete_job, "default", "moth", store.now())
    assert await store.read(lambda tx: tx.run(sa.select(result.c.id))) == []
    await store.create("moth")
    assert await listed(store, "moth") == []


async def test_results_of_a_job_with_an_output_location_lie_there_under_its_name(store: Store) -> None:
    await store.write(filesets.create_fileset, "default", "shared", {}, store.now(), "tester")
    step = await store.running("moth", "fit", fileset="shared", output_location="shared")
    await collect(store, step, one("model"))
    found = await store.read(results.get_result, "default", "moth", "model", None)
    assert found.artifact_url == f"default/shared#jobs/moth/collected/{step.attempt_id}/model"
    await store.apply(step, SUCCEEDED)
    await store.write(jobs.delete_job, "default", "moth", store.now())
    assert len(await paths(store, step)) == 1


async def test_a_file_in_the_way_of_the_folder_is_told(store: Store) -> None:
    step = await store.running("moth", "fit")
    written = stored()
    place = await store.write(
        files.begin_upload, "default", "job-fileset-moth", "collected", written.key, store.now()
    )
    await store.write(files.put_file, place.id, "collected", written, store.now(), "tester")
    with pytest.raises(Conflict, match="'collected' can't be made in fileset 'job-fileset-moth'"):
        await collect(store, step, one("model"))


async def test_a_folder_of_thousands_is_stored_in_one_go(store: Store) -> None:
    step = await store.running("moth", "fit")
    assert await collect(store, step, folder("many", *(f"d/{n:05}" for n in range(3000)))) == ["many"]
    assert len(await paths(store, step)) == 3000
    assert await doomed(store) == set()


def test_every_text_gives_a_legal_name() -> None:
    letters = "aA1-.@_+ é/"
    for length in range(4):
        for text in map("".join, itertools.product(letters, repeat=length)):
            for more in ("", "-fit", "-" + "s" * 28 + "-10000"):
                assert is_name(result_name(text, more)), (text, more)
    assert result_name("x" * 90 + ".tar.gz") == "x" * 60 + ".gz"
    assert result_name("2024 report.CSV", "-2") == "result-2024-report-2.csv"
    assert result_name(".bashrc") == "bashrc"
    assert result_name("Modèle №2 ☃.bin") == "modele-no2.bin"
    assert result_name("模型.bin", "-2") == "result-2.bin"

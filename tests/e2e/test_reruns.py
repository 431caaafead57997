"""Ended jobs run again on the storage that they left, with real processes, over kills of the service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.kit import marked
from tests.e2e.service import JOBS, Client, Json, Service, job, until

#: Writes what attempt is running into the storage, and shows all that wrote before.
NOTE = 'echo "$NEMO_JOB_STEP" >> "$NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/notes"; '
SHOW = 'cat "$NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/notes"; '
#: Fails until the file `fixed` is in the storage.
FAILS = 'test -e "$NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/fixed" || exit 7; '


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path, subprocess_config={"graceful_shutdown_timeout_seconds": 1})
    try:
        yield made
    finally:
        made.close()


def create(client: Client, name: str, *texts: str) -> Json:
    answer = client.post(JOBS, job(name, *(["bash", "-c", text] for text in texts)))
    assert answer.status == 201, answer
    return answer.json


def again(client: Client, name: str, query: str = "") -> Json:
    answer = client.post(f"{JOBS}/{name}/rerun{query}")
    assert answer.status == 200, answer
    return answer.json


def storage(service: Service, name: str, attempt: str) -> Path:
    return service.root / "work" / "default" / name / attempt / "job-storage"


def attempts(client: Client, name: str) -> list[Json]:
    found: list[Json] = client.get(f"{JOBS}/{name}/attempts?sort=seq").json["data"]
    return found


def test_a_job_runs_again_from_its_failed_step_on_what_it_stored(service: Service) -> None:
    client = service.start().client()
    first = create(client, "moth", NOTE, NOTE + FAILS + "echo good", NOTE + SHOW)
    client.wait("moth", "error")
    place = storage(service, "moth", first["attempt_id"])
    (place / "fixed").touch()
    second = again(client, "moth", "?from_step=step-2")
    assert second["status"] == "active"
    client.wait("moth", "completed")
    assert client.messages("moth") == ["good", "step-1", "step-2", "step-2", "step-3"]
    assert not place.exists()
    tree = client.status("moth")["steps"]
    assert [step["status_details"]["reason"] for step in tree] == [
        "kept_from_attempt",
        "finished",
        "finished",
    ]
    assert tree[0]["tasks"] == []
    old, new = attempts(client, "moth")
    assert (old["status"], new["status"]) == ("error", "completed")
    # A plain rerun takes the storage along too.
    third = again(client, "moth")
    client.wait("moth", "completed")
    before = ["step-1", "step-2", "step-2", "step-3"]
    assert client.messages("moth") == ["good", *before, "step-1", "step-2", "step-3"]
    assert third["attempt_id"] == attempts(client, "moth")[-1]["id"]


def test_storage_outlives_the_directories_of_a_failed_attempt(tmp_path: Path) -> None:
    service = Service(tmp_path, subprocess_config={"ttl_seconds_after_finished": 0})
    try:
        client = service.start().client()
        first = create(client, "moth", NOTE, NOTE + FAILS + SHOW)
        client.wait("moth", "error")
        place = storage(service, "moth", first["attempt_id"])
        until(lambda: [path.name for path in place.parent.iterdir()] == ["job-storage"])
        (place / "fixed").touch()
        again(client, "moth", "?from_step=step-2")
        client.wait("moth", "completed")
        assert client.messages("moth") == ["step-1", "step-2", "step-2"]
    finally:
        service.close()


@pytest.mark.time_limit(180)
def test_storage_survives_kills_around_a_rerun(service: Service, tmp_path: Path) -> None:
    client = service.start().client()
    mark = f"again-{tmp_path.name}"
    first = create(client, "moth", NOTE, NOTE + FAILS + SHOW + f"MARK={mark} exec sleep 1")
    client.wait("moth", "error")
    (storage(service, "moth", first["attempt_id"]) / "fixed").touch()
    expected = ["step-1", "step-2"]
    for _ in range(3):
        again(client, "moth", "?from_step=step-2")
        service.kill()
        expected.append("step-2")
        client = service.start().client()
        client.wait("moth", "completed")
        # Started once, whenever the kill came.
        assert client.messages("moth") == expected
    found = attempts(client, "moth")
    assert [one["status"] for one in found] == ["error", *["completed"] * 3]
    assert [one["is_current"] for one in found] == [False] * 3 + [True]
    assert marked(mark) == []
    assert client.call("DELETE", f"{JOBS}/moth").status == 204
    until(lambda: not (service.root / "work" / "default").exists())


def test_storage_that_is_given_back_is_gone_from_the_disk_and_said_to_be(tmp_path: Path) -> None:
    service = Service(
        tmp_path,
        subprocess_config={"graceful_shutdown_timeout_seconds": 1, "ttl_seconds_after_finished": 0},
    )
    service.add_settings({"jobs": {"storage": {"failed_storage_ttl_seconds": 0}}})
    try:
        client = service.start().client()
        create(client, "moth", NOTE, "exit 3")
        client.wait("moth", "error")
        until(lambda: "storage_reclaimed_at" in client.job("moth")["status_details"])
        until(lambda: not (service.root / "work" / "default").exists())
        refused = client.post(f"{JOBS}/moth/rerun?from_step=step-2")
        assert refused.status == 409 and "run it from its first step" in refused.json["detail"]
        again(client, "moth")
        client.wait("moth", "error")
    finally:
        service.close()


def test_a_pause_ends_with_the_time_of_its_storage(service: Service, tmp_path: Path) -> None:
    client = service.start().client()
    mark = f"paused-{tmp_path.name}"
    create(client, "moth", f"export MARK={mark}; echo up; sleep 600")
    client.wait("moth", "active")
    assert client.post(f"{JOBS}/moth/pause").status == 200
    client.wait("moth", "paused")
    assert client.post(f"{JOBS}/moth/rerun").status == 409
    answer = client.call("PATCH", f"{JOBS}/moth/control", {"pause_ttl_seconds": 0})
    assert answer.status == 200, answer
    ended = client.wait("moth", "cancelled")
    assert ended["reason"]["code"] == "storage_expired"
    until(lambda: not (service.root / "work" / "default").exists())
    again(client, "moth")
    client.wait("moth", "active")
    client.post(f"{JOBS}/moth/cancel")
    client.wait("moth", "cancelled")
    assert marked(mark) == []


@pytest.mark.parametrize("state", ["completed", "paused"])
def test_an_end_from_outside_ends_the_process_and_its_task(
    service: Service, tmp_path: Path, state: str
) -> None:
    client = service.start().client()
    mark = f"outside-{state}-{tmp_path.name}"
    create(client, "moth", f"export MARK={mark}; echo up; sleep 600")
    client.wait("moth", "active")
    until(lambda: marked(mark))
    answer = client.call("PATCH", f"{JOBS}/moth/steps/step-1/status", {"status": state})
    assert answer.status == 200, answer
    until(lambda: not marked(mark))

    def task() -> Json:
        found: Json = client.get(f"{JOBS}/moth/steps/step-1/tasks").json["data"][0]
        return found

    until(lambda: task()["status"] == "cancelled", 20, lambda: str(task()))
    assert f"reported as {state}" in task()["status_details"]["message"]
    assert client.job("moth")["status"] == state

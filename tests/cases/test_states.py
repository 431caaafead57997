"""Waiting, starting once, cancelling and restarting, through the API."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.bed.postgres import Missing, PostgresServer
from tests.cases.kit import cancel, create, first_line, marked, script, step_of
from tests.e2e.service import JOBS, Client, Service, in_threads, until


def test_c007_a_cancelled_job_that_waited_never_runs(client: Client, shared: Service) -> None:
    touched = shared.root / "c007"
    create(client, "c007-first", ["sleep", "600"], profile="one")
    client.wait("c007-first", "active")
    create(client, "c007-second", ["touch", str(touched)], profile="one")
    create(client, "c007-third", ["true"], profile="one")
    assert client.job("c007-second")["reason"]["code"] == "queued"
    assert cancel(client, "c007-second")["status"] == "cancelled"
    cancel(client, "c007-first")
    assert client.wait("c007-third")["status"] == "completed"
    assert not touched.exists()
    assert cancel(client, "c007-second")["status"] == "cancelled"
    assert cancel(client, "c007-third")["status"] == "completed"


def test_a_resumed_step_tells_nothing_of_the_run_before(client: Client) -> None:
    note = "$NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/note"
    script(client, "resumed", f"test -e {note} && exit 0; touch {note}; echo up; sleep 600")
    first_line(client, "resumed")
    client.post(f"{JOBS}/resumed/pause")
    client.wait("resumed", "paused")
    assert step_of(client, "resumed")["status_details"]["signal"] == "SIGTERM"
    client.post(f"{JOBS}/resumed/resume")
    client.wait("resumed", "completed")
    details = step_of(client, "resumed")["status_details"]
    assert (details["exit_code"], details.get("signal")) == (0, None)


def test_c024_c026_every_job_goes_on_after_a_kill(tmp_path: Path) -> None:
    service = Service(tmp_path, subprocess_config={"graceful_shutdown_timeout_seconds": 1})
    try:
        client = service.start().client()
        script(client, "goes-on", "for i in 1 2 3 4; do echo $i; sleep .4; done")
        short, kept = f"short-{tmp_path.name}", f"kept-{tmp_path.name}"
        script(client, "ends-well", "sleep .5; echo a", MARK=short)
        script(client, "ends-badly", "sleep .5; echo b; exit 3", MARK=short)
        script(client, "three-steps", "sleep .5; echo 1", "echo 2", "echo 3")
        script(client, "is-cancelled", "echo up; sleep 600", MARK=kept)
        for name in ("goes-on", "ends-well", "ends-badly", "three-steps", "is-cancelled"):
            client.wait(name, "active")
        service.kill()
        until(lambda: not marked(short))
        client = service.start().client()
        cancel(client, "is-cancelled")
        assert client.wait("goes-on")["status"] == "completed"
        assert client.messages("goes-on") == ["1", "2", "3", "4"]
        assert client.wait("ends-well")["status"] == "completed"
        assert client.wait("ends-badly", "error")["error_details"]["exit_code"] == 3
        assert client.messages("ends-badly") == ["b"]
        assert client.wait("three-steps")["status"] == "completed"
        assert client.messages("three-steps") == ["1", "2", "3"]
        client.wait("is-cancelled", "cancelled")
        assert marked(kept) == []
    finally:
        service.close()


def test_c029_each_step_starts_once_over_kills(tmp_path: Path) -> None:
    service, starts = Service(tmp_path), tmp_path / "starts"
    starts.mkdir()
    try:
        client = service.start().client()
        for number in range(12):
            text = f"echo start >> {starts}/$NEMO_JOB_ID-$NEMO_JOB_STEP"
            script(client, f"moth-{number}", f"{text}; sleep .2", text)
            if number % 4 == 3:
                service.kill()
                client = service.start().client()
        for number in range(12):
            assert client.wait(f"moth-{number}")["status"] == "completed"
        assert [file.read_text() for file in starts.iterdir()] == ["start\n"] * 24
    finally:
        service.close()


def test_c070_a_database_that_is_away_fails_no_job(tmp_path: Path) -> None:
    try:
        server = PostgresServer.start()
    except Missing as error:
        pytest.skip(str(error))
    service = Service(tmp_path, database_url=server.new_database())
    try:
        client = service.start().client()
        script(client, "moth", "for i in $(seq 1 30); do echo $i; sleep .1; done; exit 3")
        first_line(client, "moth")
        server.stop()
        until(lambda: client.get(JOBS).status == 503)
        server.resume()
        until(lambda: client.get(JOBS).status == 200)
        assert client.wait("moth", "error")["error_details"]["exit_code"] == 3
        assert client.messages("moth") == [str(i) for i in range(1, 31)]
    finally:
        service.close()
        server.destroy()


def test_c075_a_running_job_is_not_deleted_and_its_name_is_free_afterwards(client: Client) -> None:
    script(client, "c075", "echo old; sleep 600")
    first_line(client, "c075")
    refused = client.call("DELETE", f"{JOBS}/c075")
    assert (refused.status, refused.headers["x-should-retry"]) == (409, "false")
    assert "cancel the job first" in refused.json["detail"]
    cancel(client, "c075")
    client.wait("c075", "cancelled")
    assert client.call("DELETE", f"{JOBS}/c075").status == 204
    script(client, "c075", "echo new")
    client.wait("c075", "completed")
    assert client.messages("c075") == ["new"]


@pytest.mark.parametrize(
    ("executor", "words"),
    [
        ({"provider": "subprocess", "command": []}, "at least the program"),
        ({"provider": "subprocess", "profile": "none-such", "command": ["true"]}, "subprocess/default"),
        ({"provider": "gpu", "container": {"command": ["true"]}}, "'gpu'"),
    ],
)
def test_c078_what_cannot_run_is_refused_when_it_is_sent(client: Client, executor: dict, words: str) -> None:
    steps = [{"name": "fit", "executor": executor}]
    answer = client.post(
        JOBS, {"name": "c078", "source": "tests", "spec": {}, "platform_spec": {"steps": steps}}
    )
    assert answer.status == 422
    assert words in json.dumps(answer.json, ensure_ascii=False)
    assert client.get(f"{JOBS}/c078").status == 404


def test_c078_a_profile_that_went_away_ends_its_waiting_job_with_the_reason(tmp_path: Path) -> None:
    service = Service(tmp_path)
    try:
        executor = {"provider": "subprocess", "profile": "one", "backend": "subprocess"}
        config = {"working_directory": str(tmp_path / "work"), "max_concurrent": 1}
        service.add_settings({"jobs": {"executors": [executor | {"config": config}]}})
        client = service.start().client()
        create(client, "holder", ["sleep", "1"], profile="one")
        create(client, "waits", ["true"], profile="one")
        client.wait("holder", "active")
        service.stop()
        service.add_settings({"jobs": {"executors": []}})
        client = service.start().client()
        assert "subprocess/one" in client.wait("waits", "error")["error_details"]["message"]
    finally:
        service.close()


def test_c081_a_date_means_the_same_moment_in_every_zone(tmp_path: Path) -> None:
    with Service(tmp_path, environ={"TZ": "Asia/Kolkata"}) as service:
        client = service.client()
        create(client, "moth", ["true"])
        created = client.wait("moth")["created_at"]
        assert created.endswith("Z")
        in_india = datetime.fromisoformat(created).astimezone(timezone(timedelta(hours=5, minutes=30)))
        for value in (created, created[:-1], in_india.isoformat()):
            for operator, count in (("$gte", 1), ("$gt", 0)):
                text = quote(json.dumps({"created_at": {operator: value}}))
                page = client.get(f"{JOBS}?filter={text}").json
                assert page["pagination"]["total_results"] == count, (value, operator)


def test_c094_places_come_back_however_jobs_end(client: Client) -> None:
    endings = ["kill -9 $$", "exit 3", "exit 0", "no-such-program", "sleep 600"]
    names = [f"c094-{number}" for number in range(25)]
    for number, name in enumerate(names):
        script(client, name, endings[number % 5], profile="four")
        if number % 5 == 4:
            cancel(client, name)
    for name in names:
        client.wait(name)
    for number in range(4):
        create(client, f"c094-last-{number}", ["sleep", "600"], profile="four")
    for number in range(4):
        client.wait(f"c094-last-{number}", "active")
        cancel(client, f"c094-last-{number}")
    for number in range(4):
        client.wait(f"c094-last-{number}", "cancelled")


def test_c100_late_reports_move_nothing(client: Client) -> None:
    create(client, "c100", ["true"])
    client.wait("c100", "completed")
    task = step_of(client, "c100")["tasks"][0]["name"]
    patched = client.call("PATCH", f"{JOBS}/c100/steps/step-1/status", {"status": "active"})
    assert (patched.status, patched.headers["x-should-retry"]) == (409, "false")
    put = client.call("PUT", f"{JOBS}/c100/steps/step-1/tasks/{task}", {"status": "active"})
    assert (put.status, put.json["status"]) == (200, "completed")
    assert client.job("c100")["status"] == "completed"


def test_c088_of_twenty_creates_of_one_name_one_wins(shared: Service) -> None:
    answers: list[int] = []
    in_threads(lambda _: answers.append(shared.client().create("c088", ["true"]).status), 20)
    assert sorted(answers) == [201] + [409] * 19

"""What goes wrong with containers elsewhere, through the API, on a real engine.

Images and registries: e2e/test_docker_images.py; kills of service and engine, and hands of others
on our containers: e2e/test_docker_crashes.py.
"""

import io
import json
import random
import tarfile
import threading
import time
from pathlib import Path

import pytest

from tests.bed.docker import DockerServer
from tests.bed.docker_images import PYTHON
from tests.bed.postgres import Missing, PostgresServer
from tests.bed.proxy import Proxy, http_answer
from tests.e2e.docker_kit import (
    STORAGE,
    DockerService,
    act,
    container_step,
    error_of,
    first_line,
    gone,
    run,
    submit,
    task_of,
)
from tests.e2e.service import ENDED, JOBS, Client, Json, all_pids, in_threads, proc_file, until

# Engines of busy machines take their time: what hangs is still ended.
pytestmark = pytest.mark.time_limit(180)

BAR = (
    "import sys, time\n"
    "for i in range(300): sys.stdout.write('\\r%4d/300' % i); sys.stdout.flush(); time.sleep(.01)\n"
    "print('\\nEND')"
)
STORED = {STORAGE: "/var/run/scratch/job"}
INTO = "cd $NEMO_JOB_RESULTS_PATH; "
SECRETS = "/apis/secrets/v2/workspaces/default/secrets"
CANARY = "canary-4711-in-clear"


@pytest.fixture
def client(containers: DockerService) -> Client:
    return containers.client()


@pytest.fixture(scope="session")
def python(docker: DockerServer) -> str:
    return docker.python_image()


def test_c001_a_progress_bar_is_seen_while_it_is_drawn_and_stays_small(client: Client, python: str) -> None:
    run(client, "c001", ["python3", "-u", "-c", BAR], image=PYTHON)
    first_line(client, "c001")
    first = client.messages("c001")[-1]
    until(lambda: client.messages("c001")[-1] not in (first, "END"), 5)
    assert client.job("c001")["status"] == "active"
    client.wait("c001")
    lines = client.messages("c001")
    assert lines[-2:] == [" 299/300", "END"]
    assert len(lines) < 30


def test_c005_lines_are_there_while_it_runs_and_after_a_cancel(
    client: Client, containers: DockerService, python: str
) -> None:
    code = "f = open('/marks/c005', 'a')\nimport time\n"
    code += "while 1: print('x'); f.write('x\\n'); f.flush(); time.sleep(.05)"
    run(client, "c005", ["python3", "-c", code], image=PYTHON)
    until(lambda: len(client.messages("c005")) > 3)
    act(client, "c005", "cancel")
    client.wait("c005", "cancelled")
    assert abs(len(client.messages("c005")) - len(containers.marked("c005"))) <= 1


def test_c006_bad_bytes_and_split_characters_reach_the_reader_as_text(client: Client) -> None:
    run(client, "c006", r"printf 'ok1\nbad\377\376byte\n\xe2'; sleep .1; printf '\x96\x88\nok2\n'")
    assert client.wait("c006")["status"] == "completed"
    lines = client.messages("c006")
    assert (lines[0], lines[-1]) == ("ok1", "ok2")
    assert lines[1] == "bad\ufffd\ufffdbyte"


def test_c007_a_cancelled_job_that_waited_never_runs(client: Client, containers: DockerService) -> None:
    run(client, "c007-a", "echo up; sleep 1", profile="one")
    first_line(client, "c007-a")
    run(client, "c007-b", "touch /marks/c007", profile="one")
    act(client, "c007-b", "cancel")
    client.wait("c007-b", "cancelled")
    client.wait("c007-a", "completed")
    run(client, "c007-c", ["true"], profile="one")
    client.wait("c007-c", "completed")
    act(client, "c007-b", "cancel")
    assert act(client, "c007-c", "cancel")["status"] == "completed"
    assert not (containers.marks / "c007").exists()


def test_c008_c092_at_the_first_sight_of_the_end_the_whole_log_is_there(containers: DockerService) -> None:
    """Also with immediate clean-up, and for work that ended before anybody looked."""

    def one(number: int) -> None:
        client = containers.client()
        for turn in range(3):
            name = f"c008-{number}-{turn}"
            run(client, name, f"seq 1 5000; printf 'final without newline'; exit {number % 2}")
            while client.job(name)["status"] not in ENDED:
                time.sleep(0.005)
            assert client.messages(name) == [*map(str, range(1, 5001)), "final without newline"]

    in_threads(one, 4)


def test_c011_a_cancel_at_any_moment_never_ends_as_an_error(containers: DockerService) -> None:
    def one(number: int) -> None:
        client, chance = containers.client(), random.Random(number)
        for turn in range(5):
            name = f"c011-{number}-{turn}"
            run(client, name, ["sleep", "0.3"])
            time.sleep(chance.uniform(0, 0.8))
            act(client, name, "cancel")
            assert client.wait(name)["status"] in ("cancelled", "completed"), client.status(name)

    in_threads(one, 4)
    gone(lambda: [one for one in containers.containers() if one["State"] == "running"])


def intervals(file: Path) -> list[tuple[int, int, set[str]]]:
    """From, to and devices of each run, as the containers themselves wrote them."""
    found: dict[str, list[int]] = {}
    devices: dict[str, set[str]] = {}
    for line in file.read_text().splitlines():
        what, job, ids, at = line.split()
        found.setdefault(job, []).append(int(at))
        devices[job] = set(ids.split(","))
        assert what in ("begin", "end")
    return [(times[0], times[-1], devices[job]) for job, times in found.items()]


@pytest.mark.time_limit(120)
def test_c014_no_device_has_two_holders_over_kills(docker: DockerServer, tmp_path: Path) -> None:
    """20 jobs of one or two GPUs on a pool of two, and three kills of the service in between."""
    service = DockerService(tmp_path / "service", docker, gpus=2)
    hold = (
        'n() { echo "$1 $NEMO_JOB_ID $NVIDIA_VISIBLE_DEVICES $(stamp)" >> /marks/gpus; }; '
        "stamp() { awk '{print int($1 * 100)}' /proc/uptime; }; n begin; sleep .4; n end"
    )
    try:
        client = service.start().client()
        for number in range(20):
            count = 1 + number % 2
            run(client, f"c014-{number}", hold, provider="gpu", resources={"num_gpus": count})
        for _ in range(3):
            time.sleep(1.5)
            service.kill()
            client = service.start().client()
        for number in range(20):
            assert client.wait(f"c014-{number}", timeout=60)["status"] == "completed"
        lines = (service.marks / "gpus").read_text().splitlines()
        assert sum(line.startswith("begin") for line in lines) == 20
        runs = intervals(service.marks / "gpus")
        for number, (begin, end, devices) in enumerate(runs):
            for other_begin, other_end, others in runs[:number]:
                overlap = begin < other_end and other_begin < end
                assert not (overlap and devices & others), (runs[number], others)
        assert set().union(*(devices for _, _, devices in runs)) == {"0", "1"}
        too_many = container_step(["true"], provider="gpu", resources={"num_gpus": 3})
        body = {"name": "c014-more", "source": "t", "spec": {}, "platform_spec": {"steps": [too_many]}}
        assert client.post(JOBS, body).status == 422
    finally:
        service.close()


@pytest.mark.time_limit(120)
def test_c023_the_device_is_free_after_every_kind_of_end(docker: DockerServer, tmp_path: Path) -> None:
    """While the container of the one before is still there."""
    kept = {"cleanup_completed_jobs_immediately": False}
    short = {"provider": "gpu", "profile": "short", "config": {**kept, "ttl_seconds_active": 1}}
    service = DockerService(tmp_path / "service", docker, gpus=1, profile=kept, executors=[short])
    try:
        client = service.start().client()
        one: Json = {"provider": "gpu", "resources": {"num_gpus": 1}}

        def follower(name: str) -> None:
            began = time.monotonic()
            run(client, f"after-{name}", ["true"], **one)
            client.wait(f"after-{name}", "completed", timeout=15)
            assert time.monotonic() - began < 15

        run(client, "completed", ["true"], **one)
        client.wait("completed", "completed")
        follower("completed")
        run(client, "error", ["false"], **one)
        client.wait("error", "error")
        follower("error")
        run(client, "cancelled", "echo up; sleep 300", **one)
        first_line(client, "cancelled")
        act(client, "cancelled", "cancel")
        follower("cancelled")
        run(client, "paused", "echo up; sleep 300", **one)
        first_line(client, "paused")
        act(client, "paused", "pause")
        follower("paused")
        run(client, "no-program", ["/no/such/program"], **one)
        follower("no-program")
        run(client, "no-image", ["true"], image="127.0.0.1:1/x:1", **one)
        follower("no-image")
        run(client, "vanished", "echo up; sleep 300", **one)
        first_line(client, "vanished")
        docker.api.delete(f"/containers/{service.container('vanished')['Id']}", force=True)
        follower("vanished")
        run(client, "limit", "sleep 300", profile="short", **one)
        follower("limit")
        run(client, "deleted", ["true"], **one)
        client.wait("deleted", "completed")
        assert client.call("DELETE", f"{JOBS}/deleted").status == 204
        follower("deleted")
    finally:
        service.close()


@pytest.mark.time_limit(120)
def test_c024_c029_three_steps_follow_each_other_once_over_kills(
    docker: DockerServer, tmp_path: Path
) -> None:
    service = DockerService(tmp_path / "service", docker)
    try:
        client = service.start().client()
        script = "echo $NEMO_JOB_STEP >> /marks/$NEMO_JOB_ID; seq 1 200; sleep .2"
        for number in range(6):
            submit(client, f"c024-{number}", *(container_step(["sh", "-c", script]) for _ in range(3)))
        for _ in range(4):
            time.sleep(random.uniform(0.5, 2))
            service.kill()
            client = service.start().client()
        for number in range(6):
            name = f"c024-{number}"
            assert client.wait(name, timeout=60)["status"] == "completed", client.status(name)
            assert service.marked(name) == ["step-1", "step-2", "step-3"]
            assert client.messages(name) == [*map(str, range(1, 201))] * 3
        gone(service.leftovers)
    finally:
        service.close()


def test_c030_c053_a_secret_is_in_no_label_argument_answer_or_file(
    docker: DockerServer, tmp_path: Path
) -> None:
    service = DockerService(tmp_path / "place", docker, profile={"cleanup_completed_jobs_immediately": False})
    service.add_settings({"service": {"log_level": "DEBUG"}})
    arguments: set[bytes] = set()
    done = threading.Event()

    def sample() -> None:
        while not done.is_set():
            arguments.update(proc_file(pid, "cmdline") for pid in all_pids())
            time.sleep(0.01)

    watching = threading.Thread(target=sample)
    watching.start()
    since = int(time.time())
    try:
        client = service.start().client()
        assert client.post(SECRETS, {"name": "canary", "value": CANARY}).status == 201
        secret = {"secrets": {"CANARY": "canary"}}
        run(client, "c030-works", "test ${#CANARY} = 20; echo out $CANARY; echo err $CANARY >&2", **secret)
        run(client, "c030-fails", "echo last $CANARY >&2; exit 3", **secret)
        run(client, "c030-program", ["/no/such/program"], **secret)
        run(client, "c030-image", ["true"], image="registry.invalid/x y", **secret)
        names = ("c030-works", "c030-fails", "c030-program", "c030-image")
        for name in names:
            client.wait(name)
        assert client.job("c030-works")["status"] == "completed", client.status("c030-works")
        assert {"out ***"} < set(client.messages("c030-works"))
        answers = [client.get("/status"), client.get("/metrics"), client.get(JOBS)]
        for name in names:
            answers += [client.get(f"{JOBS}/{name}{path}") for path in ("", "/status", "/steps", "/logs")]
        assert all(CANARY.encode() not in answer.body for answer in answers)
        for one in service.containers():
            found = docker.api.inspect(one["Id"])
            env = [line for line in found["Config"].pop("Env") if CANARY in line]
            assert env in ([f"CANARY={CANARY}"], [])
            assert CANARY not in json.dumps(found)
        query = {"since": str(since), "until": str(int(time.time()) + 1)}
        assert CANARY not in repr(list(docker.api.lines("GET", "/events", query=query)))
        service.stop()
        files = [path for path in service.root.rglob("*") if path.is_file()]
        assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    finally:
        done.set()
        watching.join()
        service.close()
    assert not [line for line in arguments if CANARY.encode() in line]


def test_c031_each_stream_is_in_order_and_every_reading_gives_the_same_order(client: Client) -> None:
    run(client, "c031", "for i in $(seq 300); do echo o$i; echo e$i >&2; done")
    client.wait("c031", "completed")
    whole = client.messages("c031")
    for letter in "oe":
        found = [line.removeprefix("[stderr] ") for line in whole]
        assert [line for line in found if line[0] == letter] == [f"{letter}{i}" for i in range(1, 301)]
    assert client.messages("c031") == whole
    assert [line["message"].rstrip("\n") for line in client.logs("c031", limit=7)] == whole


def test_c034_c052_c096_results_of_every_end_are_whole_and_lead_nowhere(client: Client) -> None:
    links = (
        "mkdir dir; echo x > dir/in; ln -s in dir/inside; ln -s /etc/passwd dir/out; ln -s gone dir/dangling;"
    )
    links += " ln -s . dir/loop;"
    run(client, "c052", f"{INTO} {links} echo y > file")
    client.wait("c052", "completed")
    found = {one["name"] for one in client.get(f"{JOBS}/c052/results").json["data"]}
    assert {"dir", "file"} <= found
    data = client.get(f"{JOBS}/c052/results/dir/download").body
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as archive:
        names = {one.name.partition("/")[2] for one in archive if one.isfile()}
        assert "in" in names
        assert all(
            "root:" not in (archive.extractfile(one) or io.BytesIO()).read().decode()
            for one in archive
            if one.isfile()
        )
    note = str(client.status("c052")["steps"][-1]["status_details"].get("results_note", ""))
    assert "out" in note
    run(client, "c096-error", f"{INTO} echo part > part; exit 3")
    client.wait("c096-error", "error")
    run(client, "c096-cancel", f"{INTO} echo part > part; echo up; sleep 300")
    first_line(client, "c096-cancel")
    act(client, "c096-cancel", "cancel")
    client.wait("c096-cancel", "cancelled")
    for name in ("c096-error", "c096-cancel"):
        assert client.get(f"{JOBS}/{name}/results/part/download").body == b"part\n"


def test_c048_words_and_variables_arrive_as_they_were_sent(client: Client, python: str) -> None:
    words = ["a b", "$HOME", "$(PATH)", "`id`", "*", "", "x\ny", "--", "é", "'", '"', "\\"]
    code = "import sys, json, os; print(json.dumps([sys.argv[1:], os.environ['ODD']]))"
    run(client, "c048", ["python3", "-c", code, *words], image=PYTHON, env={"ODD": "$x=`id` \n\"'*é"})
    client.wait("c048", "completed")
    assert json.loads(client.messages("c048")[0]) == [words, "$x=`id` \n\"'*é"]


def test_c050_a_reader_that_fails_hurts_no_other_and_goes_on(docker: DockerServer, tmp_path: Path) -> None:
    proxy = Proxy(str(docker.socket))
    service = DockerService(tmp_path / "service", docker, through=proxy)
    try:
        client = service.start().client()
        faults = proxy.faults
        faults.answer = http_answer(500, '{"message":"no logs today"}')
        faults.answer_to, faults.answers = r"/logs\b", 2
        for number in range(5):
            run(client, f"c050-{number}", "for i in $(seq 20); do echo $i; sleep .05; done; sleep .5")
        first_line(client, "c050-4")
        docker.api.delete(f"/containers/{service.container('c050-4')['Id']}", force=True)
        for number in range(4):
            assert client.wait(f"c050-{number}")["status"] == "completed"
            assert client.messages(f"c050-{number}") == [str(i) for i in range(1, 21)]
        assert error_of(client, "c050-4")
        assert client.messages("c050-4")[:1] == ["1"]
    finally:
        service.close()
        proxy.close()


@pytest.mark.time_limit(120)
def test_c057_a_large_request_is_not_starved_and_nobody_else_waits_for_it(
    docker: DockerServer, tmp_path: Path
) -> None:
    service = DockerService(tmp_path / "service", docker, gpus=4)
    try:
        client = service.start().client()
        stop = threading.Event()
        made: list[str] = []

        note = "awk -v n=$NEMO_JOB_ID '{print n, int($1 * 100)}' /proc/uptime >> /marks/began; sleep 1"

        def flow() -> None:
            mine = service.client()
            while not stop.is_set():
                made.append(f"small-{len(made)}")
                run(mine, made[-1], note, provider="gpu", resources={"num_gpus": 1})
                time.sleep(0.25)

        flowing = threading.Thread(target=flow)
        flowing.start()
        try:
            until(lambda: len(made) > 6, 20)
            run(client, "large", note, provider="gpu", resources={"num_gpus": 4})
            before = len(made)
            until(lambda: len(made) > before + 4, 20)
            began = time.monotonic()
            run(client, "plain", ["true"])
            client.wait("plain", "completed", timeout=10)
            assert time.monotonic() - began < 5
            client.wait("large", "completed", timeout=30)
        finally:
            stop.set()
            flowing.join()
        for name in made:
            client.wait(name, "completed", timeout=40)
        times = {name: int(at) for name, at in (line.split() for line in service.marked("began"))}
        assert len(times) == len(made) + 1
        # The one under way when the large request came may have been a moment earlier or later.
        assert all(times[name] > times["large"] for name in made[before + 1 :])
    finally:
        service.close()


def test_c064_a_secret_that_is_deleted_while_its_step_waits_ends_it_by_name(
    client: Client, containers: DockerService
) -> None:
    missing = container_step(["true"], secrets={"X": "c064-none"})
    body = {"name": "c064-none", "source": "t", "spec": {}, "platform_spec": {"steps": [missing]}}
    answer = client.post(JOBS, body)
    assert answer.status == 422
    assert "c064-none" in str(answer.json)
    assert client.post(SECRETS, {"name": "c064", "value": "v"}).status == 201
    run(client, "c064-holds", "echo up; sleep 1", profile="one")
    first_line(client, "c064-holds")
    run(client, "c064-waits", "touch /marks/c064", profile="one", secrets={"X": "c064"})
    assert client.call("DELETE", f"{SECRETS}/c064").status in (200, 204)
    assert "c064" in error_of(client, "c064-waits")
    assert not (containers.marks / "c064").exists()


def test_c070_a_database_that_is_away_fails_no_container(docker: DockerServer, tmp_path: Path) -> None:
    try:
        server = PostgresServer.start()
    except Missing as error:
        pytest.skip(str(error))
    service = DockerService(tmp_path / "service", docker, database_url=server.new_database())
    try:
        client = service.start().client()
        run(client, "c070", "for i in $(seq 1 30); do echo $i; sleep .1; done; exit 3")
        first_line(client, "c070")
        server.stop()
        until(lambda: client.get(JOBS).status == 503)
        server.resume()
        until(lambda: client.get(JOBS).status == 200)
        assert client.wait("c070", "error")["error_details"]["exit_code"] == 3
        assert client.messages("c070") == [str(i) for i in range(1, 31)]
    finally:
        service.close()
        server.destroy()


def test_c072_who_asks_the_keyboard_gets_the_end_of_the_input(client: Client, python: str) -> None:
    run(client, "c072-input", ["python3", "-c", 'input("Continue? ")'], image=PYTHON)
    run(client, "c072-cat", ["cat"])
    client.wait("c072-cat", "completed")
    client.wait("c072-input", "error")
    assert any("EOFError" in line for line in client.messages("c072-input"))


def test_c073_containers_that_fail_at_once_tell_their_code_and_their_words(containers: DockerService) -> None:
    def one(number: int) -> None:
        client = containers.client()
        names = [f"c073-{number}-{turn}" for turn in range(10)]
        for name in names:
            run(client, name, "echo boom >&2; exit 7")
        for name in names:
            assert client.wait(name, timeout=40)["status"] == "error"
            assert task_of(client, name)["status_details"]["exit_code"] == 7
            assert [line.removeprefix("[stderr] ") for line in client.messages(name)] == ["boom"]

    in_threads(one, 4)


def test_c075_a_running_job_is_not_deleted_and_its_name_is_free_afterwards(client: Client) -> None:
    run(client, "c075", "echo old; sleep 600")
    first_line(client, "c075")
    assert client.call("DELETE", f"{JOBS}/c075").status == 409
    act(client, "c075", "cancel")
    client.wait("c075", "cancelled")
    assert client.call("DELETE", f"{JOBS}/c075").status == 204
    run(client, "c075", "echo new")
    client.wait("c075", "completed")
    assert client.messages("c075") == ["new"]


def test_c086_text_of_any_field_is_never_run_and_leads_nowhere(
    client: Client, containers: DockerService
) -> None:
    odd = ["x;touch /marks/pwn", "$(touch /marks/pwn)", "-v/:/h", "a\nb: c", "--privileged", "../../etc"]
    for number, text in enumerate(odd):
        step = container_step(["echo", text], env={"ODD": text}, config={text: text})
        submit(client, f"c086-{number}", step, description=text, spec={text: text})
        client.wait(f"c086-{number}", "completed")
        assert "\n".join(client.messages(f"c086-{number}")) == text
        place = container_step(["true"], env={STORAGE: text})
        body = {"name": f"c086-p{number}", "source": text, "spec": {}, "platform_spec": {"steps": [place]}}
        answer = client.post(JOBS, body)
        if answer.status == 201:
            assert client.wait(f"c086-p{number}")["status"] in ("completed", "error")
        else:
            assert answer.status == 422, answer
        image = container_step(["true"], image=text)
        body = {"name": f"c086-i{number}", "source": "t", "spec": {}, "platform_spec": {"steps": [image]}}
        answer = client.post(JOBS, body)
        assert answer.status == 422 or "image" in error_of(client, f"c086-i{number}")
    assert not (containers.marks / "pwn").exists()
    assert not [one for one in containers.api.volumes() if one["Name"] in odd]


def test_c087_a_container_reaches_the_service_at_the_address_it_is_told(
    client: Client, containers: DockerService, python: str
) -> None:
    code = "import os, urllib.request as u\n"
    code += "print(u.urlopen(os.environ['NHX_JOBS_URL'] + '/health/ready').status)"
    run(client, "c087", ["python3", "-c", code], image=PYTHON)
    assert client.wait("c087")["status"] == "completed", client.messages("c087")
    assert client.messages("c087") == ["200"]


def test_c091_a_job_gets_nothing_that_its_profile_does_not_give(
    client: Client, containers: DockerService
) -> None:
    step = container_step(["sh", "-c", "echo up; sleep 300"])
    wishes: Json = {
        "privileged": True,
        "volumes": ["/:/host"],
        "hostPath": "/",
        "Binds": ["/:/host"],
        "devices": ["/dev/kmsg"],
        "cap_add": ["ALL"],
        "pid_mode": "host",
        "user": "0",
    }
    step["executor"]["container"] |= wishes
    step["executor"] |= wishes
    submit(client, "c091", step | wishes)
    first_line(client, "c091")
    found = containers.container("c091")
    host = found["HostConfig"]
    assert (host["Privileged"], host["PidMode"], host["CapAdd"], host["Devices"] or []) == (
        False,
        "",
        None,
        [],
    )
    sources = [mount["Source"] for mount in found["Mounts"]]
    assert all(source.startswith(str(containers.docker.folder)) for source in sources), sources
    assert not [mount for mount in found["Mounts"] if "docker.sock" in mount["Source"]]
    act(client, "c091", "cancel")
    client.wait("c091", "cancelled")


def test_c092_many_at_once_keep_every_line(containers: DockerService) -> None:
    def one(number: int) -> None:
        client = containers.client()
        run(client, f"c092-{number}", ["seq", "1", "100000"])
        client.wait(f"c092-{number}", "completed", timeout=50)
        assert client.messages(f"c092-{number}") == [str(i) for i in range(1, 100_001)]

    in_threads(one, 4)


@pytest.mark.time_limit(120)
def test_c098_nothing_piles_up(docker: DockerServer, tmp_path: Path) -> None:
    """Jobs of every end, a restart in the middle: no container, volume or folder of them stays."""
    volumes, containers = len(docker.api.volumes()), len(docker.api.containers())
    service = DockerService(
        tmp_path / "service", docker, profile={"ttl_seconds_after_finished": 1, "stop_timeout_seconds": 1}
    )
    service.add_settings({"jobs": {"storage": {"failed_storage_ttl_seconds": 1}}})
    try:
        client = service.start().client()
        for number in range(12):
            text = ("true", "exit 3", "echo up; sleep 300", "/no/such")[number % 4]
            run(client, f"c098-{number}", f"touch /var/run/scratch/job/x; {text}", env=STORED)
        for number in range(2, 12, 4):
            first_line(client, f"c098-{number}")
            act(client, f"c098-{number}", "cancel")
        service.kill()
        client = service.start().client()
        for number in range(12):
            client.wait(f"c098-{number}", timeout=40)
        gone(service.leftovers, 30)
        gone(lambda: [n for n in range(12) if service.storage_of(f"c098-{n}").exists()], 30)
        assert client.job("c098-0")["status"] == "completed"
        assert client.messages("c098-2") == ["up"]
    finally:
        service.close()
    assert (len(docker.api.volumes()), len(docker.api.containers())) == (volumes, containers)

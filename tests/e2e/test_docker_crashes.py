"""Service and engine are killed at the worst moments; people and others reach for our containers."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bed.docker import DockerServer
from tests.bed.docker_images import BUSYBOX
from tests.bed.proxy import DROP, LOSE, Proxy, http_answer
from tests.e2e.docker_kit import (
    STORAGE,
    DockerService,
    act,
    container_step,
    error_of,
    first_line,
    gone,
    run,
    says,
    submit,
    task_of,
)
from tests.e2e.service import Client, Json, until

# Engines of busy machines take their time: what hangs is still ended.
pytestmark = pytest.mark.time_limit(180)

CREATE = r"^POST (/v[\d.]+)?/containers/create\b"
START = r"^POST (/v[\d.]+)?/containers/[^/]+/start\b"
END = r"^POST (/v[\d.]+)?/containers/[^/]+/(stop|kill)\b"
REMOVE = r"^DELETE (/v[\d.]+)?/containers/"


@pytest.fixture
def proxy(docker: DockerServer, tmp_path: Path) -> Iterator[Proxy]:
    proxy = Proxy(str(docker.socket), tmp_path / "engine.sock")
    yield proxy
    proxy.close()


@pytest.fixture
def service(docker: DockerServer, proxy: Proxy, tmp_path: Path) -> Iterator[DockerService]:
    """A service that reaches the engine through the proxy."""
    service = DockerService(
        tmp_path / "service", docker, through=proxy, profile={"ttl_seconds_after_finished": 2}
    )
    yield service.start()
    service.close()


def kill_at(service: DockerService, proxy: Proxy, pattern: str, verdict: str) -> None:
    """Kill the service at the first request that matches: before the engine has it, or after it did it."""
    left = [1]

    def judge(line: str) -> str | None:
        if left[0] and re.search(pattern, line):
            left[0] -= 1
            if verdict == DROP:
                service.kill()
            return verdict
        return None

    proxy.faults.lost = service.kill
    proxy.faults.judge = judge


def dead(service: DockerService) -> bool:
    return service.process is not None and service.process.poll() is not None


@pytest.mark.parametrize("verdict", [DROP, LOSE], ids=["before", "after"])
@pytest.mark.parametrize("pattern", [CREATE, START], ids=["create", "start"])
def test_c018_c029_a_kill_around_create_and_start_runs_the_work_once(
    service: DockerService, proxy: Proxy, pattern: str, verdict: str
) -> None:
    """Each time before the engine got to do it, and after it did and before anybody noted that."""
    kill_at(service, proxy, pattern, verdict)
    run(service.client(), "once", "echo start >> /marks/once; echo hello; sleep .3")
    until(lambda: dead(service), 15)
    service.start()
    client = service.client()
    client.wait("once", "completed")
    assert service.marked("once") == ["start"]
    assert client.messages("once") == ["hello"]
    gone(service.containers)


@pytest.mark.parametrize("verdict", [DROP, LOSE], ids=["before", "after"])
def test_a_kill_during_stop_still_ends_as_cancelled(
    service: DockerService, proxy: Proxy, verdict: str
) -> None:
    client = service.client()
    run(client, "stopped", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep .05; done")
    first_line(client, "stopped")
    kill_at(service, proxy, END, verdict)
    act(client, "stopped", "cancel")
    until(lambda: dead(service), 15)
    service.start()
    client = service.client()
    client.wait("stopped", "cancelled")
    assert client.messages("stopped") == ["up", "bye"]
    gone(service.containers)


def test_a_kill_during_removal_leaves_nothing(service: DockerService, proxy: Proxy) -> None:
    kill_at(service, proxy, REMOVE, LOSE)
    run(service.client(), "removed", "echo hello")
    until(lambda: dead(service), 15)
    service.start()
    service.client().wait("removed", "completed")
    assert service.client().messages("removed") == ["hello"]
    gone(service.leftovers)


def test_c018_an_answer_that_is_lost_without_a_kill_starts_nothing_twice(
    service: DockerService, proxy: Proxy
) -> None:
    lost: list[str] = []

    def judge(line: str) -> str | None:
        for pattern in (CREATE, START):
            if re.search(pattern, line) and lost.count(pattern) < 2:
                lost.append(pattern)
                return LOSE
        return None

    proxy.faults.judge = judge
    client = service.client()
    run(client, "lost", "echo start >> /marks/lost; echo hello")
    client.wait("lost", "completed", timeout=40)
    assert len(lost) >= 3
    assert service.marked("lost") == ["start"]
    assert client.messages("lost") == ["hello"]


def test_c018_a_foreign_container_of_the_same_name_is_never_touched(
    service: DockerService, proxy: Proxy, docker: DockerServer
) -> None:
    """It takes the name between our look and our create."""
    made: list[str] = []

    def judge(line: str) -> str | None:
        found = re.search(rf"{CREATE}\?.*?name=([^&]+)", line)
        if found and not made:
            body = {"Image": BUSYBOX, "Cmd": ["sleep", "100"]}
            made.append(docker.api.post("/containers/create", body, name=found[2])["Id"])
        return None

    proxy.faults.judge = judge
    client = service.client()
    run(client, "taken", "echo mine")
    job = client.wait("taken")
    assert made
    assert docker.api.inspect(made[0])["State"]["Status"] == "created"
    if job["status"] == "error":
        assert "name" in job["error_details"]["message"]
    else:
        assert client.messages("taken") == ["mine"]
    docker.api.delete(f"/containers/{made[0]}")


def numbered(name: str, count: int, pause: str = ".1") -> str:
    return f"echo start >> /marks/{name}; for i in $(seq {count}); do echo $i; sleep {pause}; done"


def until_told(name: str) -> str:
    """Numbered lines until the file /marks/stop is there: work that outlives any absence of its engine."""
    return (
        f"echo start >> /marks/{name}; i=0; "
        "while [ ! -e /marks/stop ]; do i=$((i+1)); echo $i; sleep .1; done; echo $i > /marks/last-" + name
    )


def check(service: DockerService, client: Client, name: str) -> None:
    """It ran once, to its end, and each of its lines is there."""
    assert client.wait(name, timeout=60)["status"] == "completed", client.status(name)
    (last,) = service.marked(f"last-{name}")
    assert client.messages(name) == [str(i) for i in range(1, int(last) + 1)]
    assert service.marked(name) == ["start"]


@pytest.mark.time_limit(150)
def test_c051_an_engine_with_live_restore_is_killed_with_ten_jobs(
    service: DockerService, docker: DockerServer
) -> None:
    client = service.client()
    for number in range(10):
        run(client, f"ten-{number}", until_told(f"ten-{number}"))
    for number in range(10):
        first_line(client, f"ten-{number}", 60)
    docker.kill()
    try:
        unhealthy = until(lambda: unhealthy_profiles(client), 40)
        assert {"cpu", "gpu"} <= {one["provider"] for one in unhealthy}
        assert client.job("ten-0")["status"] == "active"
    finally:
        docker.resume()
    until(lambda: not unhealthy_profiles(client), 40)
    before = len(client.messages("ten-0"))
    until(lambda: len(client.messages("ten-0")) > before, 40)
    (service.marks / "stop").touch()
    for number in range(10):
        check(service, client, f"ten-{number}")
    gone(service.containers)


def unhealthy_profiles(client: Client) -> list[Json]:
    profiles = client.get("/apis/jobs/v2/execution-profiles").json
    return [one for one in profiles if one.get("health") and not one["health"].get("ok", True)]


@pytest.mark.time_limit(90)
def test_c051_an_engine_without_live_restore_is_killed_and_its_jobs_say_why(
    start_docker: Callable[..., DockerServer], tmp_path: Path
) -> None:
    engine = start_docker(live_restore=False)
    service = DockerService(tmp_path / "service", engine)
    try:
        client = service.start().client()
        for number in range(4):
            run(client, f"dies-{number}", f"echo start >> /marks/dies-{number}; echo up; sleep 300")
        for number in range(4):
            first_line(client, f"dies-{number}")
        engine.restart(hard=True)
        for number in range(4):
            message = error_of(client, f"dies-{number}", 40)
            assert "engine" in message, message
            assert service.marked(f"dies-{number}") == ["start"]
            up, lost = client.messages(f"dies-{number}")
            assert up == "up"
            assert "may have been lost" in lost  # what was in the pipe when the engine ended it
        run(client, "afterwards", ["true"])
        client.wait("afterwards", "completed")
    finally:
        service.close()


@pytest.mark.time_limit(90)
def test_c024_service_and_engine_are_both_gone_for_a_while(
    service: DockerService, docker: DockerServer
) -> None:
    client = service.client()
    run(client, "both", until_told("both"))
    run(client, "ends-meanwhile", "echo up; sleep 1; exit 5")
    first_line(client, "both")
    first_line(client, "ends-meanwhile")
    docker.kill()
    service.kill()
    time.sleep(1)
    service.spawn()
    time.sleep(1)
    docker.resume()
    service.wait_ready()
    client = service.client()
    assert client.wait("ends-meanwhile", timeout=40)["status"] == "error"
    assert task_of(client, "ends-meanwhile")["status_details"]["exit_code"] == 5
    (service.marks / "stop").touch()
    check(service, client, "both")


def test_a_frozen_engine_delays_and_loses_nothing(service: DockerService, docker: DockerServer) -> None:
    client = service.client()
    run(client, "frozen", numbered("frozen", 20))
    first_line(client, "frozen")
    docker.freeze()
    try:
        run(client, "behind", "echo start >> /marks/behind")
        began = time.monotonic()
        assert client.get("/apis/jobs/v2/workspaces/default/jobs").status == 200
        assert time.monotonic() - began < 1
        time.sleep(2)
    finally:
        docker.thaw()
    client.wait("frozen", "completed", timeout=40)
    client.wait("behind", "completed", timeout=40)
    assert client.messages("frozen") == [str(i) for i in range(1, 21)]
    assert service.marked("behind") == ["start"]


def test_c051_a_start_without_an_engine_picks_it_up_when_it_comes(
    docker: DockerServer, tmp_path: Path
) -> None:
    proxy = Proxy(str(docker.socket), tmp_path / "engine.sock")
    proxy.close()
    service = DockerService(tmp_path / "service", docker, through=proxy)
    late: Proxy | None = None
    try:
        client = service.start().client()
        assert "ocker" in service.stderr.read_text()
        client.create("host", ["echo", "host"])
        client.wait("host", "completed")
        step = container_step(["echo", "container"])
        body = {"name": "early", "source": "t", "spec": {}, "platform_spec": {"steps": [step]}}
        answer = client.post("/apis/jobs/v2/workspaces/default/jobs", body)
        assert answer.status in (201, 422), answer
        late = Proxy(str(docker.socket), tmp_path / "engine.sock")
        until(lambda: ("cpu", "default") in providers(client), 25)
        run(client, "later", ["echo", "container"])
        client.wait("later", "completed")
        assert client.messages("later") == ["container"]
    finally:
        service.close()
        if late is not None:
            late.close()


def providers(client: Client) -> set[tuple[str, str]]:
    profiles = client.get("/apis/jobs/v2/execution-profiles").json
    return {
        (one["provider"], one["profile"]) for one in profiles if (one.get("health") or {}).get("ok", True)
    }


def test_c063_a_stop_that_fails_is_asked_again_and_told(service: DockerService, proxy: Proxy) -> None:
    client = service.client()
    run(client, "stubborn", "echo up; sleep 300")
    first_line(client, "stubborn")
    faults = proxy.faults
    faults.answer = http_answer(500, '{"message":"the engine has a bad day"}')
    faults.answer_to, faults.answers = END, 10_000
    act(client, "stubborn", "cancel")
    time.sleep(1)
    assert client.job("stubborn")["status"] == "cancelling"
    service.kill()
    service.start()
    client = service.client()
    time.sleep(0.5)
    assert client.job("stubborn")["status"] == "cancelling"
    assert service.container("stubborn")["State"]["Running"]
    faults.answers = 0
    client.wait("stubborn", "cancelled", timeout=30)
    gone(service.containers)


def test_paused_by_hand_keeps_its_state_and_goes_on(service: DockerService, docker: DockerServer) -> None:
    client = service.client()
    run(client, "held", numbered("held", 15))
    first_line(client, "held")
    place = f"/containers/{service.container('held')['Id']}"
    docker.api.post(f"{place}/pause")
    says(client, "held", "paused")
    assert client.job("held")["status"] == "active"
    docker.api.post(f"{place}/unpause")
    client.wait("held", "completed")
    assert client.messages("held") == [str(i) for i in range(1, 16)]


def test_paused_by_hand_can_be_cancelled(service: DockerService, docker: DockerServer) -> None:
    client = service.client()
    run(client, "held-cancel", "echo up; sleep 300")
    first_line(client, "held-cancel")
    docker.api.post(f"/containers/{service.container('held-cancel')['Id']}/pause")
    act(client, "held-cancel", "cancel")
    client.wait("held-cancel", "cancelled", timeout=30)
    gone(service.containers)


def test_renamed_by_hand_is_found_by_its_labels(service: DockerService, docker: DockerServer) -> None:
    client = service.client()
    run(client, "renamed", numbered("renamed", 10))
    first_line(client, "renamed")
    docker.api.post(
        f"/containers/{service.container('renamed')['Id']}/rename", name=f"bed-renamed-{time.time_ns()}"
    )
    service.kill()
    service.start()
    client = service.client()
    client.wait("renamed", "completed")
    assert client.messages("renamed") == [str(i) for i in range(1, 11)]
    assert service.marked("renamed") == ["start"]
    gone(service.containers)


def test_restarted_by_hand_goes_on_as_the_same_job(service: DockerService, docker: DockerServer) -> None:
    client = service.client()
    run(client, "restarted", 'echo up; n=$(cat /n 2>/dev/null); echo x >> /n; [ -n "$n" ] || sleep 300')
    first_line(client, "restarted")
    docker.api.post(f"/containers/{service.container('restarted')['Id']}/restart", t=1)
    job = client.wait("restarted")
    assert job["status"] in ("completed", "error"), job
    assert set(client.messages("restarted")) == {"up"}
    gone(lambda: [one for one in service.containers() if one["State"] == "running"])


def test_c041_removed_and_killed_by_hand_are_told_apart(service: DockerService, docker: DockerServer) -> None:
    client = service.client()
    for name in ("rm", "killed", "stays"):
        run(client, f"hand-{name}", "echo up; sleep 3")
        first_line(client, f"hand-{name}")
    docker.api.delete(f"/containers/{service.container('hand-rm')['Id']}", force=True)
    docker.api.post(f"/containers/{service.container('hand-killed')['Id']}/kill")
    assert "gone" in (text := error_of(client, "hand-rm")) or "removed" in text or "disappeared" in text, text
    assert "SIGKILL" in error_of(client, "hand-killed")
    client.wait("hand-stays", "completed")
    for name in ("rm", "killed", "stays"):
        assert client.messages(f"hand-{name}") == ["up"]


def test_two_services_on_one_engine_leave_each_other_alone(
    service: DockerService, docker: DockerServer, tmp_path: Path
) -> None:
    other = DockerService(tmp_path / "other", docker, profile={"ttl_seconds_after_finished": 0})
    try:
        theirs = other.start().client()
        client = service.client()
        run(client, "mine", "echo up; sleep 300")
        run(theirs, "mine", "echo theirs; sleep 300")
        first_line(client, "mine")
        first_line(theirs, "mine")
        act(theirs, "mine", "cancel")
        theirs.wait("mine", "cancelled")
        gone(other.containers)
        other.kill()
        other.start()
        assert service.container("mine")["State"]["Running"]
        assert client.job("mine")["status"] == "active"
        act(client, "mine", "cancel")
        client.wait("mine", "cancelled")
    finally:
        other.close()


def test_volumes_that_do_not_exist(docker: DockerServer, tmp_path: Path) -> None:
    """Named in the error, or made where the profile says so."""

    def mount(name: str, create: bool) -> Json:
        return {"volume_name": name, "mount_path": "/extra", "allow_create_volume": create}

    extra = f"bed-extra-{time.time_ns():x}"
    executors = [
        {"provider": "cpu", "profile": name, "config": {"storage": {"volume_name": "", **volumes}}}
        for name, volumes in {
            "absent": {"additional_volume_mounts": [mount("no-such-volume", False)]},
            "made": {"additional_volume_mounts": [mount(extra, True)]},
            "memory": {
                "additional_volume_mounts": [{"volume_name": "", "mount_path": "/extra", "kind": "tmpfs"}]
            },
        }.items()
    ]
    service = DockerService(tmp_path / "service", docker, executors=executors)
    try:
        client = service.start().client()
        for name in ("absent", "made", "memory"):
            run(client, name, "touch /extra/x && df /extra | tail -1", profile=name)
        assert "no-such-volume" in error_of(client, "absent")
        client.wait("made", "completed")
        client.wait("memory", "completed")
        assert client.messages("memory")[0].startswith("tmpfs")
        assert not [one for one in docker.api.volumes() if one["Name"] == "no-such-volume"]
        body = {
            "name": "no-storage",
            "source": "t",
            "spec": {},
            "platform_spec": {"steps": [container_step(["true"], profile="memory", env={STORAGE: "/s"})]},
        }
        answer = client.post("/apis/jobs/v2/workspaces/default/jobs", body)
        assert answer.status == 422, answer
    finally:
        service.close()
        docker.api.delete(f"/volumes/{extra}", force=True)


def test_c020_gpus_that_cannot_be_had(start_docker: Callable[..., DockerServer], tmp_path: Path) -> None:
    """An engine without the runtime; a device that the pool doesn't have; more than there are."""
    engine = start_docker(gpus=False)
    platform = {
        "runtime": "docker",
        "docker": {"host": engine.host, "gpu_device_count": 2, "reserved_gpu_device_ids": "0,7"},
    }
    service = DockerService(tmp_path / "service", engine, platform=platform)
    try:
        client = service.start().client()
        run(client, "no-runtime", ["true"], provider="gpu")
        message = error_of(client, "no-runtime", 10)
        assert "GPU" in message
        gone(service.containers)
        body = {
            "name": "too-many",
            "source": "t",
            "spec": {},
            "platform_spec": {"steps": [container_step(["true"], provider="gpu", resources={"num_gpus": 2})]},
        }
        answer = client.post("/apis/jobs/v2/workspaces/default/jobs", body)
        assert answer.status == 422, answer
        run(client, "again", ["true"], provider="gpu")
        assert "GPU" in error_of(client, "again", 10)
    finally:
        service.close()


def test_c019_c067_silence_and_cuts_on_the_way_to_the_engine(docker: DockerServer, tmp_path: Path) -> None:
    """C067, C019: a log whose connection is cut again and again is whole, once, and in order."""
    proxy = Proxy(str(docker.socket))
    service = DockerService(tmp_path / "service", docker, through=proxy)
    try:
        client = service.start().client()
        text = "for i in $(seq 60); do echo same; echo same; echo $i; sleep .05; done"
        run(client, "cuts", text)
        first_line(client, "cuts")
        for _ in range(6):
            time.sleep(0.4)
            proxy.cut()
        client.wait("cuts", "completed", timeout=30)
        expected = [line for i in range(1, 61) for line in ("same", "same", str(i))]
        assert client.messages("cuts") == expected
        run(client, "silent", "sleep 4; echo done")
        client.wait("silent", "active")
        time.sleep(1)
        proxy.faults.silent = True
        time.sleep(1.5)
        proxy.faults.silent = False
        proxy.cut()
        client.wait("silent", "completed", timeout=30)
        assert client.messages("silent") == ["done"]
    finally:
        service.close()
        proxy.close()


def test_idle_containers_cost_next_to_no_calls(service: DockerService, proxy: Proxy) -> None:
    client = service.client()
    steps = [container_step(["sleep", "300"])]
    for number in range(12):
        submit(client, f"idle-{number}", *steps)
    for number in range(12):
        client.wait(f"idle-{number}", "active")
    time.sleep(1)
    before = len(proxy.asked())
    time.sleep(5)
    asked = proxy.asked()[before:]
    assert len(asked) <= 6, asked
    for number in range(12):
        act(client, f"idle-{number}", "cancel")
    for number in range(12):
        client.wait(f"idle-{number}", "cancelled")

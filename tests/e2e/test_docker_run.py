"""Jobs in containers, through the API, on a real engine: what a user has of them."""

import json
import os
import time

import pytest

from tests.bed.docker_images import BUSYBOX, ENTRYPOINT, NO_SHELL, PYTHON, USER, USER_GID, USER_UID
from tests.e2e.docker_kit import (
    PREFIX,
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
from tests.e2e.service import JOBS, Client, in_threads, until

# Engines of busy machines take their time: what hangs is still ended.
pytestmark = pytest.mark.time_limit(180)

STORED = {STORAGE: "/var/run/scratch/job"}


@pytest.fixture
def client(containers: DockerService) -> Client:
    return containers.client()


def test_a_job_runs_and_tells_its_end(containers: DockerService, client: Client) -> None:
    run(client, "runs", "echo out; echo err >&2; exit 3", profile="kept")
    assert "code 3" in error_of(client, "runs")
    assert set(client.messages("runs")) == {"out", "[stderr] err"}
    task = task_of(client, "runs")
    assert task["status_details"]["exit_code"] == 3
    assert containers.container("runs")["HostConfig"]["Init"] is True


def test_the_container_is_as_the_contract_says(containers: DockerService, client: Client) -> None:
    limits = {"limits": {"cpu": "250m", "memory": "64Mi"}}
    run(client, "shape", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes; sleep 300", resources=limits)
    first_line(client, "shape")
    found = containers.container("shape")
    labels = {key.removeprefix(PREFIX): value for key, value in found["Config"]["Labels"].items()}
    step = client.status("shape")["steps"][0]
    assert labels["managed_by"] == "jobs-controller"
    assert labels["job_execution_backend"] == "docker"
    assert (labels["job_workspace_id"], labels["job_id"]) == ("default", "shape")
    assert (labels["job_step_id"], labels["job_step_name"]) == (step["id"], "step-1")
    assert labels["job_task_id"] == task_of(client, "shape")["name"]
    assert (labels["job_type"], labels["uses_persistent_storage"]) == ("job", "false")
    assert len(labels["jobs_controller_instance_id"]) == 32
    assert labels["job_execution_profile"] in ("default", "cpu/default")
    host = found["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["Init"]) == (250_000_000, 64 << 20, True)
    assert (host["NetworkMode"], host["LogConfig"]["Type"]) == ("host", "json-file")
    assert int(host["LogConfig"]["Config"]["max-file"]) >= 2
    assert host["Privileged"] is False
    assert client.messages("shape")[0] == str(64 << 20)
    act(client, "shape", "cancel")
    client.wait("shape", "cancelled")


def test_variables_and_their_precedence(client: Client) -> None:
    step = container_step(
        ["env"], env={"LEVEL": "s", "NHX_BASE_URL": "mine", "PATH": "/bin"}, config={"alpha": 1}
    )
    submit(client, "variables", step)
    client.wait("variables", "completed")
    env = dict(line.partition("=")[::2] for line in client.messages("variables"))
    assert (env["FROM_PROFILE"], env["LEVEL"], env["PATH"]) == ("1", "s", "/bin")
    assert env["NHX_BASE_URL"].startswith("http")
    assert env["NEMO_JOB_ID"] == "variables"
    assert env["NEMO_JOB_TASK"] == task_of(client, "variables")["name"]
    assert env["NEMO_JOB_STEP_CONFIG_FILE_PATH"] == "/var/run/scratch/config/job_step_config.json"
    assert env["NEMO_JOB_EPHEMERAL_TASK_STORAGE_PATH"] == "/var/run/scratch/task"
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["PYTHONUNBUFFERED"]) == ("void", "1")
    assert "NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH" not in env


@pytest.mark.parametrize(("image", "name"), [(BUSYBOX, "config-root"), (NO_SHELL, "config-no-shell")])
def test_the_config_file_is_there_without_a_shell(client: Client, image: str, name: str) -> None:
    command = ["/bin/cat", "/var/run/scratch/config/job_step_config.json"]
    submit(client, name, container_step(command, image=image, config={"ü": [1, {"x": None}]}))
    client.wait(name, "completed")
    assert json.loads("".join(client.messages(name))) == {"ü": [1, {"x": None}]}


def test_entrypoint_of_the_image_is_kept_and_the_step_s_own_wins(client: Client) -> None:
    run(client, "entry-kept", ["echo", "mine"], image=ENTRYPOINT)
    run(client, "entry-own", ["mine"], image=ENTRYPOINT, entrypoint=["/bin/echo", "own"])
    run(client, "entry-none", [], image=ENTRYPOINT)
    for name, lines in {
        "entry-kept": ["entrypoint: echo mine", "mine"],
        "entry-own": ["own mine"],
        "entry-none": ["entrypoint: echo image command", "image command"],
    }.items():
        client.wait(name, "completed")
        assert client.messages(name) == lines


def test_c037_a_user_of_the_image_owns_its_folders_and_nobody_else(
    containers: DockerService, client: Client
) -> None:
    look = (
        "id -u; for p in /var/run/scratch/task /var/run/scratch/job $NEMO_JOB_RESULTS_PATH; do "
        "touch $p/mine && stat -c '%u:%g:%a' $p; done; cat $NEMO_JOB_STEP_CONFIG_FILE_PATH"
    )
    run(client, "owner", look, image=USER, env=STORED)
    assert client.wait("owner")["status"] == "completed", client.messages("owner")
    mine = f"{USER_UID}:{USER_GID}:700"
    assert client.messages("owner") == [str(USER_UID), mine, mine, mine, "{}"]
    place = containers.storage_of("owner")
    assert not place.exists() or os.stat(place).st_uid == USER_UID
    run(client, "other-owner", "ls /var/run/scratch/job; id -u", env=STORED)
    client.wait("other-owner", "completed")
    assert client.messages("other-owner") == ["0"]


def test_storage_goes_from_step_to_step_and_away_at_the_end(
    containers: DockerService, client: Client
) -> None:
    write = container_step(["sh", "-c", "echo kept > /var/run/scratch/job/file"], env=STORED)
    read = container_step(["sh", "-c", "cat /var/run/scratch/job/file; sleep .5"], env=STORED)
    submit(client, "steps-share", write, read)
    client.wait("steps-share", "completed")
    assert client.messages("steps-share") == ["kept"]
    gone(lambda: containers.storage_of("steps-share").exists())
    gone(lambda: containers.volumes_of("steps-share"))


def test_results_are_collected_and_links_are_not_followed(client: Client) -> None:
    text = "cd $NEMO_JOB_RESULTS_PATH; echo model > model; mkdir -p dir/e; echo x > dir/e/f; "
    text += "ln -s /etc/passwd out; ln -s model same"
    run(client, "results", text)
    client.wait("results", "completed")
    answer = client.get(f"{JOBS}/results/results")
    names = {one["name"] for one in answer.json["data"]}
    assert names == {"model", "dir", "same"}, answer
    data = client.get(f"{JOBS}/results/results/model/download")
    assert (data.status, data.body) == (200, b"model\n")


@pytest.mark.parametrize(
    ("name", "text", "code", "signal"),
    [("sig-kill", "kill -9 $$", 137, "SIGKILL"), ("sig-segv", "kill -11 $$", 139, "SIGSEGV")],
)
def test_c017_signals_are_named(client: Client, name: str, text: str, code: int, signal: str) -> None:
    run(client, name, text)
    assert signal in error_of(client, name)
    details = task_of(client, name)["status_details"]
    assert (details["exit_code"], details["signal"]) == (code, signal)


def test_out_of_memory_is_named_and_the_container_is_kept(containers: DockerService, client: Client) -> None:
    eat = "x=0123456789abcdef; while :; do x=$x$x; done"
    run(client, "oom", eat, resources={"limits": {"memory": "16Mi"}})
    message = error_of(client, "oom")
    assert "memory" in message
    assert client.status("oom")["steps"][0]["status_details"].get("reason", "oom") == "oom"
    assert containers.container("oom")["State"]["OOMKilled"] is True


def test_a_program_that_is_missing_is_named(client: Client) -> None:
    run(client, "no-program", ["/no/such/program"])
    message = error_of(client, "no-program")
    assert "/no/such/program" in message
    assert "Traceback" not in message


def test_pause_keeps_the_container_and_its_files(containers: DockerService, client: Client) -> None:
    text = "echo run >> /tmp/runs; wc -l < /tmp/runs; [ $(wc -l < /tmp/runs) = 2 ] || sleep 300"
    run(client, "pauses", text)
    first_line(client, "pauses")
    first = containers.container("pauses")["Id"]
    act(client, "pauses", "pause")
    client.wait("pauses", "paused")
    assert containers.container("pauses")["State"]["Running"] is False
    act(client, "pauses", "resume")
    client.wait("pauses", "completed")
    assert client.messages("pauses") == ["1", "2"]
    gone(lambda: [one for one in containers.containers() if one["Id"] == first])


def test_a_paused_job_can_be_cancelled_and_leaves_nothing(containers: DockerService, client: Client) -> None:
    run(client, "pause-cancel", "echo up; sleep 300", profile="brief")
    first_line(client, "pause-cancel")
    act(client, "pause-cancel", "pause")
    client.wait("pause-cancel", "paused")
    act(client, "pause-cancel", "cancel")
    client.wait("pause-cancel", "cancelled")
    gone(lambda: containers.containers(f"{PREFIX}job_id=pause-cancel"))
    gone(lambda: containers.volumes_of("pause-cancel"))


def test_c054_names_with_at_and_plus(containers: DockerService, client: Client) -> None:
    name = "odd@name+with.all_of-it"
    run(client, name, "echo $NEMO_JOB_ID; touch /var/run/scratch/job/x", env=STORED, profile="kept")
    client.wait(name, "completed")
    assert client.messages(name) == [name]
    assert containers.container(name)["Config"]["Labels"][f"{PREFIX}job_id"] == name


def test_c032_shared_memory_and_gpus(client: Client) -> None:
    text = "df -k /dev/shm | tail -1 | awk '{print $2}'; echo $NVIDIA_VISIBLE_DEVICES"
    two = {"num_gpus": 2}
    run(client, "gpu-two", text, provider="gpu", resources=two)
    run(client, "gpu-shm", text, provider="gpu", resources={"num_gpus": 1, "shm_size": "1Gi"})
    client.wait("gpu-two", "completed")
    client.wait("gpu-shm", "completed")
    size, ids = client.messages("gpu-two")
    assert (size, len(set(ids.split(",")))) == (str(16 << 20), 2)
    size, ids = client.messages("gpu-shm")
    assert (size, len(ids.split(","))) == (str(1 << 20), 1)


def test_python_prints_at_once_and_uses_what_it_used(
    docker: object, containers: DockerService, client: Client
) -> None:
    containers.docker.python_image()
    text = "x = bytearray(64 << 20); print('up'); s = sum(range(3_000_000)); import time; time.sleep(300)"
    run(client, "python", ["python3", "-c", text], image=PYTHON)
    first_line(client, "python")
    act(client, "python", "cancel")
    client.wait("python", "cancelled")
    details = task_of(client, "python")["status_details"]
    if "peak_memory_bytes" in details:  # an engine that tells it
        assert 64 << 20 < details["peak_memory_bytes"] < 300 << 20
    if "cpu_seconds" in details:
        assert 0.02 < details["cpu_seconds"] < 30


@pytest.mark.time_limit(180)
def test_a_million_lines_are_all_there(client: Client) -> None:
    run(client, "million", ["seq", "1", "1000000"])
    client.wait("million", "completed", timeout=90)
    numbers = client.messages("million")
    assert len(numbers) == 1_000_000
    assert all(int(text) == number for number, text in enumerate(numbers, 1))


@pytest.mark.time_limit(120)
def test_two_hundred_jobs_four_at_a_time(containers: DockerService, client: Client) -> None:
    """Never more than four containers at once, each job once, nothing left."""
    most = 0

    def create(number: int) -> None:
        mine = containers.client()
        for turn in range(50):
            run(mine, f"two-hundred-{number}-{turn}", ["true"], profile="four")

    in_threads(create, 4)
    names = [f"two-hundred-{number}-{turn}" for number in range(4) for turn in range(50)]
    label = f"{PREFIX}job_execution_profile"
    while names:
        up = [
            one
            for one in containers.containers()
            if one["State"] == "running" and one["Labels"].get(label, "").endswith("four")
        ]
        most = max(most, len(up))
        job = client.job(names[-1])
        if job["status"] in ("completed", "error", "cancelled"):
            assert job["status"] == "completed", client.status(names[-1])
            names.pop()
        else:
            time.sleep(0.1)
    assert 1 <= most <= 4
    gone(lambda: containers.containers(f"{label}=four") + containers.containers(f"{label}=cpu/four"))


def test_profiles_are_registered(client: Client) -> None:
    profiles = client.get("/apis/jobs/v2/execution-profiles").json
    kinds = {(one["provider"], one["profile"]) for one in profiles}
    assert {("cpu", "default"), ("gpu", "default"), ("subprocess", "default")} <= kinds


def test_c077_a_time_limit_ends_the_container(containers: DockerService, client: Client) -> None:
    run(client, "limit", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep .1; done", profile="short")
    assert "1 s (ttl_seconds_active)" in error_of(client, "limit")
    assert client.messages("limit") == ["up", "bye"]
    assert containers.container("limit")["State"]["Running"] is False


def test_c010_grace_and_force(client: Client) -> None:
    """The profile's stop_timeout_seconds lies between SIGTERM and SIGKILL."""
    run(client, "saves", "trap 'sleep .5; echo saved; exit 0' TERM; echo up; while :; do sleep .05; done")
    run(client, "ignores", "trap '' TERM; echo up; while :; do sleep .05; done")
    for name in ("saves", "ignores"):
        first_line(client, name)
        began = time.monotonic()
        act(client, name, "cancel")
        client.wait(name, "cancelled")
        assert time.monotonic() - began < 7
    assert client.messages("saves")[-1] == "saved"
    assert task_of(client, "ignores")["status_details"]["signal"] == "SIGKILL"


def test_start_phases_are_told(client: Client) -> None:
    run(client, "one-a", "sleep 1", profile="one")
    run(client, "one-b", "true", profile="one")
    says(client, "one-b", "1|place|wait")
    client.wait("one-b", "completed")


def test_c075_deleted_jobs_take_all_with_them(containers: DockerService, client: Client) -> None:
    run(client, "deleted", "touch /var/run/scratch/job/x; exit 1", env=STORED)
    client.wait("deleted", "error")
    assert client.call("DELETE", f"{JOBS}/deleted").status == 204
    gone(lambda: containers.containers(f"{PREFIX}job_id=deleted"))
    gone(lambda: containers.volumes_of("deleted"))
    gone(lambda: containers.storage_of("deleted").exists())
    until(lambda: client.get(f"{JOBS}/deleted").status == 404)

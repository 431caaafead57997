import json
from dataclasses import replace
from typing import Any

import pytest

from nemo_jobs.backends.api import PlatformInfo, Rejected
from nemo_jobs.backends.docker import labels, spec
from nemo_jobs.backends.docker.spec import ImageFacts, Site
from nemo_jobs.domain.names import task_name
from tests.backends.docker.plans import KEY, environment_of, make_plan, targets_of

SITE = Site("me", "host:1", fallback_image="my-registry/nhx-tasks:local")
GI = 1 << 30


def body_of(*given: Any, **changes: Any) -> dict[str, Any]:
    return spec.container_body(make_plan(**changes), *(given or (SITE,)))


def test_the_whole_body_of_a_plain_step() -> None:
    task = task_name(KEY)
    plan = make_plan(config={"a": 1}, env={"OWN": "value"})
    volume = {"Labels": labels.volume_labels(plan, "me"), "NoCopy": True}
    ways = (("storage", "task"), ("config", "config"))
    assert spec.container_body(plan, SITE) == {
        "Image": "image:1",
        "Cmd": ["run", "it"],
        "Env": [
            "PYTHONUNBUFFERED=1",
            "NEMO_JOB_ID=a-job",
            "NEMO_JOB_ATTEMPT_ID=platform-job-attempt-1",
            "NEMO_JOB_STEP=a-step",
            "NEMO_JOB_WORKSPACE=space",
            "NEMO_JOB_FILESET=job-fileset-a-job",
            f"NEMO_JOB_TASK={task}",
            "NEMO_JOB_SECRETS=",
            "NEMO_JOB_EPHEMERAL_TASK_STORAGE_PATH=/var/run/scratch/task",
            "NEMO_JOB_STEP_CONFIG_STORAGE_PATH=/var/run/scratch/config",
            "NEMO_JOB_STEP_CONFIG_FILE_PATH=/var/run/scratch/config/job_step_config.json",
            "NHX_JOB_LAUNCHER_OTLP_LOGS_ENDPOINT=http://127.0.0.1:8080/apis/files/v2/workspaces/space/"
            "filesets/job-fileset-a-job/otlp/v1/logs",
            'NHX_PRINCIPAL={"id":"someone"}',
            "OWN=value",
            "NEMO_JOB_RESULTS_PATH=/var/run/scratch/task/.results",
            "NHX_FILES_URL=http://127.0.0.1:8080",
            "NHX_JOBS_URL=https://jobs.example",
            "NHX_BASE_URL=http://localhost:8080",
            "LOG_FORMAT=plain",
            "LOG_LEVEL=INFO",
            "NHX_CONFIG_WARNINGS_DISABLED=1",
            "NVIDIA_VISIBLE_DEVICES=void",
        ],
        "Labels": {
            **labels.container_labels(plan, "me", "host:1"),
            "nemo-jobs.results": "/var/run/scratch/task/.results",
            "nemo-jobs.storage-volume": "nemo-jobs-storage",
            "nemo-jobs.storage-image": "docker.io/library/busybox:stable",
        },
        "StopSignal": "SIGTERM",
        "HostConfig": {
            "Init": True,
            "NetworkMode": "host",
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {
                "Type": "json-file",
                "Config": {
                    "max-size": str(256 << 20),
                    "max-file": "4",
                    "labels": "nhx.nvidia.com/job_id,nhx.nvidia.com/job_task_id",
                },
            },
            "Mounts": [
                {
                    "Type": "volume",
                    "Source": f"task-{kind}-space-a-job-{task}",
                    "Target": f"/var/run/scratch/{folder}",
                    "VolumeOptions": volume,
                }
                for kind, folder in ways
            ],
        },
    }


def test_the_whole_body_of_a_step_with_gpus_limits_and_storage() -> None:
    plan = make_plan(
        provider="gpu",
        devices=("0", "GPU-5a"),
        resources={"limits": {"cpu": "2.5", "memory": "4Gi"}, "requests": {"cpu": "1"}},
        env={spec.PERSISTENT_VARIABLE: "/job", spec.EPHEMERAL_VARIABLE: "/mine"},
    )
    mount = {"Type": "bind", "Source": "/there", "Target": "/job"}
    body = spec.container_body(plan, SITE, job_storage=mount)
    host = body["HostConfig"]
    assert host["DeviceRequests"] == [
        {"Driver": "nvidia", "DeviceIDs": ["0", "GPU-5a"], "Capabilities": [["gpu"]]}
    ]
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (2_500_000_000, 4 * GI, 4 * GI)
    assert host["ShmSize"] == 16 * GI
    assert "NVIDIA_VISIBLE_DEVICES" not in environment_of(body)
    assert targets_of(body) == ["/mine", "/var/run/scratch/config", "/job"]
    assert body["Labels"][labels.USES_STORAGE] == "true"
    environment = environment_of(body)
    assert environment[spec.PERSISTENT_VARIABLE] == "/job"
    assert environment[spec.EPHEMERAL_VARIABLE] == "/mine"
    assert environment["NEMO_JOB_RESULTS_PATH"] == "/mine/.results"


def test_more_processors_than_there_are_is_no_limit() -> None:
    site = replace(SITE, cpus=2)
    assert body_of(site, resources={"limits": {"cpu": "64"}})["HostConfig"]["NanoCpus"] == 2 * 10**9
    assert body_of(site, resources={"limits": {"cpu": "250m"}})["HostConfig"]["NanoCpus"] == 250_000_000


def test_the_order_of_precedence_of_variables() -> None:
    profile = {"env": {"A": "profile", "B": "profile", "PYTHONUNBUFFERED": "0", "LOG_LEVEL": "profile"}}
    env = {"B": "step", "NEMO_JOB_ID": "step", "NHX_BASE_URL": "step", "LOG_FORMAT": "step"}
    found = environment_of(body_of(profile=profile, env=env))
    assert (found["A"], found["B"], found["PYTHONUNBUFFERED"]) == ("profile", "step", "0")
    assert found["NEMO_JOB_ID"] == "step"
    assert (found["NHX_BASE_URL"], found["LOG_FORMAT"], found["LOG_LEVEL"]) == (
        "http://localhost:8080",
        "plain",
        "INFO",
    )


@pytest.mark.parametrize("devices", [(), ("1",)])
def test_a_step_can_not_ask_for_gpus_by_a_variable(devices: tuple[str, ...]) -> None:
    profile = {"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}
    found = environment_of(body_of(devices=devices, env={"NVIDIA_VISIBLE_DEVICES": "all"}, profile=profile))
    assert found.get("NVIDIA_VISIBLE_DEVICES") == (None if devices else "void")


def test_secrets_are_in_the_environment_alone_and_hidden_when_shown() -> None:
    env = {"TOKEN": {"from_secret": {"name": "a-secret"}}, "OTHER": {"from_secret": {"name": "b"}}}
    plan = make_plan(env=env, secret_env={"TOKEN": "the-value", "UNWANTED": "no"})
    body = spec.container_body(plan, SITE)
    assert environment_of(body)["TOKEN"] == "the-value"
    assert environment_of(body)["NEMO_JOB_SECRETS"] == "TOKEN=space/a-secret,OTHER=space/b"
    assert "UNWANTED" not in environment_of(body)
    assert "the-value" not in json.dumps({**body, "Env": []})
    shown = spec.masked(body, plan)
    assert "the-value" not in json.dumps(shown)
    assert environment_of(shown)["TOKEN"] == "***"


def test_a_token_is_a_file_and_takes_the_place_of_the_principal() -> None:
    plan = make_plan(token="the-token")
    body = spec.container_body(plan, SITE)
    path = "/var/run/secrets/nemo-helix/workload"
    found = environment_of(body)
    assert found["NHX_WORKLOAD_IDENTITY_TOKEN_FILE"] == f"{path}/token"
    assert "NHX_PRINCIPAL" not in found
    mount = body["HostConfig"]["Mounts"][-1]
    assert (mount["Target"], mount["ReadOnly"]) == (path, True)
    assert body["Labels"][labels.TOKEN_FILE] == f"{path}/token"
    assert body["Labels"][labels.TOKEN_VOLUME] == mount["Source"]
    assert "the-token" not in json.dumps(body)


@pytest.mark.parametrize(
    ("network", "site", "expected"),
    [
        ("host", SITE, "http://localhost:8080"),
        ("host", replace(SITE, reaches_host=True), "http://localhost:8080"),
        ("none", replace(SITE, reaches_host=True), "http://localhost:8080"),
        ("container:x", replace(SITE, reaches_host=True), "http://localhost:8080"),
        ("bridge", SITE, "http://localhost:8080"),
        ("bridge", replace(SITE, reaches_host=True), "http://host.docker.internal:8080"),
        ("bridge", replace(SITE, loopback="10.0.0.5", reaches_host=True), "http://10.0.0.5:8080"),
        ("host", replace(SITE, loopback="fd00::5"), "http://[fd00::5]:8080"),
    ],
)
def test_addresses_of_this_machine_are_such_that_tasks_reach_it(
    network: str, site: Site, expected: str
) -> None:
    body = body_of(site, profile={"networking": {"job_container_network": network}})
    found = environment_of(body)
    assert found["NHX_BASE_URL"] == expected
    assert found["NHX_JOBS_URL"] == "https://jobs.example"
    assert found["NHX_JOB_LAUNCHER_OTLP_LOGS_ENDPOINT"].startswith(found["NHX_FILES_URL"])
    by_name = "host.docker.internal" in expected
    assert body["HostConfig"].get("ExtraHosts") == (
        ["host.docker.internal:host-gateway"] if by_name else None
    )


def test_a_socket_file_is_no_address_in_a_container() -> None:
    platform = PlatformInfo({"base": "unix:///run/jobs.sock", "files": "unix:///run/jobs.sock"})
    found = environment_of(body_of(platform=platform))
    assert not [name for name in found if name.startswith(("NHX_BASE", "NHX_FILES", "NHX_JOB_LAUNCHER"))]


@pytest.mark.parametrize(
    ("container", "default", "expected"),
    [
        ({}, None, "image:1"),
        ({"image": None}, "profile:2", "profile:2"),
        ({"image": "own:3"}, "profile:2", "own:3"),
        ({"image": None}, None, "my-registry/nhx-tasks:local"),
    ],
)
def test_the_choice_of_the_image(container: dict[str, Any], default: str | None, expected: str) -> None:
    assert body_of(container=container, profile={"default_task_image": default})["Image"] == expected


@pytest.mark.parametrize(
    ("entrypoint", "command", "expected"),
    [
        ([], [], {}),
        ([], ["c"], {"Cmd": ["c"]}),
        (["e"], [], {"Entrypoint": ["e"]}),
        (["e"], ["c"], {"Entrypoint": ["e"], "Cmd": ["c"]}),
    ],
)
def test_what_a_step_does_not_say_comes_from_the_image(
    entrypoint: list[str], command: list[str], expected: dict[str, Any]
) -> None:
    body = body_of(container={"entrypoint": entrypoint, "command": command})
    assert {name: body[name] for name in ("Entrypoint", "Cmd") if name in body} == expected


@pytest.mark.parametrize(
    ("entrypoint", "command", "words", "rest"),
    [
        ([], [], ["image-e"], ["image-c"]),
        ([], ["c"], ["image-e"], ["c"]),
        (["e"], [], ["e"], []),
        (["e"], ["c"], ["e"], ["c"]),
    ],
)
def test_a_launcher_runs_what_would_have_run(
    entrypoint: list[str], command: list[str], words: list[str], rest: list[str]
) -> None:
    plan = make_plan(container={"entrypoint": entrypoint, "command": command})
    body = spec.container_body(plan, SITE, launched=ImageFacts(("image-e",), ("image-c",)))
    assert body["Entrypoint"] == ["/jobs-launcher", "run", "--", *words]
    assert body["Cmd"] == rest
    assert "NHX_JOB_LAUNCHER_OTLP_LOGS_ENDPOINT" not in environment_of(body)


def test_volumes_of_the_profile() -> None:
    mounts = [
        {"volume_name": "data", "mount_path": "/data"},
        {"volume_name": "more", "mount_path": "/more", "options": {"NoCopy": True}},
        {"volume_name": "", "mount_path": "/fast", "kind": "tmpfs", "options": {"SizeBytes": 1024}},
        {"volume_name": "ignored", "mount_path": "/tmp2", "kind": "tmpfs"},
    ]
    body = body_of(profile={"storage": {"additional_volume_mounts": mounts}})
    assert body["HostConfig"]["Mounts"][2:] == [
        {"Type": "volume", "Source": "data", "Target": "/data"},
        {"Type": "volume", "Source": "more", "Target": "/more", "VolumeOptions": {"NoCopy": True}},
        {"Type": "tmpfs", "Target": "/fast", "TmpfsOptions": {"SizeBytes": 1024}},
        {"Type": "tmpfs", "Target": "/tmp2"},
    ]


@pytest.mark.parametrize("path", ["", "relative", "/", "//", "/a/../b", "/a\0b"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    for name in (spec.PERSISTENT_VARIABLE, spec.EPHEMERAL_VARIABLE):
        plan = make_plan(env={name: path})
        with pytest.raises(Rejected, match=name):
            spec.storage_path(plan)
            spec.container_body(plan, SITE)


def test_a_path_from_a_secret_is_refused() -> None:
    plan = make_plan(env={spec.PERSISTENT_VARIABLE: {"from_secret": {"name": "s"}}})
    with pytest.raises(Rejected, match="not from a secret"):
        spec.storage_path(plan)


@pytest.mark.parametrize("words", [{"command": ["a\0b"]}, {"entrypoint": ["\ud800"]}])
def test_words_that_no_program_can_get_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(Rejected):
        body_of(container=words)


def test_nothing_but_the_profile_opens_the_host() -> None:
    asked = {
        "privileged": True,
        "volumes": ["/:/host"],
        "devices": ["/dev/mem"],
        "network": "host",
        "pid": "host",
    }
    host = body_of(container=asked)["HostConfig"]
    assert not {"Privileged", "Binds", "Devices", "CapAdd", "PidMode", "IpcMode", "VolumesFrom"} & set(host)
    assert all(mount["Type"] == "volume" for mount in host["Mounts"])

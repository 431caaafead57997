"""The variables of a task and their order of precedence."""

import json
from dataclasses import replace

import pytest

from nemo_jobs.backends.api import Plan, PlatformInfo, Rejected
from nemo_jobs.backends.environment import TaskPaths, check_strings, subprocess_environment, with_loopback
from tests.backends.test_fake import fake_plan

PATHS = TaskPaths(
    "/w/task",
    "/w/job-storage",
    "/w/task/scratch",
    "/w/task/config",
    "/w/task/config/c.json",
    "/w/task/results",
)


def environment(plan: Plan, profile: dict[str, str] | None = None, **inherited: str) -> dict[str, str]:
    return subprocess_environment(plan, PATHS, profile or {}, inherited)


def with_variables(*variables: dict[str, object], **changes: object) -> Plan:
    plan = replace(fake_plan(), **changes)  # type: ignore[arg-type]
    return replace(plan, spec={**plan.spec, "environment": list(variables)})


def test_only_three_names_are_inherited() -> None:
    env = environment(
        fake_plan(), PATH="/bin", VIRTUAL_ENV="/v", NEMO_AGENTS_WHEEL="w", SECRET="x", HOME="/root"
    )
    assert (env["PATH"], env["VIRTUAL_ENV"], env["NEMO_AGENTS_WHEEL"]) == ("/bin", "/v", "w")
    assert "SECRET" not in env
    assert (env["HOME"], env["TMPDIR"], env["LANG"], env["PYTHONUNBUFFERED"]) == (
        "/w/task", "/w/task", "C.UTF-8", "1",
    )  # fmt: skip


def test_the_step_wins_over_the_profile_and_both_over_the_defaults() -> None:
    plan = with_variables({"name": "A", "value": "step"}, {"name": "LANG", "value": "de_DE.UTF-8"})
    env = environment(
        plan, {"A": "profile", "B": "profile", "PATH": "/opt", "PYTHONUNBUFFERED": ""}, PATH="/bin"
    )
    assert (env["A"], env["B"], env["PATH"], env["LANG"]) == ("step", "profile", "/opt", "de_DE.UTF-8")
    assert env["PYTHONUNBUFFERED"] == ""


def test_real_directories_and_the_platforms_addresses_win_over_the_step() -> None:
    plan = with_variables(
        {"name": "NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH", "value": "/var/run/scratch/job"},
        {"name": "NHX_JOBS_URL", "value": "http://elsewhere"},
        platform=PlatformInfo(
            {"jobs": "http://0.0.0.0:8080/x?y=1", "base": "https://host.example"}, "DEBUG", "json"
        ),
    )
    env = environment(plan)
    assert env["NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH"] == "/w/job-storage"
    assert env["NHX_JOBS_URL"] == "http://localhost:8080/x?y=1"
    assert env["NHX_BASE_URL"] == "https://host.example"
    assert "NHX_FILES_URL" not in env
    assert (env["LOG_LEVEL"], env["LOG_FORMAT"], env["NHX_CONFIG_WARNINGS_DISABLED"]) == (
        "DEBUG",
        "json",
        "1",
    )


def test_who_the_task_is() -> None:
    plan = replace(fake_plan(), principal={"id": "someone"})
    env = environment(plan)
    assert env["NEMO_JOB_ID"] == plan.job
    assert env["NEMO_JOB_ATTEMPT_ID"] == plan.attempt_id
    assert env["NEMO_JOB_STEP"] == plan.step
    assert env["NEMO_JOB_TASK"] == plan.task
    assert env["NEMO_JOB_WORKSPACE"] == "default"
    assert env["NEMO_JOB_FILESET"] == plan.fileset
    assert env["NEMO_JOB_SECRETS"] == ""
    assert json.loads(env["NHX_PRINCIPAL"]) == {"id": "someone"}
    assert not any(name.startswith("NHX_JOB_LAUNCHER_") for name in env)


def test_secrets_are_named_with_their_workspace_and_given_by_value() -> None:
    plan = with_variables(
        {"name": "TOKEN", "value": None, "from_secret": {"name": "token"}},
        {"name": "KEY", "value": None, "from_secret": {"name": "shared/key"}},
        secret_env={"TOKEN": "t", "KEY": "k", "UNASKED": "u"},
    )
    env = environment(plan)
    assert env["NEMO_JOB_SECRETS"] == "TOKEN=default/token,KEY=shared/key"
    assert (env["TOKEN"], env["KEY"]) == ("t", "k")
    assert "UNASKED" not in env


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0.0.0.0", "[::1]"])
def test_loopback_hosts_are_replaced(host: str) -> None:
    assert with_loopback(f"http://{host}:81/a", "localhost") == "http://localhost:81/a"
    assert with_loopback(f"https://{host}", "fd00::1") == "https://[fd00::1]"
    assert with_loopback("http://example.org:81/a", "localhost") == "http://example.org:81/a"


@pytest.mark.parametrize(
    ("command", "env", "words"),
    [
        (["a\0b"], {}, "word 0 of the command contains a NUL"),
        (["a"], {"X": "\0"}, "value of the variable X contains a NUL"),
        (["a"], {"X": "\udc80"}, "value of the variable X contains half a surrogate"),
        (["a"], {"": "x"}, "'' can't be the name"),
        (["a"], {"A=B": "x"}, "'A=B' can't be the name"),
    ],
)
def test_what_no_system_can_pass_on_is_refused(command: list[str], env: dict[str, str], words: str) -> None:
    with pytest.raises(Rejected, match=words):
        check_strings(command, env)
    check_strings(["é", ""], {"A": "日本", "B": ""})


def launcher(plan: Plan) -> dict[str, str]:
    prefix = "NHX_JOB_LAUNCHER_OTLP_LOGS_"
    return {name.removeprefix(prefix): value for name, value in environment(plan).items() if prefix in name}


def test_where_log_records_go() -> None:
    plan = replace(fake_plan(), platform=PlatformInfo({"files": "http://127.0.0.1:8080/"}))
    logs = "/apis/files/v2/workspaces/default/filesets/fileset/otlp/v1/logs"
    assert launcher(plan) == {"TRANSPORT": "tcp", "ENDPOINT": "http://localhost:8080" + logs}
    shared = replace(plan, output_location="fileset", job="mo@th+1")
    assert launcher(shared)["ENDPOINT"].endswith(logs + "?artifact_base_path=jobs/mo%40th%2B1")
    over_socket = replace(plan, platform=PlatformInfo({"files": "unix:///run/nemo.sock"}))
    assert launcher(over_socket) == {
        "TRANSPORT": "uds",
        "SOCKET_PATH": "/run/nemo.sock",
        "ENDPOINT": "http://localhost" + logs,
    }
    assert launcher(replace(plan, platform=PlatformInfo({}))) == {}

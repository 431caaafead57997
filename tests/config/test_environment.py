"""Settings from environment variables."""

from pathlib import Path

import pytest

from nemo_jobs.config_environment import HOST_VARIABLES
from nemo_jobs.config_shape import variables
from nemo_jobs.domain.profiles import SubprocessConfig
from tests.config.loading import environment, environment_problem, load

DEFAULTS = "NHX_JOBS_EXECUTOR_DEFAULTS__"


def subprocess_config(**environ: str) -> SubprocessConfig:
    return environment(**environ).settings.jobs.executor_defaults.subprocess


@pytest.mark.parametrize(
    ("text", "value"),
    [("True", True), ("1", True), ("YES", True), ("False", False), ("0", False), ("no", False)],
)
def test_c065_truth_values(text: str, value: bool) -> None:
    name = DEFAULTS + "SUBPROCESS__CLEANUP_COMPLETED_JOBS_IMMEDIATELY"
    assert subprocess_config(**{name: text}).cleanup_completed_jobs_immediately is value


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            DEFAULTS + "SUBPROCESS__CLEANUP_COMPLETED_JOBS_IMMEDIATELY",
            "maybe",
            "true, false, 1, 0, yes, no; not 'maybe'",
        ),
        (DEFAULTS + "SUBPROCESS__TTL_SECONDS_ACTIVE", "abc", "must be a whole number, not 'abc'"),
        (DEFAULTS + "SUBPROCESS__TTL_SECONDS_ACTIVE", "0", "must be at least 1"),
        ("NHX_JOBS_EXECUTORS", "nonsense", "must be JSON"),
        ("NHX_JOBS_EXECUTORS", '{"a":1,"a":2}', "twice"),
        (
            "NHX_JOBS_EXECUTORS",
            '[{"backend":"subprocess","profile":5}]',
            "jobs.executors[0].profile: must be text",
        ),
        ("NHX_JOBS_EXECUTORS__0__PROFILE", "x", "give it whole in NHX_JOBS_EXECUTORS"),
        (
            DEFAULTS + "KUBERNETES_JOB__AFFINITY__X",
            "1",
            "give it whole in " + DEFAULTS + "KUBERNETES_JOB__AFFINITY",
        ),
        ("NHX_SERVICE_PORT__X", "1", "service.port is a single value"),
        ("NHX_RUNTIME", "kubernets", "did you mean kubernetes?"),
        ("NEMO_JOBS_DEFAULT_DOCKER_STOP_TIMEOUT", "soon", "must be a whole number"),
    ],
)
def test_c065_a_wrong_value_names_the_variable(name: str, text: str, says: str) -> None:
    said = environment_problem(**{name: text})
    assert said.startswith(f"environment variable {name}: ")
    assert says in said


def test_c065_lists_and_objects_are_json() -> None:
    loaded = environment(
        NHX_JOBS_EXECUTORS='[{"backend":"subprocess","profile":"quick"}]',
        NHX_JOBS_EXECUTOR_DEFAULTS='{"docker":{"storage":{"volume_name":"a"}}}',
        NHX_SERVICE_CORS_ORIGINS='["https://a.example"]',
    )
    assert [entry.profile for entry in loaded.settings.jobs.executors] == ["quick"]
    assert loaded.settings.jobs.executor_defaults.docker.storage.volume_name == "a"
    assert loaded.settings.service.cors_origins == ["https://a.example"]


def test_c065_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    name = DEFAULTS + "SUBPROCESS__WORKING_DIRECTORY"
    text = "jobs: {executor_defaults: {subprocess: {working_directory: /srv}}}"
    assert subprocess_config(**{name: ""}).working_directory == "/tmp/nhx-subprocess-jobs"
    loaded = load(text, tmp_path, **{name: "", "NHX_CONFIG_FILE_PATH": "", "NHX_JOBS_URL": ""})
    assert loaded.settings.jobs.executor_defaults.subprocess.working_directory == "/srv"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NHX_JOBS_RECONCILE_INTERVAL", "NHX_JOBS_RECONCILE_INTERVAL_SECONDS"),
        (DEFAULTS + "DOCKR__STORAGE__VOLUME_NAME", DEFAULTS + "DOCKER__STORAGE__VOLUME_NAME"),
        (DEFAULTS + "DOCKER__STORAGE__VOLUM_NAME", DEFAULTS + "DOCKER__STORAGE__VOLUME_NAME"),
        ("NHX_FILE_URL", "NHX_FILES_URL"),
        ("NEMO_JOBS_IMAGE_REGISTRY_USER", "NEMO_JOBS_IMAGE_REGISTRY_USER_NAME"),
    ],
)
def test_c065_a_variable_that_matches_nothing_is_reported_with_the_near_one(name: str, near: str) -> None:
    (warning,) = environment(**{name: "x"}).warnings
    assert name in warning
    assert f"did you mean {near}?" in warning


def test_c065_warnings_can_be_turned_off() -> None:
    assert environment(NHX_NONSENSE="1").warnings != []
    assert environment(NHX_NONSENSE="1", NHX_CONFIG_WARNINGS_DISABLED="1").warnings == []


def test_variables_of_the_command_line_and_of_other_services_are_left_alone() -> None:
    loaded = environment(
        NHX_WORKSPACE="w", NHX_AUTH_ENABLED="1", NHX_WORKLOAD_X="1", NHX_ACCESS_TOKEN="t", PATH="/bin"
    )
    assert loaded.warnings == []


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    text = """
        platform: {docker: {reserved_gpu_device_ids: "0"}, base_url: http://file, image_tag: kept}
        jobs: {executor_defaults: {docker: {storage: {volume_name: file, volume_permissions_image: kept}}}}
        database: {url: "postgresql://u@file/db"}
    """
    settings = load(
        text,
        tmp_path,
        NHX_DOCKER_RESERVED_GPU_DEVICE_IDS="none",
        NHX_BASE_URL="http://environment",
        NHX_DATABASE_URL="postgresql://u@environment/db",
        **{DEFAULTS + "DOCKER__STORAGE__VOLUME_NAME": "environment"},
    ).settings
    assert settings.platform.reserved_gpu_device_ids == "none"
    assert settings.platform.given_base_url == "http://environment"
    assert settings.platform.image_tag == "kept"
    assert settings.database.url == "postgresql://u@environment/db"
    storage = settings.jobs.executor_defaults.docker.storage
    assert (storage.volume_name, storage.volume_permissions_image) == ("environment", "kept")


def test_a_single_key_wins_over_the_whole_object() -> None:
    settings = environment(
        NHX_JOBS_EXECUTOR_DEFAULTS='{"subprocess":{"ttl_seconds_active":1,"max_concurrent":2}}',
        **{DEFAULTS + "SUBPROCESS__TTL_SECONDS_ACTIVE": "9"},
    ).settings
    config = settings.jobs.executor_defaults.subprocess
    assert (config.ttl_seconds_active, config.max_concurrent) == (9, 2)


def test_keys_of_a_section_that_another_service_has_as_well() -> None:
    loaded = environment(
        NHX_FILES_STORAGE__URL="s3://bucket/nemo",
        NHX_FILES_STORAGE__OPTIONS__region="eu-central-1",
        NHX_FILES_MAX_UPLOAD_BYTES="1000",
        NHX_FILES_URL="http://files",
        NHX_FILES_HOST_PREFIX="theirs",
    )
    files = loaded.settings.files
    assert (files.storage.url, files.max_upload_bytes) == ("s3://bucket/nemo", 1000)
    assert files.storage.options == {"region": "eu-central-1"}
    assert loaded.warnings == []


def test_addresses_of_services() -> None:
    platform = environment(
        NHX_FILES_URL="http://files/", NHX_JOBS_URL="http://jobs", NHX_SERVICE_DISCOVERY__AUTH="http://auth"
    ).settings.platform
    assert platform.service_discovery == {
        "files": "http://files",
        "jobs": "http://jobs",
        "auth": "http://auth",
    }


def test_entries_of_a_mapping_of_text() -> None:
    assert subprocess_config(**{DEFAULTS + "SUBPROCESS__ENV__Region": "no"}).env == {"Region": "no"}
    said = environment_problem(**{DEFAULTS + "SUBPROCESS__ENV__NEMO_JOB_ID": "x"})
    assert "is reserved" in said


def test_the_hosts_own_variables() -> None:
    host = environment(
        NEMO_JOBS_IMAGE_REGISTRY="r",
        NEMO_JOBS_IMAGE_REGISTRY_USER_NAME="u",
        NEMO_JOBS_IMAGE_REGISTRY_PASSWORD="hunter2",
        NEMO_JOBS_DEFAULT_DOCKER_NETWORK="net",
        NEMO_JOBS_DEFAULT_DOCKER_STOP_TIMEOUT="5",
        NHX_JOBS_DOCKER_OWNER_ID="me",
        POD_NAMESPACE="ns",
    ).settings.host
    assert (host.image_registry, host.image_registry_user, host.job_container_network) == ("r", "u", "net")
    assert (host.docker_stop_timeout, host.docker_owner_id, host.pod_namespace) == (5, "me", "ns")
    assert "hunter2" not in repr(host)
    assert environment().settings.host.docker_stop_timeout == 30


def test_every_key_has_its_own_variable_and_the_known_ones_are_among_them() -> None:
    names = [name for name, _path in variables()]
    assert len(set(names)) == len(names)
    assert not set(names) & set(HOST_VARIABLES)
    assert {
        "NHX_JOBS_RECONCILE_INTERVAL_SECONDS",
        "NHX_JOBS_SCHEDULE_INTERVAL_SECONDS",
        "NHX_JOBS_ENABLE_SUBPROCESS_EXECUTOR",
        "NHX_JOBS_INCLUDE_JOB_LOGS_IN_DIAGNOSTICS",
        "NHX_JOBS_EXECUTORS",
        "NHX_JOBS_EXECUTOR_DEFAULTS__DOCKER__STORAGE__VOLUME_NAME",
        "NHX_BASE_URL",
        "NHX_DATABASE_URL",
    } <= set(names)


def test_variables_of_the_docker_section_have_short_names_too() -> None:
    docker = environment(
        NHX_DOCKER_GPU_DEVICE_COUNT="4",
        NHX_DOCKER_HOST="ssh://me@far:22",
        NHX_DOCKER__MAX_CONCURRENT_PULLS="1",
    ).settings.platform.docker
    assert (docker.gpu_device_count, docker.host, docker.max_concurrent_pulls) == (4, "ssh://me@far:22", 1)

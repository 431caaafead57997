"""Which file is read, and what files in use look like."""

from pathlib import Path

import pytest

from nemo_jobs.config import ConfigError, Settings, default_data_dir, load_settings
from nemo_jobs.config_yaml import read_yaml
from nemo_jobs.domain.profiles import KubernetesJobConfig, VolcanoJobConfig, resolve_profiles
from nemo_jobs.preflight import DEFAULT_HOST, DEFAULT_PORT
from tests.config.loading import load, problem, problems

SEEDS = sorted((Path(__file__).parent / "seeds").glob("*.yaml"))
BACKENDS = ("subprocess", "docker", "kubernetes_job", "volcano_job")


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.stem)
@pytest.mark.parametrize("runtime", ["docker", "kubernetes", "none"])
def test_files_in_use_load_as_printed(seed: Path, runtime: str) -> None:
    loaded = load_settings(seed, {"NHX_RUNTIME": runtime})
    assert loaded.source == seed
    resolve_profiles(loaded.settings, docker=False)
    placeholder = "{...}" in seed.read_text()
    assert [warning.split(": ")[1] for warning in loaded.warnings] == [
        "jobs.executors[0].config"
    ] * placeholder


def test_there_are_twelve_of_them() -> None:
    assert len(SEEDS) == 12


EXAMPLE = """
    platform:
      runtime: kubernetes
      base_url: http://helix-gw.ml.example:8080
      image_pull_secrets: [{name: pull-cred}]
      docker: {reserved_gpu_device_ids: "0,2"}      # text, never a YAML list
      service_discovery: {files: http://files.ml.example:8080}
    jobs:
      schedule_interval_seconds: 5
      executor_defaults:
        kubernetes_job: {namespace: batch, storage: {pvc_name: batch-scratch}}
        subprocess: {working_directory: /tmp/nhx-subprocess-jobs}
      executors:
        - {provider: gpu_distributed, backend: volcano_job, config: {max_retry: 0, queue: research}}
        - backend: kubernetes_job
          provider: gpu
          profile: big
          config:
            node_selector: {accelerator: h200}
            resources: {requests: {cpu: "6", memory: 48Gi}, shm_size: 24Gi}
"""


def test_the_example_of_the_contract_loads(tmp_path: Path) -> None:
    loaded = load(EXAMPLE, tmp_path)
    assert loaded.warnings == []
    platform = loaded.settings.platform
    assert platform.given_base_url == "http://helix-gw.ml.example:8080"
    assert platform.reserved_gpu_device_ids == "0,2"
    profiles = resolve_profiles(loaded.settings, docker=False, available=BACKENDS)
    big, distributed, default = (
        profiles.get("gpu", "big"),
        profiles.get("gpu_distributed", "default"),
        profiles.get("cpu", "default"),
    )
    assert big is not None
    assert distributed is not None
    assert default is not None
    assert isinstance(big.config, KubernetesJobConfig)
    assert big.config.resources.shm_size == "24Gi"
    assert big.config.storage.pvc_name == ""
    assert isinstance(distributed.config, VolcanoJobConfig)
    assert distributed.config.queue == "research"
    assert default.persistent_storage
    assert profiles.get("subprocess", "default") is None


def test_no_file_is_all_defaults() -> None:
    loaded = load_settings(None, {})
    assert loaded.settings == Settings()
    assert loaded.settings.platform.given_base_url is None
    assert (loaded.settings.service.host, loaded.settings.service.port) == ("127.0.0.1", 8080)
    # `services run` looks at the address before it loads any of this.
    assert (loaded.settings.service.host, loaded.settings.service.port) == (DEFAULT_HOST, DEFAULT_PORT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "---\n",
        "jobs:\nplatform:\n",
        "jobs: {executors: , executor_defaults: {docker: }}\n",
    ],
)
def test_c015_what_is_empty_counts_as_empty(text: str, tmp_path: Path) -> None:
    loaded = load(text, tmp_path)
    assert loaded.settings == Settings()
    assert loaded.warnings == []


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert load("\ufeffservice: {port: 1}", tmp_path).settings.service.port == 1


def test_the_file_may_be_named_by_a_variable_and_an_argument_wins(tmp_path: Path) -> None:
    named, given = tmp_path / "named.yaml", tmp_path / "given.yaml"
    named.write_text("service: {port: 1}")
    given.write_text("service: {port: 2}")
    environ = {"NHX_CONFIG_FILE_PATH": str(named)}
    assert load_settings(None, environ).settings.service.port == 1
    assert load_settings(given, environ).settings.service.port == 2


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(ConfigError, match="can't be read"):
            load_settings(path, {})


def test_a_file_that_is_no_configuration_is_a_problem(tmp_path: Path) -> None:
    assert "mapping of sections" in problem("- a\n- b\n", tmp_path)
    assert "config.yaml:2: column" in problem("jobs: {}\n  bad: [\n", tmp_path)
    assert "not valid YAML" in problem("jobs:\n\texecutors: []\n", tmp_path)
    assert "not valid YAML" in problem("jobs: {}\n---\njobs: {}\n", tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"jobs: {}\n# \xff\n")
    with pytest.raises(ConfigError, match=r"binary\.yaml:2: is not UTF-8"):
        load_settings(tmp_path / "binary.yaml", {})
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(5 * 2**20)
    with pytest.raises(ConfigError, match="larger than 4 MiB"):
        load_settings(tmp_path / "large.yaml", {})


def test_a_file_that_grows_without_end_is_a_problem(tmp_path: Path) -> None:
    assert "nested too deeply" in problems("x-a: &a [*a]\n", tmp_path)[0]
    assert "nested too deeply" in problems("x-a: " + "[" * 60 + "]" * 60, tmp_path)[0]
    bomb = "x-a0: &a0 [1]\n" + "".join(
        f"x-a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
    )
    assert "too large" in problems(bomb, tmp_path)[0]
    for deep in ("x: " + "[" * 100_000, "- " * 100_000):
        assert "nesting depth" in problems(deep, tmp_path)[0]


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = """
        x-common: &common {ttl_seconds_active: 5, max_concurrent: 3}
        jobs:
          executors:
            - {provider: subprocess, backend: subprocess, config: {<<: *common, max_concurrent: 4}}
    """
    (entry,) = load(text, tmp_path).settings.jobs.executors
    assert entry.config.model_dump(exclude_unset=True) == {"ttl_seconds_active": 5, "max_concurrent": 4}


def test_tags_are_refused(tmp_path: Path) -> None:
    assert "tag !!python/object" in problems("jobs: {executors: !!python/object:os.system x}\n", tmp_path)[0]
    assert "tag !secret" in problems("database: {url: !secret x}\n", tmp_path)[0]


def test_both_yaml_readers_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b'a: 010\nb: "no"\nc: no\nd: 1e3\ne: [x, {f: ~}]\n'
    one = read_yaml(raw, "x", [], [])
    monkeypatch.delattr("yaml.CSafeLoader", raising=False)
    assert read_yaml(raw, "x", [], []) == one


def test_the_data_directory_follows_the_platform() -> None:
    assert default_data_dir({"XDG_DATA_HOME": "/d", "HOME": "/h"}) == Path("/d/nemo-jobs")
    assert default_data_dir({"XDG_DATA_HOME": "relative", "HOME": "/h"}) == Path("/h/.local/share/nemo-jobs")
    assert default_data_dir({}).is_absolute()

"""Which profiles are in force, and whether a spec may run on them."""

from typing import Any

import pytest

from nemo_jobs.config import Settings
from nemo_jobs.domain.admission import check_profiles, translate
from nemo_jobs.domain.model import Invalid
from nemo_jobs.domain.profiles import (
    DockerConfig,
    KubernetesJobConfig,
    Profile,
    ProfileSet,
    SubprocessConfig,
    VolcanoJobConfig,
    resolve_profiles,
)
from nemo_jobs.domain.spec import JobSpec

EVERY = ("subprocess", "docker", "kubernetes_job", "volcano_job", "openshell", "e2e")


def settings(runtime: str = "none", **jobs: Any) -> Settings:
    return Settings.model_validate({"platform": {"runtime": runtime}, "jobs": jobs})


def resolve(given: Settings, *, docker: bool = False, available: tuple[str, ...] = EVERY) -> ProfileSet:
    return resolve_profiles(given, docker=docker, available=available)


def pairs(profiles: ProfileSet) -> set[str]:
    return {f"{profile.provider}/{profile.profile} {profile.backend}" for profile in profiles}


def spec_of(*steps: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate({"steps": [{"name": f"step-{n}", **step} for n, step in enumerate(steps)]})


def container(provider: str = "cpu", profile: str = "default", **more: Any) -> dict[str, Any]:
    return {"executor": {"provider": provider, "profile": profile, "container": {}, **more}}


@pytest.mark.parametrize(
    ("runtime", "docker", "expected"),
    [
        ("none", False, {"subprocess/default subprocess"}),
        ("none", True, {"subprocess/default subprocess"}),
        ("docker", False, {"subprocess/default subprocess"}),
        ("docker", True, {"cpu/default docker", "gpu/default docker", "subprocess/default subprocess"}),
        (
            "kubernetes",
            False,
            {
                "cpu/default kubernetes_job",
                "gpu/default kubernetes_job",
                "cpu/gpu kubernetes_job",
                "gpu/gpu kubernetes_job",
                "gpu_distributed/default volcano_job",
            },
        ),
    ],
)
def test_built_in_profiles(runtime: str, docker: bool, expected: set[str]) -> None:
    assert pairs(resolve(settings(runtime), docker=docker)) == expected


def test_the_subprocess_profile_can_be_switched_on_and_off() -> None:
    on = resolve(settings("kubernetes", enable_subprocess_executor=True))
    assert on.get("subprocess", "default") is not None
    assert pairs(resolve(settings("none", enable_subprocess_executor=False))) == set()


def test_an_own_config_goes_over_the_default_key_by_key() -> None:
    given = settings(
        executor_defaults={"subprocess": {"working_directory": "/srv", "ttl_seconds_active": 5}},
        executors=[{"provider": "subprocess", "backend": "subprocess", "config": {"ttl_seconds_active": 7}}],
    )
    profile = resolve(given).get("subprocess", "default")
    assert profile is not None
    config = profile.config
    assert isinstance(config, SubprocessConfig)
    assert (config.working_directory, config.ttl_seconds_active) == ("/srv", 7)
    assert resolve(given).explicit_subprocess == {"default"}


def test_a_nested_object_is_replaced_as_a_whole_with_the_defaults_of_its_type() -> None:
    given = settings(
        "docker",
        executor_defaults={
            "docker": {"storage": {"volume_name": "mine", "volume_permissions_image": "busy"}}
        },
        executors=[{"backend": "docker", "config": {"storage": {"volume_permissions_image": "other"}}}],
    )
    profile = resolve(given, docker=True).get("cpu", "default")
    assert profile is not None
    assert isinstance(profile.config, DockerConfig)
    assert profile.config.storage.volume_name == "nemo-jobs-storage"
    assert profile.config.storage.volume_permissions_image == "other"


def test_a_new_pair_does_not_inherit_the_defaults() -> None:
    given = settings(
        "kubernetes",
        executor_defaults={"kubernetes_job": {"namespace": "batch"}},
        executors=[{"backend": "kubernetes_job", "profile": "big", "config": {}}],
    )
    found = resolve(given).get("cpu", "big")
    assert found is not None
    assert isinstance(found.config, KubernetesJobConfig)
    assert found.config.namespace is None


def test_another_backend_replaces_a_built_in_profile() -> None:
    given = settings("docker", executors=[{"backend": "e2e"}])
    assert "cpu/default e2e" in pairs(resolve(given, docker=True))
    assert "cpu/default docker" not in pairs(resolve(given, docker=True))


def test_what_a_profile_sets_itself_stays_known_after_merging() -> None:
    given = settings(
        "kubernetes",
        executors=[{"backend": "kubernetes_job", "config": {"launcher_image": "mine"}}],
    )
    own, built_in = resolve(given).get("cpu", "default"), resolve(given).get("gpu", "default")
    assert own is not None
    assert built_in is not None
    assert "launcher_image" in own.config.model_fields_set
    assert "launcher_image" not in built_in.config.model_fields_set


def test_profiles_whose_backend_cannot_start_are_left_out_with_the_reason() -> None:
    given = settings(
        "none",
        executors=[
            {"backend": "docker", "config": {}},
            {"backend": "volcano_job", "provider": "gpu_distributed", "config": {}},
            {"backend": "e2e", "profile": "test"},
        ],
    )
    found = resolve(given, available=("subprocess",))
    assert pairs(found) == {"subprocess/default subprocess"}
    assert "Docker" in found.left_out["cpu", "default"]
    assert "Kubernetes" in found.left_out["gpu_distributed", "default"]
    assert "e2e" in found.left_out["cpu", "test"]


def test_profiles_of_a_docker_engine_that_is_not_there_are_expected_and_take_their_place_when_it_comes() -> (
    None
):
    own = {"backend": "docker", "profile": "own", "config": {"max_concurrent": 3}}
    other = {"backend": "e2e", "profile": "test"}
    given, available = settings("docker", executors=[own, other]), ("subprocess", "docker")
    found = resolve_profiles(given, docker=False, available=available, no_docker="it is asleep")
    held = found
    assert pairs(found) == {"subprocess/default subprocess"}
    assert found.expected == {("cpu", "default"), ("gpu", "default"), ("cpu", "own")}
    assert all(found.left_out[key] == "it is asleep" for key in found.expected)
    with pytest.raises(Invalid, match="is configured but not in force: it is asleep"):
        check_profiles(spec_of(container()), found)
    found.become(resolve(given, docker=True, available=available))
    assert {key for key in held.profiles if key[0] != "subprocess"} == {
        ("cpu", "default"),
        ("gpu", "default"),
        ("cpu", "own"),
    }
    assert not held.expected and set(held.left_out) == {("cpu", "test")}
    check_profiles(spec_of(container()), held)


@pytest.mark.parametrize("runtime", ["none", "kubernetes"])
def test_no_docker_profile_is_expected_where_none_is_built_in_or_written(runtime: str) -> None:
    found = resolve_profiles(settings(runtime), docker=False, available=("subprocess", "docker"))
    assert not found.expected


def test_kubernetes_profiles_are_listed_before_their_backend_exists() -> None:
    found = resolve(settings("kubernetes"), available=("subprocess",))
    assert {profile.key for profile in found.listed()} == {
        ("cpu", "default"),
        ("gpu", "default"),
        ("cpu", "gpu"),
        ("gpu", "gpu"),
        ("gpu_distributed", "default"),
    }
    with pytest.raises(Invalid, match="kubernetes_job is not part of this version"):
        check_profiles(spec_of(container()), found)


def test_openshell_profiles_are_never_listed() -> None:
    found = resolve(settings(executors=[{"backend": "openshell", "config": {}}]))
    assert found.get("cpu", "default") is not None
    assert [profile.backend for profile in found.listed()] == ["subprocess"]


def test_an_item_of_the_list_shows_every_field() -> None:
    (profile,) = resolve(settings())
    shown = profile.to_wire()
    assert {key: shown[key] for key in ("provider", "profile", "backend")} == {
        "provider": "subprocess",
        "profile": "default",
        "backend": "subprocess",
    }
    assert shown["config"] == {
        "env": {},
        "cleanup_completed_jobs_immediately": False,
        "graceful_shutdown_timeout_seconds": 10,
        "working_directory": "/tmp/nhx-subprocess-jobs",
        "ttl_seconds_after_finished": 3600,
        "ttl_seconds_active": 86400,
        "ttl_seconds_before_active": 1800,
        "default_task_image": None,
        "launcher_tool_path": "/tools/jobs-launcher",
        "on_shutdown": "keep",
        "max_concurrent": None,
        "results_max_bytes": 100 * 2**30,
    }


def test_c035_a_built_in_profile_that_was_changed_is_listed_once() -> None:
    found = resolve(settings(executors=[{"backend": "subprocess", "config": {"max_concurrent": 3}}]))
    (profile,) = found.listed()
    assert (profile.provider, profile.profile) == ("subprocess", "default")
    assert profile.to_wire()["config"]["max_concurrent"] == 3


def test_the_hosts_docker_network_is_the_default_of_profiles_that_name_none() -> None:
    given = Settings.model_validate(
        {
            "host": {"job_container_network": "lab"},
            "jobs": {
                "executors": [
                    {"backend": "docker", "config": {}},
                    {
                        "backend": "docker",
                        "profile": "own",
                        "config": {"networking": {"job_container_network": "x"}},
                    },
                ]
            },
        }
    )
    found = {profile.key: profile.config for profile in resolve(given, docker=True)}
    networks = {
        key: config.networking.job_container_network
        for key, config in found.items()
        if isinstance(config, DockerConfig)
    }
    assert networks == {("cpu", "default"): "lab", ("gpu", "default"): "lab", ("cpu", "own"): "x"}


def test_the_stop_timeout_of_docker_profiles_follows_the_host_unless_one_is_written() -> None:
    own = {"backend": "docker", "profile": "own", "config": {"stop_timeout_seconds": 0}}
    given = Settings.model_validate({"host": {"docker_stop_timeout": 7}, "jobs": {"executors": [own]}})
    found = {profile.key: profile.config for profile in resolve(given, docker=True)}
    seconds = {
        key: config.stop_timeout_seconds for key, config in found.items() if isinstance(config, DockerConfig)
    }
    assert seconds == {("cpu", "default"): 7, ("gpu", "default"): 7, ("cpu", "own"): 0}


@pytest.mark.parametrize(
    ("limit", "cores", "expected"), [(None, 1, 32), (None, 2, 32), (None, 16, 128), (3, 64, 3)]
)
def test_places_of_a_profile(limit: int | None, cores: int, expected: int) -> None:
    assert SubprocessConfig(max_concurrent=limit).places(cores) == expected
    assert DockerConfig(max_concurrent=limit).places(cores) == (limit or 64)


def test_the_defaults_of_volcano_profiles() -> None:
    config = VolcanoJobConfig()
    assert (config.scheduler_name, config.queue, config.max_retry) == ("volcano", "default", 0)


def with_subprocess(name: str = "default") -> ProfileSet:
    return resolve(settings(executors=[{"provider": "subprocess", "profile": name, "backend": "subprocess"}]))


def test_cpu_steps_on_a_configured_subprocess_profile_become_host_processes() -> None:
    step = {
        "executor": {"provider": "cpu", "container": {"image": "x", "entrypoint": ["a"], "command": ["b"]}}
    }
    translated = translate(spec_of(step), with_subprocess())
    assert translated.model_dump(mode="json")["steps"][0]["executor"] == {
        "provider": "subprocess",
        "profile": "default",
        "command": ["a", "b"],
    }
    check_profiles(translated, with_subprocess())


def test_cpu_steps_elsewhere_stay_as_they_are() -> None:
    spec = spec_of(container(profile="other"))
    assert translate(spec, with_subprocess()) is spec
    built_in_only = resolve(settings())
    assert translate(spec_of(container()), built_in_only).steps[0].executor.provider == "cpu"


def test_c078_a_cpu_step_without_a_command_names_the_step() -> None:
    way_out = r"take subprocess/default out of jobs\.executors"
    with pytest.raises(
        Invalid, match=rf"'step-0'.*container\.entrypoint or container\.command; or {way_out}"
    ):
        translate(spec_of(container()), with_subprocess())


def test_c078_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    step = {"executor": {"provider": "subprocess", "profile": "nope", "command": ["true"]}}
    with pytest.raises(Invalid, match=r"'nope'.*'subprocess'.*'step-0'.*subprocess/default"):
        check_profiles(spec_of(step), resolve(settings()))


def test_c078_a_gpu_step_on_a_host_without_docker_is_refused() -> None:
    with pytest.raises(Invalid, match=r"'gpu'.*known .*subprocess/default"):
        check_profiles(spec_of(container("gpu")), resolve(settings("docker")))


def test_c078_a_profile_left_out_says_why() -> None:
    given = settings(executors=[{"backend": "docker", "config": {}}])
    with pytest.raises(Invalid, match="no Docker engine answers"):
        check_profiles(spec_of(container()), resolve(given))


def test_c078_a_step_without_a_profile_uses_the_default_of_its_provider() -> None:
    check_profiles(
        spec_of({"executor": {"provider": "subprocess", "command": ["true"]}}), resolve(settings())
    )


def storage_step() -> dict[str, Any]:
    variable = {"name": "NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH", "value": "/var/run/scratch/job"}
    return container() | {"environment": [variable]}


def test_persistent_storage_is_asked_of_profiles_that_have_it() -> None:
    with_volume = resolve(settings("docker"), docker=True)
    check_profiles(spec_of(storage_step()), with_volume)
    none = settings("docker", executor_defaults={"docker": {"storage": {"volume_name": ""}}})
    with pytest.raises(Invalid, match=r"'default'.*'cpu'.*persistent storage.*'step-0'"):
        check_profiles(spec_of(storage_step()), resolve(none, docker=True))
    with pytest.raises(Invalid, match="persistent storage"):
        check_profiles(spec_of(storage_step()), resolve(settings("kubernetes")))
    claimed = settings("kubernetes", executor_defaults={"kubernetes_job": {"storage": {"pvc_name": "disk"}}})
    check_profiles(spec_of(storage_step()), resolve(claimed))


@pytest.mark.parametrize("ids", ["", "none"])
def test_gpu_steps_need_gpus_that_docker_may_use(ids: str) -> None:
    given = Settings.model_validate({"platform": {"docker": {"reserved_gpu_device_ids": ids}}})
    with pytest.raises(Invalid, match="GPUs"):
        check_profiles(spec_of(container(), container("gpu")), resolve(given, docker=True))
    check_profiles(spec_of(container("gpu")), resolve(settings("docker"), docker=True))


def test_several_nodes_need_a_backend_that_has_them() -> None:
    many: dict[str, Any] = {"resources": {"num_nodes": 2}}
    with pytest.raises(Invalid, match=r"2 nodes.*volcano_job"):
        check_profiles(spec_of(container(**many)), resolve(settings("kubernetes")))
    check_profiles(spec_of(container("gpu_distributed", **many)), resolve(settings("kubernetes")))
    step = {"executor": {"provider": "cpu", "container": {"command": ["x"]}, **many}}
    with pytest.raises(Invalid, match="2 nodes"):
        translate(spec_of(step), with_subprocess())


@pytest.mark.parametrize("name", ["NHX_ACCESS_TOKEN", "NHX_WORKLOAD_ANYTHING", "NEMO_WORKFLOW_X"])
def test_managed_variables_of_a_step_are_refused(name: str) -> None:
    step = {
        "executor": {"provider": "subprocess", "command": ["true"]},
        "environment": [{"name": name, "value": "x"}],
    }
    with pytest.raises(Invalid, match=name):
        check_profiles(spec_of(step), resolve(settings()))


def test_profiles_can_be_made_by_hand() -> None:
    profile = Profile("subprocess", "default", "subprocess", SubprocessConfig())
    assert ProfileSet({profile.key: profile}).get("subprocess", "default") is profile

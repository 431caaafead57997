"""What a Docker profile mounts is a volume, and what is a place of the host is told."""

from pathlib import Path

import pytest

from tests.config.loading import load, problem


def docker(storage: str) -> str:
    return f"""\
        jobs:
          executors:
            - backend: docker
              config:
                storage:
                  {storage}
    """


@pytest.mark.parametrize("name", ["/etc", "/var/run/docker.sock", "../x", "a/b", "C:\\x", "-v", "a b", "a:b"])
def test_c086_a_volume_name_is_never_a_path(name: str, tmp_path: Path) -> None:
    said = problem(docker(f"volume_name: '{name}'"), tmp_path)
    path = "jobs.executors[0].config.storage"
    assert said == (
        f"config.yaml:6: {path}.volume_name: volume_name must be the name of a volume, of letters, digits, "
        f"'_', '.' and '-', not {name!a}"
    )
    mount = f"additional_volume_mounts: [{{volume_name: '{name}', mount_path: /data}}]"
    said = problem(docker(mount), tmp_path)
    assert said.startswith(f"config.yaml:6: {path}.additional_volume_mounts[0]: volume_name must be the name")


def test_c086_names_of_volumes_and_none_are_taken(tmp_path: Path) -> None:
    for name in ("data", "nemo-jobs_2.x", "X"):
        mount = (
            f"{{volume_name: {name}, mount_path: /data}}, {{volume_name: '', mount_path: /t, kind: tmpfs}}"
        )
        loaded = load(docker(f"additional_volume_mounts: [{mount}]"), tmp_path)
        assert loaded.warnings == []
    load(docker("volume_name: ''"), tmp_path)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ("{DriverConfig: {Name: local, Options: {type: none, o: bind, device: /srv/data}}}", "/srv/data"),
        ("{driver_opts: {device: /}}", "/"),
        ("{device: /var/run/docker.sock}", "/var/run/docker.sock"),
    ],
)
def test_c091_a_place_of_the_host_is_told_at_the_start(options: str, place: str, tmp_path: Path) -> None:
    mount = f"additional_volume_mounts: [{{volume_name: data, mount_path: /data, options: {options}}}]"
    (warning,) = load(docker(mount), tmp_path).warnings
    assert "additional_volume_mounts[0].options." in warning
    assert f"'{place}' is a place of the host that every job of the profile can then read" in warning
    assert ("socket of an engine rules the host" in warning) is place.endswith(".sock")


def test_c091_what_is_not_of_this_host_is_not_told(tmp_path: Path) -> None:
    options = "{DriverConfig: {Options: {type: nfs, o: 'addr=10.0.0.1', device: ':/export'}}}"
    mount = f"additional_volume_mounts: [{{volume_name: data, mount_path: /data, options: {options}}}]"
    assert load(docker(mount), tmp_path).warnings == []
    said = problem(
        "jobs: {executors: [{backend: kubernetes_job, config: {storage: {additional_volumes: "
        "[{name: x, host_path: {path: /}}]}}}]}",
        tmp_path,
    )
    assert "host_path: unknown key" in said

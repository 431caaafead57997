"""Flag, then environment, then file, then default."""

from pathlib import Path

import pytest

from nemo_jobs.cli.session import Flags
from nemo_jobs.cli.settings import BadSettings, config_path, resolve

FILE = """
current_context: lab
clusters:
  - {name: one, base_url: "http://one.example:8080"}
  - {name: two, base_url: "https://two.example", certificate_authority: /etc/ca.pem}
users:
  - {name: nobody, type: no-auth}
  - {name: me, type: oauth, token: secret}
contexts:
  - {name: lab, cluster: one, user: nobody, workspace: moths}
  - {name: far, cluster: two, user: me, preferences: {output_format: yaml, truncate: false}}
something_from_a_newer_version: 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(FILE)
    return path


def flags(**given: object) -> Flags:
    found = Flags()
    for name, value in given.items():
        setattr(found, name, value)
    return found


def test_defaults_without_any_file(tmp_path: Path) -> None:
    chosen = resolve(Flags(), {"XDG_CONFIG_HOME": str(tmp_path)})
    assert (chosen.base_url, chosen.workspace, chosen.token) == ("http://localhost:8080", "default", None)


def test_the_file_gives_address_and_workspace_of_its_current_context(file: Path) -> None:
    chosen = resolve(Flags(), {"NHX_CONFIG_FILE": str(file)})
    assert (chosen.base_url, chosen.workspace) == ("http://one.example:8080", "moths")


def test_the_environment_goes_before_the_file_and_a_flag_before_both(file: Path) -> None:
    environ = {"NHX_CONFIG_FILE": str(file), "NHX_BASE_URL": "http://env.example", "NHX_WORKSPACE": "bees"}
    assert resolve(Flags(), environ).base_url == "http://env.example"
    assert resolve(Flags(), environ).workspace == "bees"
    assert resolve(flags(base_url="http://flag.example"), environ).base_url == "http://flag.example"


def test_a_task_works_in_the_workspace_of_its_job(tmp_path: Path, file: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "NEMO_JOB_WORKSPACE": "moths"}
    assert resolve(Flags(), environ).workspace == "moths"
    assert resolve(Flags(), {**environ, "NHX_WORKSPACE": "bees"}).workspace == "bees"
    named = {"NHX_CONFIG_FILE": str(file), "NEMO_JOB_WORKSPACE": "ants"}
    assert resolve(Flags(), named).workspace == "moths"


def test_a_context_brings_token_authority_and_preferences(file: Path) -> None:
    chosen = resolve(flags(context="far"), {"NHX_CONFIG_FILE": str(file)})
    assert (chosen.token, chosen.ca_file, chosen.output_format) == ("secret", "/etc/ca.pem", "yaml")
    assert not chosen.truncate
    by_environment = resolve(Flags(), {"NHX_CONFIG_FILE": str(file), "NHX_CURRENT_CONTEXT": "far"})
    assert by_environment.base_url == "https://two.example"


def test_an_unknown_context_names_the_known_ones(file: Path) -> None:
    with pytest.raises(BadSettings, match="contexts has no 'lub'; known: lab, far"):
        resolve(flags(context="lub"), {"NHX_CONFIG_FILE": str(file)})


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("NHX_OUTPUT_FORMAT", "xml", "table, json"),
        ("NHX_TIMESTAMP_FORMAT", "unix", "relative, iso8601"),
        ("NHX_TRUNCATE", "maybe", "true, false"),
        ("NHX_COLOR_OUTPUT", "2", "true, false"),
    ],
)
def test_a_wrong_value_names_variable_value_and_what_is_allowed(
    tmp_path: Path, variable: str, value: str, allowed: str
) -> None:
    with pytest.raises(BadSettings, match=f"{variable} is '{value}'; allowed: {allowed}"):
        resolve(Flags(), {"XDG_CONFIG_HOME": str(tmp_path), variable: value})


def test_colours_go_with_no_color_and_our_own_switch(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert resolve(Flags(), home).colour
    assert not resolve(Flags(), {**home, "NO_COLOR": "1"}).colour
    assert not resolve(Flags(), {**home, "NHX_COLOR_OUTPUT": "false"}).colour
    assert not resolve(flags(no_color=True), home).colour


def test_bad_yaml_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("clusters:\n  - {name: one\n")
    with pytest.raises(BadSettings, match=r"bad\.yaml:\d+: not valid YAML"):
        resolve(Flags(), {"NHX_CONFIG_FILE": str(path)})
    path.write_text("just text")
    with pytest.raises(BadSettings, match="must hold a mapping"):
        resolve(Flags(), {"NHX_CONFIG_FILE": str(path)})


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="doesn't exist"):
        resolve(Flags(), {"NHX_CONFIG_FILE": str(tmp_path / "none.yaml")})


def test_the_file_is_where_the_platform_keeps_such_files() -> None:
    assert config_path({"HOME": "/users/ann"}) == "/users/ann/.config/nhx/config.yaml"
    assert config_path({"HOME": "/users/ann", "XDG_CONFIG_HOME": "/cfg"}) == "/cfg/nhx/config.yaml"

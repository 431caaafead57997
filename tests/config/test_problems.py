"""What is wrong with a file is told at once, with the place and the way out."""

from pathlib import Path

import pytest

from nemo_jobs.config import ConfigError
from tests.config.loading import load, problem, problems


def test_all_problems_are_told_at_once_with_file_line_and_path(tmp_path: Path) -> None:
    text = """\
        platform:
          runtime: dockr
        jobs:
          retention_days: soon
          executors:
            - backend: kubernetes_job
              config:
                toleration: []
        service: {port: 99999}
    """
    assert problems(text, tmp_path, NHX_SERVICE_PORT="web") == [
        "environment variable NHX_SERVICE_PORT: service.port: must be a whole number, not 'web'",
        "config.yaml:2: platform.runtime: must be 'docker', 'kubernetes' or 'none', not 'dockr'; "
        "did you mean docker?",
        "config.yaml:4: jobs.retention_days: must be a whole number, not 'soon'",
        "config.yaml:8: jobs.executors[0].config.toleration: unknown key, set to a list; "
        "did you mean tolerations?",
        "config.yaml:9: service.port: must be at most 65535, not '99999'",
    ]


def kubernetes(config: str, entry: str = "") -> str:
    return f"jobs: {{executors: [{{backend: kubernetes_job{entry}, config: {{{config}}}}}]}}"


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        (
            kubernetes("node_selectors: {}"),
            "jobs.executors[0].config.node_selectors",
            "did you mean node_selector?",
        ),
        (kubernetes("toleration: []"), "jobs.executors[0].config.toleration", "did you mean tolerations?"),
        (kubernetes("", ", tolerations: []"), "jobs.executors[0].tolerations", "config.tolerations"),
        (kubernetes("pvc_name: x"), "jobs.executors[0].config.pvc_name", "storage.pvc_name"),
        (kubernetes("profile: x"), "jobs.executors[0].config.profile", "it belongs in jobs.executors[0]"),
        (
            "jobs: {executor_defaults: {volcano_job: {max_retries: 1}}}",
            "jobs.executor_defaults.volcano_job.max_retries",
            "did you mean max_retry?",
        ),
        ("platfrom: {}", "platfrom", "did you mean platform?"),
        ("executors: []", "executors", "jobs.executors"),
        ("jobs: {base_url: http://x}", "jobs.base_url", "it belongs below platform (platform.base_url)"),
        ("whatever: 1", "whatever", "sections: platform, jobs, service, database"),
        ("jobs: {colour: red}", "jobs.colour", "known keys: executors, executor_defaults"),
    ],
)
def test_c015_an_unknown_key_names_the_near_one_or_its_place(
    text: str, path: str, hint: str, tmp_path: Path
) -> None:
    said = problem(text, tmp_path)
    assert said.startswith(f"config.yaml:1: {path}: unknown ")
    assert hint in said


def test_c015_the_value_of_an_unknown_key_is_shown_unless_it_may_be_secret(tmp_path: Path) -> None:
    assert "jobs.colour: unknown key, set to 'red';" in problem("jobs: {colour: red}", tmp_path)
    assert "whatever: unknown section, set to '1';" in problem("whatever: 1", tmp_path)
    said = problem("platform: {image_registry_pasword: hunter2}", tmp_path)
    assert "image_registry_pasword: unknown key, set to a value not shown here" in said


def test_warnings_are_told_beside_problems_and_both_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "secrets: {}\njobs: {colour: red}\nservice:\n  port: web\nplatform: {colour: blue}\nmodels: {}\n"
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path)
    begin = len(f"{tmp_path}/config.yaml:")
    assert [line[begin] for line in caught.value.problems] == ["2", "4", "5"]
    assert [line[begin] for line in caught.value.warnings] == ["1", "6"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jobs: {executors: {}}", "jobs.executors: must be a list, not a mapping"),
        ("jobs: []", "jobs: must be a mapping of keys, not a list"),
        (
            kubernetes("ttl_seconds_active: abc"),
            "config.ttl_seconds_active: must be a whole number, not 'abc'",
        ),
        (
            kubernetes("ttl_seconds_active: yes"),
            "config.ttl_seconds_active: must be a whole number, not 'yes'",
        ),
        (kubernetes("ttl_seconds_active: -1"), "config.ttl_seconds_active: must be at least 1, not '-1'"),
        (kubernetes("storage: 5"), "config.storage: must be a mapping of keys, not '5'"),
        ("service: {log_level: loud}", "service.log_level: must be 'DEBUG', 'INFO'"),
        (
            "platform: {base_url: localhost}",
            "must be a URL that begins with http://, https:// or unix://, not 'localhost'",
        ),
        ("database: {url: postgres://u@h/d}", "must be postgresql://user@host:port/name"),
        (
            "platform: {docker: {reserved_gpu_device_ids: [0, 2]}}",
            'never a list: "all", "none" or ids such as "0,2"',
        ),
        ('platform: {docker: {reserved_gpu_device_ids: "0,x"}}', "whole numbers"),
        ('platform: {docker: {reserved_gpu_device_ids: "0,GPU-$(id)"}}', "ids such as GPU-"),
        ('platform: {docker: {reserved_gpu_device_ids: "0, 2,0"}}', "must name each GPU once"),
        ("platform: {docker: {host: /var/run/docker.sock}}", "unix:///path/to/socket"),
        ("platform: {docker: {host: 'ssh://-oProxyCommand=x'}}", "ssh://user@host"),
        ("platform: {docker: {host: 'tcp://user:secret@far:2376'}}", "without a password"),
        ("platform: {docker: {tls: {client_key_path: /k}}}", "needed together"),
    ],
)
def test_c015_a_wrong_type_says_what_is_allowed(text: str, says: str, tmp_path: Path) -> None:
    assert says in problem(text, tmp_path)


def test_c015_a_placeholder_counts_as_empty_with_a_warning(tmp_path: Path) -> None:
    loaded = load("jobs: {executors: [{backend: kubernetes_job, config: {...}}]}", tmp_path)
    assert loaded.settings.jobs.executors[0].config.model_fields_set == set()
    (warning,) = loaded.warnings
    assert "config.yaml:1: jobs.executors[0].config: '{...}'" in warning


def test_c015_an_empty_config_counts_as_empty_and_a_missing_one_does_not(tmp_path: Path) -> None:
    text = "jobs:\n  executors:\n    - backend: docker\n      config:\n"
    assert load(text, tmp_path).warnings == []
    for backend, provider in (
        ("docker", "cpu"),
        ("kubernetes_job", "cpu"),
        ("volcano_job", "gpu_distributed"),
        ("openshell", "cpu"),
    ):
        said = problem(f"jobs: {{executors: [{{backend: {backend}, provider: {provider}}}]}}", tmp_path)
        assert said == "config.yaml:1: jobs.executors[0].config: is missing"
    load("jobs: {executors: [{backend: subprocess}, {backend: e2e}]}", tmp_path)


def test_c035_a_repeated_profile_names_both_places(tmp_path: Path) -> None:
    text = """\
        jobs:
          executors:
            - {provider: gpu, backend: docker, config: {}}
            - {backend: e2e}
            - {provider: gpu, profile: default, backend: e2e}
    """
    said = problem(text, tmp_path)
    assert said.startswith(
        "config.yaml:5: jobs.executors[2]: profile gpu/default is there twice, first at config.yaml:3"
    )
    assert "jobs.executors[0]" in said


def test_c035_a_repeated_profile_from_the_environment_is_found_too() -> None:
    from tests.config.loading import environment_problem

    said = environment_problem(NHX_JOBS_EXECUTORS='[{"backend":"subprocess"},{"backend":"subprocess"}]')
    assert "subprocess/default is there twice" in said


@pytest.mark.parametrize(
    "text",
    [
        "jobs:\n  executors: []\n  executors: []\n",
        "jobs: {}\n\njobs: {}\n",
        kubernetes("env: {A: x,\n A: y}"),
    ],
)
def test_c035_a_repeated_key_is_refused_with_both_lines(text: str, tmp_path: Path) -> None:
    assert "the key stands twice, first on line" in problem(text, tmp_path)


def test_c035_overriding_a_built_in_profile_is_allowed(tmp_path: Path) -> None:
    load("jobs: {executors: [{backend: subprocess, profile: default}]}", tmp_path)


TRAPS = [
    "true",
    "no",
    "on",
    "yes",
    "010",
    "1.10",
    "12:30",
    "12:30:00",
    "1e3",
    "2024-01-01",
    "null",
    "~",
    "0x1F",
    "1_000",
    "0o17",
    ".inf",
    "5",
]


@pytest.mark.parametrize("written", TRAPS)
@pytest.mark.parametrize(
    ("template", "path"),
    [
        (kubernetes("node_selector: {label: @}"), "jobs.executors[0].config.node_selector.label"),
        (kubernetes("pod_metadata: {labels: {v: @}}"), "jobs.executors[0].config.pod_metadata.labels.v"),
        (kubernetes("env: {FLAG: @}"), "jobs.executors[0].config.env.FLAG"),
        (kubernetes("storage: {pvc_name: @}"), "jobs.executors[0].config.storage.pvc_name"),
        (kubernetes("affinity: {a: [{b: [@]}]}"), "jobs.executors[0].config.affinity.a[0].b[0]"),
        ("platform: {image_tag: @}", "platform.image_tag"),
    ],
    ids=["selector", "label", "env", "claim", "affinity", "tag"],
)
def test_c043_what_yaml_does_not_take_for_text_is_refused_as_written(
    written: str, template: str, path: str, tmp_path: Path
) -> None:
    said = problem(template.replace("@", written), tmp_path)
    assert said.startswith(f"config.yaml:1: {path}: ")
    assert f'in quotes: "{written}"' in said


@pytest.mark.parametrize("written", TRAPS)
def test_c043_text_in_quotes_stays_as_written(written: str, tmp_path: Path) -> None:
    loaded = load(kubernetes(f"node_selector: {{label: '{written}'}}"), tmp_path)
    assert loaded.settings.jobs.executors[0].config.model_dump()["node_selector"] == {"label": written}


@pytest.mark.parametrize("key", ["on", "no", "1", "010", "null", "2024-01-01", "1e3"])
def test_c043_keys_are_text_too(key: str, tmp_path: Path) -> None:
    said = problem(kubernetes(f"node_selector: {{{key}: x}}"), tmp_path)
    assert f"the key {key} is read as" in said
    assert f'"{key}"' in said


@pytest.mark.parametrize("written", ["010", "0o17", "12:30", "2024-01-01"])
def test_c043_numbers_that_readers_of_yaml_read_differently_are_refused(written: str, tmp_path: Path) -> None:
    assert f"port: {written} is read as" in problem(f"service: {{port: {written}}}", tmp_path)


def test_c043_objects_of_any_form_hold_no_dates(tmp_path: Path) -> None:
    said = problem(kubernetes("pod_security_context: {seen: [{at: 2024-01-01}]}"), tmp_path)
    assert "pod_security_context.seen[0].at: 2024-01-01 is read as a date" in said
    loaded = load(kubernetes("pod_security_context: {runAsUser: 1000, runAsNonRoot: true}"), tmp_path)
    assert loaded.settings.jobs.executors[0].config.model_dump()["pod_security_context"] == {
        "runAsUser": 1000,
        "runAsNonRoot": True,
    }


def test_c043_affinity_takes_text_but_for_its_counts(tmp_path: Path) -> None:
    wrong = (
        "affinity: {nodeAffinity: {weight: 3, values: [true, 1.10]}}, tolerations: [{tolerationSeconds: 30}]"
    )
    assert [line.split(": ")[1] for line in problems(kubernetes(wrong), tmp_path)] == [
        "jobs.executors[0].config.affinity.nodeAffinity.values[0]",
        "jobs.executors[0].config.affinity.nodeAffinity.values[1]",
    ]


def test_c078_a_backend_that_does_not_serve_the_provider_is_refused(tmp_path: Path) -> None:
    said = problem("jobs: {executors: [{provider: gpu, profile: big, backend: subprocess}]}", tmp_path)
    assert said.startswith("config.yaml:1: jobs.executors[0].provider: ")
    assert all(word in said for word in ("'subprocess'", "'gpu'", "'big'"))


def test_an_unknown_backend_names_the_known_ones(tmp_path: Path) -> None:
    said = problem("jobs: {executors: [{backend: volcano, config: {}}]}", tmp_path)
    assert "one of: docker, kubernetes_job, volcano_job, openshell, subprocess, e2e" in said
    assert "did you mean volcano_job?" in said
    assert "backend is missing" in problem("jobs: {executors: [{config: {}}]}", tmp_path)


@pytest.mark.parametrize(
    "name", ["NEMO_JOB_ID", "NHX_TASK_CONFIG", "NHX_JOBS_URL", "NHX_ACCESS_TOKEN", "NEMO_WORKLOAD_X"]
)
def test_reserved_variables_in_a_profile_are_refused(name: str, tmp_path: Path) -> None:
    for text in (
        kubernetes(f"env: {{{name}: x}}"),
        f"jobs: {{executor_defaults: {{subprocess: {{env: {{{name}: x}}}}}}}}",
    ):
        assert f"env.{name}: is reserved" in problem(text, tmp_path)


def test_sections_of_other_services_give_a_warning_each(tmp_path: Path) -> None:
    loaded = load("entities: {a: 1}\nsecrets: {}\nnim_gateway: {a: 1}\nx-mine: 5\n", tmp_path)
    assert [warning.split(": ")[1] for warning in loaded.warnings] == ["entities", "secrets", "nim_gateway"]


def test_keys_of_the_family_in_section_auth_give_a_warning_each(tmp_path: Path) -> None:
    text = """
auth:
  enabled: true
  admin_email: a@b.example
  oidc:
    issuer: https://idp.example
    client_id: nemo
    device_flow: {poll: 5}
    workload: {client_id: nemo-work, token_url: https://idp.example/token}
"""
    loaded = load(text, tmp_path)
    assert [warning.split(": ")[1] for warning in loaded.warnings] == [
        "auth.admin_email",
        "auth.oidc.device_flow",
        "auth.oidc.workload.token_url",
    ]
    auth = loaded.settings.auth
    assert (auth.enabled, auth.oidc.wanted_audience, auth.oidc.workload.client_id) == (
        True,
        "nemo",
        "nemo-work",
    )


def test_a_misspelt_key_of_auth_is_no_key_of_others(tmp_path: Path) -> None:
    assert problem("auth: {enabeld: true}", tmp_path).endswith(
        "auth.enabeld: is no key of this service; did you mean enabled?"
    )
    assert "did you mean issuer?" in problem("auth: {oidc: {isuer: https://a.example}}", tmp_path)


def test_an_issuer_without_an_audience_or_over_plain_http_is_refused(tmp_path: Path) -> None:
    assert "needs audience (or client_id)" in problem("auth: {oidc: {issuer: https://a.example}}", tmp_path)
    assert "must be an https:// address" in problem(
        "auth: {oidc: {issuer: 'http://idp.example', audience: a}}", tmp_path
    )
    assert "auth.oidc.algorithms[0]" in problem(
        "auth: {oidc: {issuer: https://a.example, audience: a, algorithms: [HS256]}}", tmp_path
    )
    assert "auth.oidc.grants[0].workspaces[0]" in problem(
        "auth: {oidc: {grants: [{value: x, workspaces: [No], scopes: [read]}]}}", tmp_path
    )


def test_auth_is_set_by_the_environment_too(tmp_path: Path) -> None:
    loaded = load(
        "",
        tmp_path,
        NHX_AUTH_ENABLED="true",
        NHX_AUTH_OIDC__ISSUER="https://idp.example/realms/a",
        NHX_AUTH_OIDC__AUDIENCE="nemo",
        NHX_AUTH_OIDC__GRANTS='[{"value": "ops", "workspaces": ["*"], "scopes": ["admin"]}]',
        NHX_AUTH_URL="http://auth.example",
        NHX_AUTH_ENABELD="yes",
    )
    auth = loaded.settings.auth
    assert (auth.enabled, auth.oidc.issuer) == (True, "https://idp.example/realms/a")
    assert auth.oidc.grants[0].claim == "groups"
    assert loaded.settings.platform.service_discovery == {"auth": "http://auth.example"}
    assert loaded.warnings == [
        "environment variable NHX_AUTH_ENABELD matches no setting and is ignored; "
        "did you mean NHX_AUTH_ENABLED?"
    ]


def test_keys_of_the_family_in_section_files_give_a_warning_each(tmp_path: Path) -> None:
    loaded = load(
        "files:\n  host_prefix: {a: 1}\n  storage: {url: 's3://bucket/nemo', type: local}\n", tmp_path
    )
    assert loaded.settings.files.storage.url == "s3://bucket/nemo"
    assert [warning.split(": ")[1] for warning in loaded.warnings] == [
        "files.host_prefix",
        "files.storage.type",
    ]
    misspelt = load("files: {storage: {optoins: {}}}", tmp_path)
    assert "did you mean options?" in misspelt.warnings[0]


def test_where_files_lie_can_be_said_in_these_ways(tmp_path: Path) -> None:
    for url in ("s3://b", "s3://b/p/q", "gs://b/p", "az://c", "abfss://c@acc.dfs.core.windows.net/p"):
        assert load(f"files: {{storage: {{url: '{url}'}}}}", tmp_path).settings.files.storage.url == url
    for url in ("http://host/bucket", "s3://key:hunter2@bucket", "file:relative", "s3://b?x=1", "bucket"):
        said = problem(f"files: {{storage: {{url: '{url}'}}}}", tmp_path)
        assert "files.storage.url: must be s3://bucket/prefix" in said
        assert "hunter2" not in said
    assert "files.max_upload_bytes: must be at least 1" in problem("files: {max_upload_bytes: 0}", tmp_path)


def test_a_password_in_a_url_is_not_shown(tmp_path: Path) -> None:
    said = problem("database: {url: 'mysql://user:hunter2@host/db'}", tmp_path)
    assert "hunter2" not in said
    assert "mysql://user:***@host/db" in said


def test_a_problem_is_one_line_whatever_is_in_the_file(tmp_path: Path) -> None:
    said = problem('jobs: {"bad\\nkey\\x1b[31m": 1}', tmp_path)
    assert said.isprintable()

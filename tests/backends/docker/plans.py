"""Plans for tests of what is pure in the Docker backend."""

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_jobs.backends.api import Plan, PlatformInfo
from nemo_jobs.domain.names import task_name
from nemo_jobs.domain.profile_configs import DockerConfig

KEY = "nj-1234567890abcdefghijk-1"


def make_plan(
    *,
    container: Mapping[str, Any] | None = None,
    env: Mapping[str, Any] | None = None,
    profile: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    key: str = KEY,
    **changes: Any,
) -> Plan:
    """`env` values that are texts are values; a dict is a whole variable."""
    variables = [
        {"name": name, **(given if isinstance(given, dict) else {"value": given})}
        for name, given in (env or {}).items()
    ]
    executor = {
        "provider": "cpu",
        "profile": "default",
        "container": {"image": "image:1", "entrypoint": [], "command": ["run", "it"], **(container or {})},
        "resources": {"limits": {}, **(resources or {})},
    }
    urls = {"base": "http://localhost:8080", "files": "http://127.0.0.1:8080", "jobs": "https://jobs.example"}
    return Plan(
        **{
            "key": key,
            "provider": "cpu",
            "profile": "default",
            "config": DockerConfig.model_validate(profile or {}),
            "workspace": "space",
            "job": "a-job",
            "job_id": "platform-job-1",
            "attempt_id": "platform-job-attempt-1",
            "step": "a-step",
            "step_id": "platform-job-step-1234567890abcdefghijk",
            "task": task_name(key),
            "fileset": "job-fileset-a-job",
            "output_location": None,
            "spec": {"executor": executor, "environment": variables or None, "config": config or {}},
            "platform": PlatformInfo(urls),
            "principal": {"id": "someone"},
            **changes,
        }
    )


def environment_of(body: Mapping[str, Any]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in body["Env"])


def targets_of(body: Mapping[str, Any]) -> Sequence[str]:
    return [mount["Target"] for mount in body["HostConfig"]["Mounts"]]

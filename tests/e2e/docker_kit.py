"""A service with containers, and what tests want to know of an engine behind its back."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.bed.docker import DockerServer
from tests.bed.docker_api import Api, ApiError
from tests.bed.docker_images import BUSYBOX
from tests.bed.proxy import Proxy
from tests.e2e.service import JOBS, Client, Json, Service, until

PREFIX = "nhx.nvidia.com/"
MANAGED = f"{PREFIX}managed_by=jobs-controller"
STORAGE = "NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH"


class DockerService(Service):
    """A service whose `cpu/default` and `gpu/default` run on an engine of the bed.

    `profile` is the configuration of the Docker profiles. `marks` is a folder of this machine that
    every container of the service sees as /marks: what work writes there is known without the engine.
    """

    def __init__(
        self,
        root: Path,
        docker: DockerServer,
        *,
        through: Proxy | None = None,
        profile: Json | None = None,
        platform: Json | None = None,
        executors: Sequence[Json] = (),
        gpus: int = 4,
        **given: Any,
    ) -> None:
        self.docker, self.api = docker, docker.api
        self.marks = root / "marks"
        self.marks.mkdir(parents=True, exist_ok=True)
        self.marks.chmod(0o1777)
        self.volume = "bed-" + re.sub(r"[^a-z0-9]+", "-", f"{root.name}-{time.time_ns():x}".lower())
        options = {"type": "none", "o": "bind", "device": str(self.marks)}
        docker.api.post("/volumes/create", {"Name": f"{self.volume}-marks", "DriverOpts": options})
        self.profile: Json = {
            "stop_timeout_seconds": 2,
            "storage": {
                "volume_name": self.volume,
                "additional_volume_mounts": [{"volume_name": f"{self.volume}-marks", "mount_path": "/marks"}],
            },
            **(profile or {}),
        }
        settings = {
            "platform": {
                "runtime": "docker",
                "docker": {
                    "host": through.host if through else docker.host,
                    "gpu_device_count": gpus,
                    "minimum_free_bytes": 0,
                },
                **(platform or {}),
            }
        }
        super().__init__(root, settings=settings, **given)
        self.add_settings({"jobs": {"executor_defaults": {"docker": self.profile}}} | {})
        if executors:
            self.add_executors(executors)

    def add_settings(self, more: Json) -> None:
        """As of `Service`, but executor_defaults of several backends live together."""
        config = json.loads(self.config.read_text())
        jobs = config.setdefault("jobs", {})
        defaults = jobs.get("executor_defaults", {}) | more.get("jobs", {}).get("executor_defaults", {})
        super().add_settings(more)
        config = json.loads(self.config.read_text())
        config["jobs"]["executor_defaults"] = defaults
        self.config.write_text(json.dumps(config))

    def add_executors(self, executors: Sequence[Json]) -> None:
        """More profiles: `config` goes over that of the default ones."""
        whole = [
            {"backend": "docker", **one, "config": self.profile | one.get("config", {})} for one in executors
        ]
        self.add_settings({"jobs": {"executors": whole}})

    def start(self, timeout: float = 60) -> Self:
        """As of `Service`, on a machine that is busy with containers."""
        return super().start(timeout)

    # What the engine has of this service.

    @property
    def owner(self) -> str:
        """The label of all that is this service's: its data directory says who it is."""
        digest = hashlib.sha256(f"nhx-data-dir:{self.data_dir}".encode()).hexdigest()
        return f"{PREFIX}jobs_controller_instance_id={digest[:32]}"

    def containers(self, *labels: str) -> list[Json]:
        """Containers of this service, also those that have ended."""
        return self.api.containers(MANAGED, self.owner, *labels)

    def container(self, job: str) -> Json:
        """The only task container of a job, as `inspect` has it."""
        found = self.containers(f"{PREFIX}job_id={job}", f"{PREFIX}job_type=job")
        assert len(found) == 1, f"{job} has {len(found)} containers: {[one['Names'] for one in found]}"
        return self.api.inspect(found[0]["Id"])

    def volumes_of(self, job: str) -> list[str]:
        """Names of volumes that a job has for itself."""
        return [one["Name"] for one in self.api.volumes(MANAGED, self.owner, f"{PREFIX}job_id={job}")]

    def leftovers(self) -> list[str]:
        """Names of containers and volumes of tasks that are still there."""
        containers = [name for one in self.containers() for name in one["Names"]]
        volumes = [one["Name"] for one in self.api.volumes(MANAGED, self.owner)]
        return containers + [name for name in volumes if name != self.volume]

    def storage_of(self, job: str) -> Path:
        """Where the storage of a job lies on this machine."""
        place = self.api.get(f"/volumes/{self.volume}")["Mountpoint"]
        return Path(place, "jobs", "default", job)

    def marked(self, name: str) -> list[str]:
        """The lines that work wrote to /marks/NAME."""
        file = self.marks / name
        return file.read_text().splitlines() if file.exists() else []

    def close(self) -> None:
        """End the service and remove what it has on the engine."""
        super().close()
        for one in self.containers():
            try:
                self.api.delete(f"/containers/{one['Id']}", force=True, v=True)
            except ApiError:
                pass
        for name in (*self.leftovers(), self.volume, f"{self.volume}-marks"):
            try:
                self.api.delete(f"/volumes/{name}", force=True)
            except ApiError:
                pass


def container_step(
    command: Sequence[str],
    *,
    name: str = "step-1",
    image: str | None = BUSYBOX,
    provider: str = "cpu",
    profile: str = "default",
    entrypoint: Sequence[str] = (),
    resources: Json | None = None,
    env: dict[str, str] | None = None,
    secrets: dict[str, str] | None = None,
    **fields: Any,
) -> Json:
    """A step that runs this in a container."""
    variables: list[Json] = [{"name": key, "value": value} for key, value in (env or {}).items()]
    variables += [{"name": key, "from_secret": {"name": of}} for key, of in (secrets or {}).items()]
    executor = {
        "provider": provider,
        "profile": profile,
        "container": {"image": image, "command": list(command), "entrypoint": list(entrypoint)},
        "resources": resources or {},
    }
    return {"name": name, "executor": executor, "environment": variables, **fields}


def submit(client: Client, name: str, *steps: Json, **fields: Any) -> Json:
    """Create a job of these steps, named step-1, step-2 …"""
    named = [{**step, "name": f"step-{number}"} for number, step in enumerate(steps, 1)]
    body = {"name": name, "source": "tests", "spec": {}, "platform_spec": {"steps": named}, **fields}
    answer = client.post(JOBS, body)
    assert answer.status == 201, answer
    return answer.json


def run(client: Client, name: str, command: Sequence[str] | str, **given: Any) -> None:
    """A job of one step; a text is a script for the shell of the image."""
    words = ["sh", "-c", command] if isinstance(command, str) else command
    submit(client, name, container_step(words, **given))


def error_of(client: Client, name: str, timeout: float = 20) -> str:
    """The message of a job that must end in error."""
    job = client.wait(name, timeout=timeout)
    assert job["status"] == "error", f"{name} is {job['status']}: {client.status(name)}"
    return job["error_details"]["message"]


def task_of(client: Client, name: str) -> Json:
    """The only task of the last step."""
    (task,) = client.status(name)["steps"][-1]["tasks"]
    return task


def says(client: Client, name: str, pattern: str, timeout: float = 20) -> str:
    """Wait until the message of the job's last step matches; that message."""

    def message() -> str:
        steps = client.status(name)["steps"]
        text = steps[-1]["status_details"].get("message", "") if steps else ""
        return text if re.search(pattern, text) else ""

    return until(message, timeout, lambda: f"{name} never said {pattern!r}: {client.status(name)}")


def first_line(client: Client, name: str, timeout: float = 20) -> None:
    until(lambda: client.messages(name), timeout, lambda: f"{name} printed nothing: {client.status(name)}")


def act(client: Client, name: str, verb: str) -> Json:
    answer = client.post(f"{JOBS}/{name}/{verb}")
    assert answer.status == 200, answer
    return answer.json


def gpus(client: Client) -> Json:
    answer = client.get("/apis/jobs/v2/gpus")
    assert answer.status == 200, answer
    return answer.json


def gone(condition: Callable[[], Any], timeout: float = 20) -> None:
    """Wait until nothing is left; the complaint shows what is."""
    until(lambda: not condition(), timeout, lambda: f"still there: {condition()}")


def running(api: Api, *labels: str) -> list[Json]:
    return api.containers(*labels, all=False)

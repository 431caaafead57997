"""The Docker backend on an engine of the bed, and tools to look at its containers."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_jobs.backends.api import Backend, Plan, PlatformInfo
from nemo_jobs.backends.docker.backend import DockerBackend, Options
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.labels import instance_id
from nemo_jobs.domain.profile_configs import DockerConfig
from nemo_jobs.testing import Harness, Work
from tests.backends.host import RealClock, _script
from tests.bed.docker import DockerServer
from tests.bed.docker_api import ApiError
from tests.bed.docker_images import BUSYBOX


class DockerHarness(Harness):
    """Several backends over one engine and one data directory; removes everything at `close`."""

    def __init__(self, directory: Path, docker: DockerServer, *, host: str = "", direct: bool = True) -> None:
        """`host` is another way to the engine; without `direct` its disk is left to the engine alone."""
        self.directory, self.docker, self.api = directory, docker, docker.api
        self.host, self.direct = host or docker.host, direct
        self.data_dir = directory / "data"
        self.marks = directory / "marks"
        self.marks.mkdir()
        self.marks.chmod(0o1777)
        self.volume = f"bed-{uuid.uuid4().hex[:12]}"
        options = {"type": "none", "o": "bind", "device": str(self.marks)}
        self.api.post("/volumes/create", {"Name": f"{self.volume}-marks", "DriverOpts": options})
        self._made: list[DockerBackend] = []
        self.job = f"job-{self.volume[4:]}"
        self._plans: list[Plan] = []

    async def backend(self) -> Backend:
        backend = await self.unstarted()
        await backend.start()
        self._made.append(backend)
        return backend

    async def unstarted(self, data_dir: Path | None = None) -> DockerBackend:
        """A backend of this world, or of another data directory, that has not spoken to its engine yet."""
        owner = instance_id(str(data_dir or self.data_dir), None)
        options = Options(self.data_dir, "this", owner, direct=self.direct)
        return DockerBackend(await DockerEngine.open(self.host), options, RealClock())

    def plan(self, work: Work) -> Plan:
        if work.refused:
            absent = {"volume_name": "no-such-volume", "mount_path": "/absent"}
            return self.command(["true"], profile={"storage": {"additional_volume_mounts": [absent]}})
        plan = self.command([])
        script = _script(work, Path("/marks") / f"starts-{plan.key}")
        return self.command(["sh", "-c", script], like=plan)

    def command(
        self,
        command: Sequence[str],
        *,
        like: Plan | None = None,
        image: str = BUSYBOX,
        provider: str = "cpu",
        env: Mapping[str, str] | None = None,
        profile: Mapping[str, Any] | None = None,
        resources: Mapping[str, Any] | None = None,
        entrypoint: Sequence[str] = (),
        **changes: Any,
    ) -> Plan:
        """A plan that runs this in a container of `image`."""
        number = uuid.uuid4().hex
        key = like.key if like else f"nj-{number}-0"
        given = {"NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH": "/var/run/scratch/job", **(env or {})}
        spec = {
            "name": "step",
            "environment": [{"name": n, "value": v, "from_secret": None} for n, v in given.items()],
            "executor": {
                "provider": provider,
                "profile": "default",
                "container": {"image": image, "entrypoint": list(entrypoint), "command": list(command)},
                "resources": {
                    "requests": {"cpu": None, "memory": None},
                    "limits": {"cpu": None, "memory": None},
                    "num_nodes": 1,
                    "num_gpus": None,
                    "shm_size": None,
                    **(resources or {}),
                },
            },
            "config": changes.pop("config", {"from": "test"}),
            "lifecycle": {"staleness_timeout_seconds": 0},
        }
        plan = Plan(
            **{
                "key": key,
                "provider": provider,
                "profile": "default",
                "config": self.profile(**(profile or {})),
                "workspace": "default",
                "job": self.job,
                "job_id": f"platform-job-{key[3:35]}",
                "attempt_id": f"platform-job-attempt-{key[3:35]}",
                "step": "step",
                "step_id": f"platform-job-step-{key[3:35]}",
                "task": f"task-{key[3:35]}",
                "fileset": "job-fileset",
                "output_location": None,
                "spec": spec,
                "platform": PlatformInfo({"base": "http://127.0.0.1:8080"}),
                **changes,
            }
        )
        self._plans.append(plan)
        return plan

    def profile(self, **changes: Any) -> DockerConfig:
        mount = {"volume_name": f"{self.volume}-marks", "mount_path": "/marks"}
        storage = {"volume_name": self.volume, "additional_volume_mounts": [mount]}
        return DockerConfig.model_validate({"storage": storage, "stop_timeout_seconds": 1, **changes})

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def starts(self, plan: Plan) -> int:
        file = self.marks / f"starts-{plan.key}"
        return len(file.read_bytes().splitlines()) if file.exists() else 0

    def has_storage(self, plan: Plan) -> bool:
        """All plans are of one job, so the folder is that of the attempt that is written down beside it."""
        places = [one["Mountpoint"] for one in self.api.volumes() if one["Name"] == self.volume]
        if not places:
            return False
        place = places[0]
        note = Path(place, "jobs", plan.workspace, f".{plan.job}.attempt")
        folder = Path(place, "jobs", plan.workspace, plan.job)
        return folder.is_dir() and note.exists() and note.read_text().strip() == plan.attempt_id

    def containers(self) -> list[dict[str, Any]]:
        """All containers of this harness, whoever of its backends made them."""
        return self.api.containers(f"nhx.nvidia.com/job_id={self.job}")

    async def close(self) -> None:
        for backend in self._made:
            await backend.aclose()
        for one in self.containers():
            try:
                self.api.delete(f"/containers/{one['Id']}", force=True, v=True)
            except ApiError:
                pass
        volumes = [one["Name"] for one in self.api.volumes(f"nhx.nvidia.com/job_id={self.job}")]
        for name in (*volumes, self.volume, f"{self.volume}-marks"):
            try:
                self.api.delete(f"/volumes/{name}", force=True)
            except ApiError:
                pass

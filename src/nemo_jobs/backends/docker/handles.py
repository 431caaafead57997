"""Handles of containers: made of what the engine says, so each service makes the same one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nemo_jobs.backends.api import Handle, Json
from nemo_jobs.backends.docker import labels

NAME = "docker"
HANDLE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine that a backend speaks to, as handles name it. `host` is empty unless the engine is
    this host's."""

    id: str
    address: str
    name: str = ""
    host: str = ""

    def has(self, data: Json) -> bool:
        """Whether work with this handle is looked for here: it is this engine, or one that took its place."""
        same_place = data.get("address") == self.address and data.get("host", "") == self.host
        return data.get("engine") == self.id or same_place

    def elsewhere(self, data: Json) -> str:
        """Why work with this handle can't be seen from here."""
        there = data.get("node") or data.get("engine")
        where = f"the Docker engine {there} ({data.get('address')})"
        return f"its container is on {where}; this service uses {self.address}"


def handle_of(engine: Engine, container: str, name: str, marks: Mapping[str, str], image: str) -> Handle:
    """The handle of a container, whose labels are ours."""
    run = labels.run_of(name, marks)
    data: Json = {
        "engine": engine.id,
        "address": engine.address,
        "node": engine.name,
        "container": container,
        "image": image,
        "results": marks.get(labels.RESULTS, ""),
        "first": marks[labels.KEY],
        "first_task": marks.get(labels.TASK, ""),
        "task": labels.task_of(run, marks),
        "since": run.since,
        "workspace": marks.get(labels.WORKSPACE, ""),
        "job": marks.get(labels.JOB, ""),
        "attempt": marks.get(labels.ATTEMPT, ""),
    }
    if engine.host:
        data["host"] = engine.host
    data["volumes"] = list(_volumes(data, marks))
    if volume := marks.get(labels.STORAGE_VOLUME):
        used = marks.get(labels.USES_STORAGE) == "true"
        data["storage"] = {"volume": volume, "image": marks.get(labels.STORAGE_IMAGE, ""), "used": used}
    return Handle(NAME, run.key, HANDLE_VERSION, data)


def _volumes(data: Json, marks: Mapping[str, str]) -> Iterator[str]:
    """The volumes that come and go with the container."""
    names = labels.task_volumes(data["workspace"], data["job"], data["first_task"])
    yield names.storage
    yield names.config
    if labels.TOKEN_VOLUME in marks:
        yield names.token

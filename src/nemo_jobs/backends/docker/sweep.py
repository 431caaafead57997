"""Everything on an engine that carries this service's name, in use or not."""

from collections.abc import AsyncIterator
from datetime import datetime

from nemo_jobs.backends.api import BackendError, Json, Leftover, Unavailable
from nemo_jobs.backends.docker import labels
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway, EngineError

CONTAINER, VOLUME = "container", "volume"


async def belongings(engine: DockerEngine, owner: str) -> AsyncIterator[Leftover]:
    """As `Sweeps.belongings`. The volumes of jobs' storage belong to no run, and are left out."""
    mine = [f"{name}={value}" for name, value in {**labels.OURS, labels.INSTANCE: owner}.items()]
    filters = {"label": [*mine, labels.KEY]}
    try:
        # Volumes first: a container that is made in between has new ones.
        volumes = await engine.volume_list(filters)
        containers = await engine.containers(filters)
    except EngineAway as error:
        raise Unavailable(str(error)) from error
    except EngineError as error:
        raise Unavailable(f"the engine can't list what it has: {error}") from error
    runs = {}
    for item in containers:
        marks = item.get("Labels") or {}
        name = str((item.get("Names") or [""])[0]).removeprefix("/")
        run = labels.run_of(name, marks)
        if marks.get(labels.TYPE) == labels.JOB_TYPE:
            runs[marks[labels.KEY]] = run.key
        made = int(item.get("Created") or 0) * 1_000_000
        yield Leftover(CONTAINER, name or item["Id"], run.key, made, {"id": item["Id"]})
    for item in volumes:
        key = (item.get("Labels") or {}).get(labels.KEY, "")
        # A container that was started again belongs to a later run, and its volumes with it.
        yield Leftover(VOLUME, item["Name"], runs.get(key, key), _made_at(item), {"name": item["Name"]})


async def discard(engine: DockerEngine, item: Leftover) -> None:
    """As `Sweeps.discard`."""
    try:
        if item.kind == CONTAINER:
            await engine.remove(item.data["id"], force=True, volumes=True)
        else:
            await engine.volume_remove(item.data["name"])
    except EngineAway as error:
        raise Unavailable(str(error)) from error
    except EngineError as error:
        raise BackendError(f"{item.kind} {item.name} can't be removed: {error}") from error


def _made_at(volume: Json) -> int:
    try:
        return int(datetime.fromisoformat(volume["CreatedAt"]).timestamp()) * 1_000_000
    except (KeyError, ValueError, TypeError):
        return 0

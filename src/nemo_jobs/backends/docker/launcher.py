"""The program that runs a task's own, where the service has one."""

import asyncio
import os
import stat

from nemo_jobs.backends.api import Plan, Rejected
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.spec import LAUNCHER, DockerSettings, ImageFacts
from nemo_jobs.backends.docker.volumes import File

#: A program of more bytes than this is none.
MOST_BYTES = 256 << 20


async def wanted(plan: Plan, engine: DockerEngine, image: str) -> ImageFacts | None:
    """What the image says about its program, if the launcher is to run it; None without a launcher."""
    settings: DockerSettings = plan.config
    if not settings.launcher_tool_path or not os.path.isfile(settings.launcher_tool_path):
        return None
    found = await engine.image(image)
    facts = ImageFacts.of(found or {})
    container = plan.spec["executor"]["container"]
    named = container.get("entrypoint") or container.get("command") or facts.entrypoint or facts.command
    if found is not None and not named:
        raise Rejected(f"neither the step nor the image {image} names a program to run")
    return facts


async def files(plan: Plan) -> list[File]:
    """The launcher as a file of the container; none without one."""
    settings: DockerSettings = plan.config
    if not settings.launcher_tool_path or not os.path.isfile(settings.launcher_tool_path):
        return []
    data = await asyncio.to_thread(_read, settings.launcher_tool_path)
    return [File(LAUNCHER, data, 0o755)]


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        there = os.fstat(file.fileno())
        if not stat.S_ISREG(there.st_mode) or there.st_size > MOST_BYTES:
            raise Rejected(f"the launcher {path} is no program: it has {there.st_size} bytes")
        return file.read()

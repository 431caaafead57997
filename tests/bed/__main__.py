"""`python -m tests.bed up|down|status NAME`: a server to play with, kept until it is taken down.

NAME is `postgres` or `docker`. What runs is noted in build/bed-NAME.json.
"""

import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.bed import docker, postgres
from tests.e2e.service import alive, proc_file, send

BUILD = Path(__file__).parents[2] / "build"
Note = dict[str, str | int]


class Part(Protocol):
    """One kind of server."""

    @property
    def title(self) -> str: ...

    def start(self) -> Note:
        """Start it and say where it is: `pid`, `folder` and what else a user needs."""
        ...

    def stop(self, note: Note) -> None: ...

    def hints(self, note: Note) -> list[str]:
        """How to use it."""
        ...


@dataclass(frozen=True)
class Postgres:
    title: str = "PostgreSQL"

    def start(self) -> Note:
        server = postgres.PostgresServer.start(fsync=True)
        words = [os.fsdecode(word) for word in proc_file(server.pid, "cmdline").split(b"\0")]
        folder = str(Path(words[words.index("-D") + 1]).parent)
        return {"pid": server.pid, "folder": folder, "url": server.new_database()}

    def stop(self, note: Note) -> None:
        send(int(note["pid"]), signal.SIGINT)
        deadline = time.monotonic() + 20
        while alive(int(note["pid"])) and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(str(note["folder"]), ignore_errors=True)

    def hints(self, note: Note) -> list[str]:
        return [str(note["url"]), f"NHX_DATABASE_URL={note['url']} make serve"]


@dataclass(frozen=True)
class Docker:
    title: str = "Docker engine"

    def start(self) -> Note:
        server = docker.DockerServer.start()
        server.python_image()
        return {
            "pid": server.pid,
            "folder": str(server.folder),
            "host": server.host,
            "images": " ".join(tag for image in server.api.get("/images/json") for tag in image["RepoTags"]),
        }

    def stop(self, note: Note) -> None:
        docker.take_down(Path(str(note["folder"])), int(note["pid"]))

    def hints(self, note: Note) -> list[str]:
        host = note["host"]
        return [f"images: {note['images']}", f"DOCKER_HOST={host} make serve", f"docker -H {host} ps -a"]


PARTS: dict[str, Part] = {"postgres": Postgres(), "docker": Docker()}


def main(arguments: list[str]) -> int:
    actions = {"up": up, "down": down, "status": status}
    if len(arguments) != 2 or arguments[0] not in actions or arguments[1] not in PARTS:
        print(f"usage: python -m tests.bed up|down|status {'|'.join(PARTS)}", file=sys.stderr)
        return 2
    return actions[arguments[0]](arguments[1])


def up(name: str) -> int:
    if running(name) is None:
        try:
            note = PARTS[name].start()
        except (docker.Missing, postgres.Missing) as error:
            print(error, file=sys.stderr)
            return 1
        BUILD.mkdir(exist_ok=True)
        note_of(name).write_text(json.dumps(note))
    return status(name)


def down(name: str) -> int:
    title = PARTS[name].title
    if (note := running(name)) is None:
        print(f"{title} of the bed: not running")
        return 0
    PARTS[name].stop(note)
    note_of(name).unlink()
    print(f"{title} of the bed: stopped, its data are gone")
    return 0


def status(name: str) -> int:
    title = PARTS[name].title
    if (note := running(name)) is None:
        print(f"{title} of the bed: not running (make bed-up BED={name})")
        return 0
    print(f"{title} of the bed: runs with pid {note['pid']} in {note['folder']}")
    print("\n".join(f"  {line}" for line in PARTS[name].hints(note)))
    return 0


def running(name: str) -> Note | None:
    """What was noted, if that process is still that server."""
    if not note_of(name).exists():
        return None
    note: Note = json.loads(note_of(name).read_text())
    return note if os.fsencode(str(note["folder"])) in proc_file(int(note["pid"]), "cmdline") else None


def note_of(name: str) -> Path:
    return BUILD / f"bed-{name}.json"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

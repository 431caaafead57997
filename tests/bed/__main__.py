"""`python -m tests.bed up|down|status postgres`: a server to play with, kept until it is taken down."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from tests.bed.postgres import Missing, PostgresServer
from tests.e2e.service import alive, proc_file, send

NOTE = Path(__file__).parents[2] / "build" / "bed-postgres.json"


def main(arguments: list[str]) -> int:
    actions = {"up": up, "down": down, "status": status}
    if len(arguments) != 2 or arguments[0] not in actions or arguments[1] != "postgres":
        print("usage: python -m tests.bed up|down|status postgres", file=sys.stderr)
        return 2
    return actions[arguments[0]]()


def up() -> int:
    if running() is not None:
        return status()
    try:
        server = PostgresServer.start(fsync=True)
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    folder = folder_of(server.pid)
    NOTE.parent.mkdir(exist_ok=True)
    NOTE.write_text(json.dumps({"pid": server.pid, "url": server.new_database(), "folder": folder}))
    return status()


def down() -> int:
    if (note := running()) is None:
        print("PostgreSQL of the bed: not running")
        return 0
    send(int(note["pid"]), signal.SIGINT)
    deadline = time.monotonic() + 20
    while alive(int(note["pid"])) and time.monotonic() < deadline:
        time.sleep(0.05)
    shutil.rmtree(note["folder"], ignore_errors=True)
    NOTE.unlink()
    print("PostgreSQL of the bed: stopped, its data are gone")
    return 0


def status() -> int:
    if (note := running()) is None:
        print("PostgreSQL of the bed: not running (make bed-up)")
    else:
        print(f"PostgreSQL of the bed: runs with pid {note['pid']} in {note['folder']}\n  {note['url']}")
        print(f"  NHX_DATABASE_URL={note['url']} make serve")
    return 0


def running() -> dict[str, str] | None:
    """What was noted, if that process is still that server."""
    if not NOTE.exists():
        return None
    note: dict[str, str] = json.loads(NOTE.read_text())
    return note if os.fsencode(note["folder"]) in proc_file(int(note["pid"]), "cmdline") else None


def folder_of(pid: int) -> str:
    words = [os.fsdecode(word) for word in proc_file(pid, "cmdline").split(b"\0")]
    return str(Path(words[words.index("-D") + 1]).parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Images made from files of this machine, since tests can't pull any from outside."""

import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

BUSYBOX = "docker.io/library/busybox:stable"
#: A name below a registry that doesn't resolve: what isn't there can't be pulled either.
NO_SHELL = "registry.invalid/no-shell:1"
USER = "registry.invalid/user:1"
ENTRYPOINT = "registry.invalid/entrypoint:1"
PYTHON = "registry.invalid/python:1"

USER_UID, USER_GID = 1234, 2345

_PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = "root:x:0:\nnogroup:x:65534:\n"


@dataclass(frozen=True)
class Entry:
    """A file, a link (`link`) or a folder of an image."""

    data: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    link: str = ""
    folder: bool = False


@dataclass(frozen=True)
class Image:
    """The files of an image and the lines of a Dockerfile that say what else it is."""

    name: str
    files: Mapping[str, Entry]
    changes: tuple[str, ...] = ()


def standard() -> list[Image]:
    """The small images that every test may use."""
    base = busybox_files()
    account = f"worker:x:{USER_UID}:{USER_GID}:worker:/home/worker:/bin/sh\n"
    return [
        Image(BUSYBOX, base, ('CMD ["sh"]',)),
        # Programs alone: no shell, no account files, no folder for temporary files.
        Image(
            NO_SHELL,
            {
                "bin/tool": program(),
                **{f"bin/{name}": Entry(link="tool") for name in ("true", "echo", "cat", "sleep", "env")},
            },
            ('CMD ["/bin/true"]',),
        ),
        Image(
            USER,
            {
                **base,
                "etc/passwd": Entry((_PASSWD + account).encode()),
                "etc/group": Entry((_GROUP + f"workers:x:{USER_GID}:\nextra:x:3456:worker\n").encode()),
                "home/worker": Entry(folder=True, mode=0o755, uid=USER_UID, gid=USER_GID),
            },
            ("USER worker", "WORKDIR /home/worker", 'CMD ["sh"]'),
        ),
        Image(
            ENTRYPOINT,
            {
                **base,
                "bin/enter": Entry(b'#!/bin/sh\necho "entrypoint: $*"\nexec "$@"\n', 0o755),
            },
            ('ENTRYPOINT ["/bin/enter"]', 'CMD ["echo", "image command"]', "ENV FROM_IMAGE=kept"),
        ),
    ]


def busybox_files() -> dict[str, Entry]:
    """A small root: one program under many names, accounts, the usual folders."""
    return {
        "bin/busybox": program(),
        **{f"bin/{name}": Entry(link="busybox") for name in _applets() if name != "busybox"},
        "etc/passwd": Entry(_PASSWD.encode()),
        "etc/group": Entry(_GROUP.encode()),
        "tmp": Entry(folder=True, mode=0o1777),
        "root": Entry(folder=True, mode=0o700),
        "var": Entry(folder=True, mode=0o755),
    }


def program() -> Entry:
    """The static program of Debian's busybox-static: it needs nothing else in its image."""
    found = shutil.which("busybox")
    assert found, "busybox-static is not installed"
    return Entry(Path(found).read_bytes(), 0o755)


def _applets() -> list[str]:
    """The names under which that program is something."""
    command = [shutil.which("busybox") or "", "--list"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.split()


def python() -> Image:
    """An image with a Python interpreter and its standard library, taken from this machine."""
    interpreter = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    library, prefix = _where(interpreter)
    files = busybox_files()
    real = Path(interpreter).resolve()
    files[str(real).lstrip("/")] = Entry(real.read_bytes(), 0o755)
    files["bin/python3"] = Entry(link=str(real))
    for shared in _needed([real, *Path(library, "lib-dynload").glob("*.so")]):
        files[shared.lstrip("/")] = Entry(Path(shared).read_bytes(), 0o755)
    unwanted = {"test", "idlelib", "tkinter", "ensurepip", "__pycache__", "site-packages", "turtledemo"}
    for folder, folders, names in os.walk(library):
        folders[:] = [name for name in folders if name not in unwanted and not name.startswith("config-")]
        for name in names:
            file = Path(folder, name)
            files[str(file).lstrip("/")] = Entry(file.read_bytes())
    changes = ('CMD ["python3"]', f"ENV PYTHONHOME={prefix}", "ENV PATH=/bin:/usr/bin")
    return Image(PYTHON, files, changes)


def _where(interpreter: str) -> tuple[str, str]:
    """Standard library and prefix of an interpreter, which need not be the one that runs this."""
    if interpreter == sys.executable:
        return sysconfig.get_path("stdlib"), sys.base_prefix
    code = "import sysconfig, sys; print(sysconfig.get_path('stdlib')); print(sys.base_prefix)"
    done = subprocess.run([interpreter, "-c", code], check=True, capture_output=True, text=True, timeout=20)
    library, prefix = done.stdout.split()
    return library, prefix


def _needed(programs: Iterable[Path]) -> set[str]:
    """The shared libraries that these load, the loader itself too."""
    text = subprocess.run(
        ["ldd", *map(str, programs)], check=False, capture_output=True, text=True, timeout=60
    ).stdout
    words = {word for line in text.splitlines() if not line.endswith(":") for word in line.split()}
    return {word for word in words if word.startswith("/")}


def tar_of(files: Mapping[str, Entry]) -> bytes:
    """The files as a tar; folders in between are made by whoever unpacks it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, entry in files.items():
            info = tarfile.TarInfo(path.lstrip("/"))
            info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
            if entry.link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
            elif entry.folder:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(entry.data)
            tar.addfile(info, io.BytesIO(entry.data))
    return buffer.getvalue()

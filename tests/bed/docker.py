"""A private Docker engine for tests: Debian's package, its own socket, folders and process ids.

    server = DockerServer.start()
    server.host                      # unix:///…/docker.sock
    server.kill(); server.resume()   # the engine crashes and comes back
    server.destroy()

It needs root. containerd is a process of its own, as where systemd starts it, so it lives on when the
engine is killed. Containers share the host's network: the engine makes no bridge and no firewall rules.
An executable that does nothing stands in for the GPU hook, so device requests are accepted, and what
a container gets shows which devices were asked for.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlencode

from tests.bed import docker_images
from tests.bed.docker_api import Api, ApiError
from tests.bed.docker_images import Entry, Image

PACKAGES = ("docker.io", "busybox-static", "docker-registry", "iptables")
PROGRAMS = ("dockerd", "containerd", "runc", "busybox", "docker-registry", "docker-init")
HOW_TO_GET_IT = f"A Docker engine is not installed; on Debian: apt-get install {' '.join(PACKAGES)}"
HOOK = "nvidia-container-runtime-hook"


class Missing(Exception):
    """There is no Docker engine here; the text says how to get it."""


def require() -> None:
    """Raises `Missing` unless an engine can be started. In CI on Debian, as root, it is installed first."""
    if os.geteuid() != 0:
        raise Missing("A Docker engine of the tests' own needs root")
    if _missing() and os.environ.get("CI", "").lower() in ("1", "true", "yes") and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-q"], check=False, stdin=subprocess.DEVNULL, timeout=300)
        command = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *PACKAGES]
        subprocess.run(command, check=True, env=quiet, stdin=subprocess.DEVNULL, timeout=600)
    if missing := _missing():
        raise Missing(f"{HOW_TO_GET_IT} (not found: {', '.join(missing)})")


def _missing() -> list[str]:
    return [name for name in PROGRAMS if not shutil.which(name, path=_search_path())]


def _search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/bin", "/bin"])


_CONTAINERD = """version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/containerd.sock"
[ttrpc]
  address = "{folder}/containerd.sock.ttrpc"
"""


class DockerServer:
    """A running engine. `stop`, `kill` and `resume` may be called again and again."""

    def __init__(self, folder: Path, *, live_restore: bool, gpus: bool, options: Iterable[str]) -> None:
        self.folder = folder
        self.live_restore, self.gpus, self.options = live_restore, gpus, tuple(options)
        self.socket = folder / "docker.sock"
        self.api = Api(str(self.socket))
        self._process: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        *,
        live_restore: bool = True,
        gpus: bool = True,
        images: bool = True,
        disk_bytes: int = 0,
        options: Iterable[str] = (),
    ) -> "DockerServer":
        """Make a new engine and wait until it answers; with `images` it has the standard ones.

        Raises `Missing`. `disk_bytes` gives it a disk of its own of that size, in memory; `options`
        are more words for the command line of dockerd.
        """
        require()
        folder = Path(tempfile.mkdtemp(prefix="nemo-jobs-docker-"))
        server = cls(folder, live_restore=live_restore, gpus=gpus, options=options)
        (folder / "daemon.json").write_text("{}")
        (folder / "containerd.toml").write_text(_CONTAINERD.format(folder=folder))
        (folder / "bin").mkdir()
        if gpus:
            hook = folder / "bin" / HOOK
            hook.write_text("#!/bin/sh\nexit 0\n")
            hook.chmod(0o755)
        try:
            if disk_bytes:
                (folder / "data").mkdir()
                mount = ["mount", "-t", "tmpfs", "-o", f"size={disk_bytes}", "bed", str(folder / "data")]
                subprocess.run(mount, check=True, timeout=10)
            server.resume()
            if images:
                for image in docker_images.standard():
                    server.add(image)
        except BaseException:
            server.destroy()
            raise
        return server

    @property
    def host(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the engine is stopped"
        return self._process.pid

    @property
    def log(self) -> str:
        """What the engine said."""
        file = self.folder / "server.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def add(self, image: Image) -> str:
        """Import an image and give its name; again is fine."""
        name, _, tag = image.name.rpartition(":")
        words = [("fromSrc", "-"), ("repo", name), ("tag", tag)] + [
            ("changes", line) for line in image.changes
        ]
        said = self.api.call("POST", f"/images/create?{urlencode(words)}", docker_images.tar_of(image.files))
        assert b"error" not in (said if isinstance(said, bytes) else repr(said).encode()), said
        return image.name

    def image(self, name: str, files: Mapping[str, Entry | bytes], *changes: str) -> str:
        """Make an image of busybox and these files; `changes` are lines of a Dockerfile."""
        more = {path: given if isinstance(given, Entry) else Entry(given) for path, given in files.items()}
        return self.add(Image(name, {**docker_images.busybox_files(), **more}, changes or ('CMD ["sh"]',)))

    def python_image(self) -> str:
        """Make the image with Python, if it isn't there yet."""
        try:
            self.api.get(f"/images/{docker_images.PYTHON}/json")
        except ApiError:
            self.add(docker_images.python())
        return docker_images.PYTHON

    def resume(self, timeout: float = 40) -> None:
        """Start the engine on its folders and socket, and wait until it answers."""
        assert self._process is None or self._process.poll() is not None, "the engine runs"
        if self._containerd is None or self._containerd.poll() is not None:
            self._containerd = self._spawn("containerd", "--config", str(self.folder / "containerd.toml"))
        command = ["dockerd", "--config-file", str(self.folder / "daemon.json")]
        command += ["--containerd", str(self.folder / "containerd.sock")]
        command += ["--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "exec")]
        command += ["--pidfile", str(self.folder / "docker.pid"), "--host", self.host]
        command += ["--bridge=none", "--iptables=false", "--cgroup-parent", f"/{self.folder.name}"]
        command += ["--shutdown-timeout", "5", *(["--live-restore"] if self.live_restore else [])]
        (self.folder / "docker.pid").unlink(missing_ok=True)  # left by a killed one, its pid may be reused
        self._process = self._spawn(*command, *self.options)
        self._wait_until_it_answers(timeout)

    def stop(self, timeout: float = 40) -> None:
        """Stop in good order: containers too, unless the engine was started with live-restore."""
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """`kill -9` of the engine alone: its containers go on until it is back."""
        self._end(signal.SIGKILL, 10)

    def restart(self, *, hard: bool = False) -> None:
        """Stop (`hard`: kill) and start again."""
        if hard:
            self.kill()
        else:
            self.stop()
        self.resume()

    def freeze(self) -> None:
        """The engine stands still: connections are accepted and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def destroy(self) -> None:
        """End everything that runs on it, and remove it with all that it stored."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            with contextlib.suppress(OSError, ApiError):
                _remove_containers(self.api)
            self.stop()
        if self._containerd is not None:
            self._containerd.terminate()
        clear(self.folder)
        if self._containerd is not None:
            self._containerd.wait(10)

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        environ = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{_search_path()}",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "LANG": "C.UTF-8",
        }
        with (self.folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                cwd=self.folder,
                start_new_session=True,
            )

    def _end(self, how: signal.Signals, timeout: float) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process = None

    def _wait_until_it_answers(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"the Docker engine did not start: {self.log[-4000:]}")
            if self.socket.exists() and self.api.ping():
                return
            time.sleep(0.05)
        raise RuntimeError(f"the Docker engine does not answer after {timeout:g} s: {self.log[-4000:]}")


def take_down(folder: Path, pid: int) -> None:
    """Stop an engine that another process started, and remove all of it."""
    api = Api(str(folder / "docker.sock"), timeout=20)
    with contextlib.suppress(OSError, ApiError):
        _remove_containers(api)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while _proc(pid, "cmdline") and time.monotonic() < deadline:
        time.sleep(0.05)
    clear(folder)


def _remove_containers(api: Api) -> None:
    for container in api.containers():
        with contextlib.suppress(ApiError):
            api.delete(f"/containers/{container['Id']}", force=True)


def clear(folder: Path) -> None:
    """Remove what an engine on `folder` left: processes, mounts, cgroups and files."""
    _kill_family(folder)
    _unmount_below(folder)
    for cgroup in sorted(Path("/sys/fs/cgroup").glob(f"*/{folder.name}/**/"), reverse=True):
        with contextlib.suppress(OSError):
            cgroup.rmdir()
    shutil.rmtree(folder, ignore_errors=True)


def _kill_family(folder: Path) -> None:
    """Programs of the engine name the folder in their command line; containers are their children."""
    mark = os.fsencode(folder)
    for _ in range(100):
        children: dict[int, list[int]] = {}
        ours = []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            fields = _proc(pid, "stat").rpartition(b")")[2].split()
            if len(fields) > 1 and fields[0] not in (b"Z", b"X"):
                children.setdefault(int(fields[1]), []).append(pid)
                if mark in _proc(pid, "cmdline") and _is_engine(pid):
                    ours.append(pid)
        if not ours:
            return
        for shim in ours:
            for pid in [*_below(shim, children), shim]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _is_engine(pid: int) -> bool:
    program = _proc(pid, "cmdline").split(b"\0")[0].rpartition(b"/")[2]
    return program in (b"dockerd", b"containerd") or program.startswith((b"containerd-shim", b"docker-proxy"))


def _below(pid: int, children: Mapping[int, list[int]]) -> list[int]:
    return [found for child in children.get(pid, []) for found in [child, *_below(child, children)]]


def _unmount_below(folder: Path) -> None:
    for _ in range(20):
        lines = Path("/proc/self/mounts").read_text().splitlines()
        mounts = [line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")]
        if not mounts:
            return
        for mount in sorted(mounts, key=len, reverse=True):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True, timeout=10)


def _proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""

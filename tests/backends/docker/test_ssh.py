"""The way to an engine over SSH: a real sshd, the real ssh, the engine's own helper behind it."""

import asyncio
import getpass
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.contexts import parse
from nemo_jobs.backends.docker.errors import EngineAway
from nemo_jobs.backends.docker.ssh import SshDialer
from tests.backends.docker.engine_kit import until
from tests.bed.docker import DockerServer
from tests.e2e.service import free_port

SSHD = "/usr/sbin/sshd"


@dataclass
class SshServer:
    """A real sshd on a loopback port, and the settings by which our ssh finds it."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for name in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL, timeout=20)
        allowed = self.folder / "allowed"
        allowed.write_bytes((self.folder / "user.pub").read_bytes())
        host_key = (self.folder / "host.pub").read_text()
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {host_key}")
        (self.folder / "sshd.conf").write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {self.folder}/host\nPidFile none\n"
            f"AuthorizedKeysFile {allowed}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
            f"PasswordAuthentication no\nSetEnv PATH={os.environ['PATH']}\n"
        )
        (self.folder / "ssh.conf").write_text(
            f"Host *\nIdentityFile {self.folder}/user\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {self.folder}/known\n"
        )
        # The program that is run reads the settings of the account; this one adds those of the test.
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        program = bin_folder / "ssh"
        real = shutil.which("ssh")
        program.write_text(f'#!/bin/sh\nexec {real} -F {self.folder}/ssh.conf "$@"\n')
        program.chmod(0o755)
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self.folder / "sshd.conf")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        for _ in range(200):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, (self.folder / "log").read_text()
            self.process_wait()
        raise AssertionError((self.folder / "log").read_text())

    def process_wait(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(0.05)
        except subprocess.TimeoutExpired:
            pass

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    if not os.path.exists(SSHD) or not shutil.which("ssh") or os.geteuid() != 0:
        pytest.skip("needs root, and on Debian: apt-get install openssh-server openssh-client")
    server = SshServer(tmp_path, free_port())
    server.start()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    yield server
    server.stop()


@pytest.fixture
async def over_ssh(sshd: SshServer, docker: DockerServer) -> AsyncIterator[DockerEngine]:
    address = f"ssh://{getpass.getuser()}@127.0.0.1:{sshd.port}{docker.socket}"
    async with await DockerEngine.open(address) as engine:
        yield engine


def programs() -> int:
    """How many ssh programs are children of this process."""
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        found += int(fields[1]) == os.getpid() and b"dial-stdio" in command
    return found


async def test_ssh(over_ssh: DockerEngine, sshd: SshServer) -> None:
    assert not over_ssh.local
    assert (await over_ssh.info())["ID"]
    async with over_ssh.events({}):
        await over_ssh.ping()
        assert programs() == 2
    await until(lambda: programs() == 1)
    results = await asyncio.gather(*(over_ssh.inspect(f"nobody-{number}") for number in range(30)))
    assert results == [None] * 30
    assert programs() <= SshDialer.most_calls
    sshd.stop()
    sshd.process = None
    await over_ssh.aclose()
    await until(lambda: programs() == 0)


async def test_ssh_that_is_refused_says_why(sshd: SshServer, docker: DockerServer) -> None:
    user = getpass.getuser()
    (sshd.folder / "allowed").write_text("")
    async with await DockerEngine.open(f"ssh://{user}@127.0.0.1:{sshd.port}") as engine:
        with pytest.raises(EngineAway, match=r"ssh says: .*Permission denied"):
            await engine.ping()
    async with await DockerEngine.open(f"ssh://{user}@127.0.0.1:1") as engine:
        with pytest.raises(EngineAway, match=r"ssh says: .*Connection refused"):
            await engine.ping()
    (sshd.folder / "known").write_text("")
    async with await DockerEngine.open(f"ssh://{user}@127.0.0.1:{sshd.port}") as engine:
        with pytest.raises(EngineAway, match="ssh says: Host key verification failed"):
            await engine.ping()
    await until(lambda: programs() == 0)


async def test_an_engine_that_is_away_behind_ssh_is_told_as_such(sshd: SshServer) -> None:
    address = f"ssh://{getpass.getuser()}@127.0.0.1:{sshd.port}/no/such.sock"
    async with await DockerEngine.open(address) as engine:
        with pytest.raises(EngineAway, match=r"no Docker engine at ssh://.*/no/such\.sock"):
            await engine.ping(20)
    await until(lambda: programs() == 0)


async def test_without_an_ssh_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with await DockerEngine.open("ssh://127.0.0.1") as engine:
        with pytest.raises(EngineAway, match="ssh can't be started"):
            await engine.ping()


async def test_a_program_that_hangs_is_killed_with_its_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("nemo_jobs.backends.docker.ssh._PATIENCE", 0.1)
    program = tmp_path / "ssh"
    program.write_text(f"#!{sys.executable} -S\nimport time\ntime.sleep(600)  # dial-stdio\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    async with await DockerEngine.open("ssh://127.0.0.1") as engine:
        with pytest.raises(EngineAway, match="did not answer"):
            await engine.ping(0.5)
        await until(lambda: programs() == 0)


def test_words_for_the_other_side_are_quoted() -> None:
    command = SshDialer(parse("ssh://me@host:22/a b;reboot/docker.sock")).command()
    assert command[:2] == ["ssh", "-T"]
    assert command[command.index("-l") + 1] == "me"
    assert command[command.index("-p") + 1] == "22"
    there = ["docker", "--host", "'unix:///a b;reboot/docker.sock'", "system", "dial-stdio"]
    assert command[command.index("--") :] == ["--", "host", *there]
    command = SshDialer(parse("ssh://host")).command()
    assert command[command.index("--") :] == ["--", "host", "docker", "system", "dial-stdio"]


async def test_no_secret_of_ours_is_passed_to_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\nset > {tmp_path}/seen\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NEMO_JOBS_IMAGE_REGISTRY_PASSWORD", "hidden-word")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/the/agent")
    async with await DockerEngine.open("ssh://127.0.0.1") as engine:
        with pytest.raises(EngineAway):
            await engine.ping()
    seen = (tmp_path / "seen").read_text()
    assert "/the/agent" in seen
    assert "hidden-word" not in seen

"""Ways to an engine, each to a real one: TCP, and TLS with certificates both ways."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_jobs.backends.docker import transport
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.contexts import parse
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.transport import Tls
from tests.backends.docker.engine_kit import connections
from tests.backends.docker.papers import Papers
from tests.bed.docker import DockerServer
from tests.bed.proxy import Proxy
from tests.e2e.service import free_port


async def test_plain_tcp(docker: DockerServer) -> None:
    proxy = Proxy(str(docker.socket))
    try:
        async with await DockerEngine.open(proxy.host) as engine:
            assert not engine.local
            await engine.ping()
            assert (await engine.info())["ID"]
            proxy.cut()
            assert (await engine.info())["ID"]
        async with await DockerEngine.open(f"tcp://localhost:{proxy.port}") as engine:
            await engine.ping()
        host = proxy.host
    finally:
        proxy.close()
    async with await DockerEngine.open(host) as engine:
        with pytest.raises(EngineAway, match=r"no Docker engine at tcp://127\.0\.0\.1:\d+: nothing listens"):
            await engine.ping()


async def test_a_host_that_vanishes_is_noticed_by_the_system(docker: DockerServer) -> None:
    """Streams have no deadline: the system asks the other side now and then whether it is there."""
    proxy = Proxy(str(docker.socket))
    try:
        made = await transport.dialer(parse(proxy.host)).dial()
        sock = made.socket
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 30
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
        made.abort()
    finally:
        proxy.close()


async def test_a_name_that_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    async with await DockerEngine.open("tcp://engine.invalid:2375") as engine:
        with pytest.raises(EngineAway, match="its name can't be resolved"):
            await engine.ping()


async def test_names_are_looked_up_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that doesn't answer holds one thread, however often we ask."""
    asked = 0
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hang(*args: object, **given: object) -> list[object]:
        nonlocal asked
        asked += 1
        await release.wait()
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(loop, "getaddrinfo", hang)
    async with await DockerEngine.open("tcp://engine.invalid:2375") as engine:
        results = await asyncio.gather(*(engine.ping(0.1) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(result, EngineAway) for result in results)
        assert asked == 1
        release.set()
        with pytest.raises(EngineAway, match="Temporary failure"):
            await engine.ping()


async def test_a_host_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose queue is full takes no more connections: they hang."""
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 0.3)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            async with await DockerEngine.open(f"tcp://127.0.0.1:{port}") as engine:
                with pytest.raises(EngineAway, match="no connection within"):
                    await engine.ping()
        finally:
            for filler in fillers:
                filler.close()


# TLS


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    made = Papers(tmp_path)
    made.make("ca", None)
    made.make("foreign", None)
    made.make("server", "ca")
    made.make("client", "ca")
    made.make("stranger", "foreign")
    return made


async def test_tls_with_certificates_both_ways(
    papers: Papers, start_docker: Callable[..., DockerServer]
) -> None:
    port = free_port()
    words = ["--host", f"tcp://127.0.0.1:{port}", "--tlsverify"]
    words += ["--tlscacert", str(papers.path("ca", "cert"))]
    words += ["--tlscert", str(papers.path("server", "cert")), "--tlskey", str(papers.path("server", "key"))]
    await asyncio.to_thread(start_docker, images=False, options=words)
    address = f"tcp://127.0.0.1:{port}"
    for tls in (papers.tls("client"), papers.tls("client", None, verify=False)):
        async with await DockerEngine.open(address, tls=tls) as engine:
            assert (await engine.info())["ID"]
            assert await engine.image("nothing") is None
            async with engine.events({}):
                await engine.ping()
                assert connections(engine) == 2
    for tls, reason in (
        (papers.tls(None), "certificate"),
        (papers.tls("stranger"), "certificate|unknown ca"),
        (papers.tls("client", "foreign"), "its certificate isn't trusted"),
        (papers.tls("client", None), "its certificate isn't trusted"),
    ):
        async with await DockerEngine.open(address, tls=tls) as engine:
            with pytest.raises(EngineAway, match=reason):
                await engine.ping()
            assert connections(engine) == 0
    async with await DockerEngine.open(address) as engine:
        with pytest.raises(EngineError, match="HTTPS"):
            await engine.ping()
    async with await DockerEngine.open(f"tcp://localhost:{port}", tls=papers.tls("client")) as engine:
        await engine.ping()
        papers.make("client", "ca")  # renewed: counts for the next connection
        await engine.ping()


async def test_tls_files_that_are_no_such_files(papers: Papers) -> None:
    address = "tcp://127.0.0.1:1"
    with pytest.raises(ValueError, match="can't be read"):
        await DockerEngine.open(address, tls=Tls(ca=str(papers.folder / "none.pem")))
    with pytest.raises(ValueError, match="both a certificate and its key"):
        await DockerEngine.open(address, tls=Tls(cert=str(papers.path("client", "cert"))))
    papers.path("broken", "cert").write_text("nothing of that kind")
    async with await DockerEngine.open(address, tls=papers.tls(None, "broken")) as engine:
        with pytest.raises(EngineAway, match="TLS fails"):
            await engine.ping()
    mixed = Tls(cert=str(papers.path("client", "cert")), key=str(papers.path("server", "key")))
    async with await DockerEngine.open(address, tls=mixed) as engine:
        with pytest.raises(EngineAway, match="TLS fails"):
            await engine.ping()

"""Which engine is meant: by an address, by variables, by the docker command's own contexts."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nemo_jobs.backends.docker import contexts
from nemo_jobs.backends.docker.contexts import find, parse
from nemo_jobs.backends.docker.transport import Address, Tls
from tests.backends.docker.papers import Papers


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("unix:///var/run/docker.sock", "unix:///var/run/docker.sock"),
        ("unix:///with space/ü?#.sock", "unix:///with space/ü?#.sock"),
        ("tcp://host", "tcp://host:2375"),
        ("tcp://host:1234/", "tcp://host:1234"),
        ("http://host:1", "tcp://host:1"),
        ("https://host", "tcp://host:2376"),
        ("tcp://[::1]:2375", "tcp://[::1]:2375"),
        ("ssh://host", "ssh://host"),
        ("ssh://me@host:22", "ssh://me@host:22"),
        ("ssh://me@host/run/docker.sock", "ssh://me@host/run/docker.sock"),
        ("ssh://host/", "ssh://host"),
    ],
)
def test_addresses(text: str, shown: str) -> None:
    assert str(parse(text)) == shown


def test_the_port_follows_tls() -> None:
    assert parse("tcp://host", Tls()).port == 2376
    assert parse("https://host").tls == Tls()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:2375",
        "/var/run/docker.sock",
        "unix://",
        "unix://relative/path",
        "unix:///a\0b",
        "tcp://",
        "tcp://:2375",
        "tcp://host:port",
        "tcp://host:99999",
        "tcp://host/path",
        "tcp://user@host",
        "ssh://",
        "ssh://-oProxyCommand=reboot",
        "ssh://-l@host",
        "ssh://host?x=1",
        "ssh://host#x",
        "fd://",
        "npipe:////./pipe/docker_engine",
        "tcp://[::1",
    ],
)
def test_what_is_no_address_is_told_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(ValueError, match="unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST"):
        parse(text)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    for text in ("ssh://me:hidden@host", "tcp://me:hidden@host:1", "ssh://me:hidden@host:wrong"):
        with pytest.raises(ValueError, match="address") as caught:
            parse(text)
        assert "hidden" not in str(caught.value)


async def test_an_address_goes_before_variables_and_those_before_contexts(tmp_path: Path) -> None:
    environ = {"DOCKER_CONFIG": str(tmp_path)}
    assert await find(None, None, environ) == Address("unix", contexts.USUAL, origin="the usual place")
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "default"}))
    assert (await find(None, None, environ)).path == contexts.USUAL
    environ["DOCKER_CONTEXT"] = "missing"
    with pytest.raises(ValueError, match="DOCKER_CONTEXT names 'missing', which is not in"):
        await find(None, None, environ)
    environ["DOCKER_HOST"] = "tcp://host:1"
    assert str(await find(None, None, environ)) == "tcp://host:1"
    assert str(await find("unix:///x", None, environ)) == "unix:///x"
    environ["DOCKER_HOST"] = "nonsense"
    with pytest.raises(ValueError, match="DOCKER_HOST 'nonsense' is no address"):
        await find(None, None, environ)


async def test_tls_files_for_what_has_no_tls_are_not_ignored(tmp_path: Path) -> None:
    environ = {"DOCKER_CONFIG": str(tmp_path)}
    for address in (None, "unix:///x", "ssh://host"):
        with pytest.raises(ValueError, match=r"TLS files are configured, but .* is not reached by TCP"):
            await find(address, Tls(), environ)
    environ |= {"DOCKER_HOST": "unix:///x", "DOCKER_TLS_VERIFY": "1"}  # as the docker command does
    assert str(await find(None, None, environ)) == "unix:///x"


async def test_tls_by_variables(tmp_path: Path) -> None:
    environ = {"DOCKER_CONFIG": str(tmp_path), "DOCKER_HOST": "tcp://host"}
    assert (await find(None, None, environ)).tls is None
    environ["DOCKER_TLS_VERIFY"] = "1"
    found = await find(None, None, environ)
    assert (found.tls, found.port) == (Tls(), 2376)
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (certificates / name).touch()
    environ["DOCKER_CERT_PATH"] = str(certificates)
    ca, cert, key = (str(certificates / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    assert (await find(None, None, environ)).tls == Tls(ca, cert, key)
    del environ["DOCKER_TLS_VERIFY"]
    environ["DOCKER_TLS"] = "1"
    assert (await find(None, None, environ)).tls == Tls(ca, cert, key, verify=False)
    (certificates / "key.pem").unlink()
    with pytest.raises(ValueError, match="both a certificate and its key"):
        await find(None, None, environ)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"auths": {"x": {"auth": "hidden-word"', "isn't JSON"),
        ("[]", "doesn't hold an object"),
        ("\xff", "isn't JSON"),
        ("[" * 100_000, "isn't JSON"),
    ],
)
async def test_settings_that_cannot_be_read_are_told_without_their_text(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=words) as caught:
        await find(None, None, {"DOCKER_CONFIG": str(tmp_path)})
    assert "hidden-word" not in str(caught.value)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ValueError, match="can't be read"):
        await find(None, None, {"DOCKER_CONFIG": str(tmp_path)})


async def test_contexts_that_the_docker_command_made(tmp_path: Path) -> None:
    """The store is the command's own; it is made by the real one."""
    if not shutil.which("docker"):
        pytest.skip("needs the docker command; on Debian: apt-get install docker.io")
    environ = {"DOCKER_CONFIG": str(tmp_path), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    papers = Papers(tmp_path)
    papers.make("ca", None)
    papers.make("me", "ca")
    tls = papers.tls("me")
    files = f"ca={tls.ca},cert={tls.cert},key={tls.key}"
    for name, said in (
        ("near", "host=unix:///run/other.sock"),
        ("far", f"host=tcp://far:2376,{files}"),
        ("loose", "host=tcp://loose:2376,skip-tls-verify=true"),
        ("over-ssh", "host=ssh://me@there"),
    ):
        words = ["docker", "context", "create", name, "--docker", said]
        subprocess.run(words, env=environ, check=True, capture_output=True, timeout=20)
    assert str(await find(None, None, {**environ, "DOCKER_CONTEXT": "near"})) == "unix:///run/other.sock"
    far = await find(None, None, {**environ, "DOCKER_CONTEXT": "far"})
    assert far.tls is not None
    assert far.tls.verify
    assert [Path(str(path)).name for path in (far.tls.ca, far.tls.cert, far.tls.key)] == [
        "ca.pem",
        "cert.pem",
        "key.pem",
    ]
    loose = await find(None, None, {**environ, "DOCKER_CONTEXT": "loose"})
    assert loose.tls == Tls(verify=False)
    subprocess.run(["docker", "context", "use", "over-ssh"], env=environ, check=True, capture_output=True)
    current = await find(None, None, environ)
    assert (str(current), current.origin) == ("ssh://me@there", "the current Docker context 'over-ssh'")


async def test_a_context_that_says_no_engine(tmp_path: Path) -> None:
    place = (
        tmp_path / "contexts" / "meta" / "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    )
    place.mkdir(parents=True)  # that of "foo"
    metas: list[object] = [{}, {"Endpoints": {}}, {"Endpoints": {"docker": {"Host": 7}}}, {"Endpoints": []}]
    for meta in metas:
        (place / "meta.json").write_text(json.dumps(meta))
        with pytest.raises(ValueError, match="names 'foo', which says no engine"):
            await find(None, None, {"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "foo"})

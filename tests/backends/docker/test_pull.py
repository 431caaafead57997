"""Pulls from a real registry by a real engine, and what can go wrong on the way."""

import asyncio
import base64
import contextlib
import json
import logging
import os
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from nemo_jobs.backends.docker import effort
from nemo_jobs.backends.docker.auth import Logins
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway
from nemo_jobs.backends.docker.pull import PullFailed, Pulling, PullLimits, Pulls
from nemo_jobs.backends.docker.refusals import Meaning
from tests.backends.docker.engine_kit import connections, until
from tests.bed.docker import DockerServer
from tests.bed.docker_api import ApiError
from tests.bed.docker_images import BUSYBOX, Entry
from tests.bed.docker_registry import OTHER_PASSWORD, PASSWORD, USER, Registry
from tests.bed.proxy import http_answer

# Engines of busy machines take their time: what hangs is still ended.
pytestmark = pytest.mark.time_limit(180)

MIB = 1 << 20


class Bed:
    """A registry, an engine, and the product's pulls between them."""

    def __init__(self, docker: DockerServer, registry: Registry, engine: DockerEngine, home: Path) -> None:
        self.docker, self.registry, self.engine, self.home = docker, registry, engine, home
        self.faults = registry.proxy.faults
        self.hints: list[str] = []
        self.pushed: list[str] = []
        self._made: list[Pulls] = []

    def pulls(self, password: str = PASSWORD, **limits: float) -> Pulls:
        """Pulls with a login of the service's own variables; without a password, with none."""
        environ = {"DOCKER_CONFIG": str(self.home), "PATH": f"{self.home}{os.pathsep}{os.environ['PATH']}"}
        if password:
            environ |= {
                "NEMO_JOBS_IMAGE_REGISTRY": self.registry.address,
                "NEMO_JOBS_IMAGE_REGISTRY_USER_NAME": USER,
                "NEMO_JOBS_IMAGE_REGISTRY_PASSWORD": password,
            }
        given = PullLimits(**{"least_free": 1, **limits})  # type: ignore[arg-type]
        made = Pulls(self.engine, logins=Logins(environ), limits=given, hint=self.hints.append)
        self._made.append(made)
        return made

    def image(self, name: str, mebibytes: int = 1) -> str:
        """An image of the registry that the engine hasn't, of bytes that can't be compressed."""
        local = self.docker.image(f"{name}:1", {"payload": Entry(os.urandom(mebibytes * MIB))})
        full = self.registry.push(self.docker, local, f"team/{name}:1")
        self.docker.api.delete(f"/images/{local}", force=True)
        self.pushed.append(full)
        return full

    def forget(self, image: str) -> None:
        with contextlib.suppress(ApiError):
            self.docker.api.delete(f"/images/{image}", force=True)

    def manifests(self, image: str) -> int:
        """How often somebody asked which layers it has."""
        name = image.partition("/")[2].rpartition(":")[0]
        return len(self.registry.proxy.asked(rf"^(GET|HEAD) /v2/{name}/manifests/1$"))

    async def close(self) -> None:
        for made in self._made:
            await made.aclose()
        for image in self.pushed:
            await asyncio.to_thread(self.forget, image)


@pytest.fixture
async def bed(docker: DockerServer, registry: Registry, tmp_path: Path) -> AsyncIterator[Bed]:
    async with await DockerEngine.open(docker.host) as engine:
        made = Bed(docker, registry, engine, tmp_path)
        yield made
        await made.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other fast, and ends are told once."""
    monkeypatch.setattr(effort, "_FIRST_WAIT", 0.05)
    monkeypatch.setattr(effort, "_LONGEST_WAIT", 0.2)


async def told(pulls: Pulls, image: str, key: str = "", seconds: float = 40) -> list[Pulling]:
    """All that is told until the image is there."""
    seen: list[Pulling] = []
    async with asyncio.timeout(seconds):
        while (now := await pulls.want(image, key)) is not None:
            if not seen or seen[-1] != now:
                seen.append(now)
            await asyncio.sleep(0.01)
    return seen


async def failure(pulls: Pulls, image: str, seconds: float = 40) -> str:
    with pytest.raises(PullFailed) as caught:
        await told(pulls, image, seconds=seconds)
    text = str(caught.value)
    assert image in text
    assert PASSWORD not in text
    assert USER not in text.replace(image, "")
    return text


async def says(pulls: Pulls, image: str, word: str) -> str:
    """Wait until this is told of a pull."""
    async with asyncio.timeout(20):
        while True:
            now = await pulls.want(image)
            assert now is not None, f"it is there before it said {word}"
            if word in now.message:
                return now.message
            await asyncio.sleep(0.01)


async def test_an_image_that_is_there_needs_no_registry(bed: Bed) -> None:
    bed.docker.api.post(f"/images/{BUSYBOX}/tag", repo=f"{bed.registry.address}/team/here", tag="1")
    bed.faults.down = True
    bed.registry.proxy.requests.clear()
    name = f"{bed.registry.address}/team/here:1"
    assert await bed.pulls().want(name) is None
    image = await bed.engine.image(name)
    assert image is not None
    assert await bed.pulls().want(image["Id"]) is None
    assert bed.registry.proxy.asked() == []
    bed.forget(name)


async def test_twenty_who_want_it_share_one_pull_and_all_are_told(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "shared", 4), bed.pulls()
    bed.faults.bytes_a_second = 8 * MIB
    bed.registry.proxy.requests.clear()
    asked = [pulls.want(image, f"key-{number}") for number in range(20)]
    assert all(
        now is not None and now.message.startswith(f"pulling {image}: ")
        for now in await asyncio.gather(*asked)
    )
    assert pulls.running == 1
    await until(lambda: pulls.running == 0, 40)
    assert sorted(bed.hints) == sorted(f"key-{number}" for number in range(20))
    assert await pulls.want(image, "key-0") is None
    assert bed.manifests(image) <= 2


async def test_progress_is_told_in_bytes_and_percent(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "slow", 6), bed.pulls()
    bed.faults.bytes_a_second = 4 * MIB
    seen = await told(pulls, image)
    percents = [now.percent for now in seen if now.percent is not None]
    assert len(set(percents)) > 3
    assert percents == sorted(percents)
    assert any(f"{now.percent} %" in now.message and "MB of" in now.message for now in seen)
    assert max(now.total for now in seen) >= 6 * MIB
    assert await bed.engine.image(image) is not None


async def test_only_so_many_pulls_at_once(bed: Bed) -> None:
    first, second = await asyncio.to_thread(bed.image, "one", 2), await asyncio.to_thread(bed.image, "two", 1)
    pulls = bed.pulls(at_once=1)
    bed.faults.bytes_a_second = 2 * MIB
    bed.registry.proxy.requests.clear()
    await says(pulls, first, "MB of")
    now = await pulls.want(second)
    assert now is not None
    assert "waiting for a place among the pulls" in now.message
    assert bed.manifests(second) == 0
    await told(pulls, first)
    await told(pulls, second)


async def test_what_cannot_be_had_is_told_at_once_and_why(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "there"), bed.pulls()
    repository, digest = image.rpartition(":")[0], "sha256:" + "0" * 64
    for wanted, words in (
        (f"{repository}:none", "the registry doesn't have it: manifest for"),
        (f"{bed.registry.address}/team/nobody:1", "the registry doesn't have it"),
        (f"{image}@{digest}", "the registry doesn't have it"),
        (digest, "no registry knows one by its id alone"),
        ("Not An Image", "no valid image name: it must be in lower case"),
        ("a:b:c", "no valid tag"),
    ):
        began = time.monotonic()
        text = await failure(pulls, wanted, 10)
        assert words in text
        assert time.monotonic() - began < 5
    assert connections(bed.engine) <= 2


async def test_each_who_waited_hears_of_the_failure_once(bed: Bed) -> None:
    """However late they ask; who asks after that begins anew."""
    pulls, image = bed.pulls(), f"{bed.registry.address}/team/nobody:1"
    for key in ("a", "b"):
        assert await pulls.want(image, key) is not None
    await until(lambda: pulls.running == 0)
    assert sorted(bed.hints) == ["a", "b"]
    assert await pulls.want(image, "new") is not None
    for key in ("b", "a"):
        with pytest.raises(PullFailed):
            await pulls.want(image, key)
    assert await pulls.want(image, "a") is not None
    assert pulls.running == 1


async def test_an_image_by_its_digest(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "digest"), bed.pulls()
    await told(pulls, image)
    found = await bed.engine.image(image)
    assert found is not None
    digest = found["RepoDigests"][0]
    for name in (digest, f"{image}@{digest.partition('@')[2]}"):
        for known in (image, digest):
            bed.forget(known)
        await told(pulls, name)
        assert await bed.engine.image(name) is not None
    bed.forget(digest)


async def test_a_refusal_names_the_registry_and_where_the_login_is_from(bed: Bed) -> None:
    image = await asyncio.to_thread(bed.image, "closed")
    text = await failure(bed.pulls(""), image)
    assert "doesn't let us have it" in text
    assert f"asked without a login for {bed.registry.address}" in text
    text = await failure(bed.pulls("wrong-word"), image)
    assert "doesn't let us have it" in text
    assert "from NEMO_JOBS_IMAGE_REGISTRY_USER_NAME" in text
    assert "wrong-word" not in text
    (bed.home / "config.json").write_text(json.dumps({"credsStore": "gone"}))
    text = await failure(bed.pulls(""), image)
    assert "the login program docker-credential-gone isn't on the PATH" in text


async def test_c093_a_renewed_login_counts_for_the_next_pull(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "rotated"), bed.pulls("")

    def login(password: str) -> None:
        text = base64.b64encode(f"{USER}:{password}".encode()).decode()
        (bed.home / "config.json").write_text(json.dumps({"auths": {bed.registry.address: {"auth": text}}}))

    login(PASSWORD)
    await told(pulls, image)
    bed.forget(image)
    bed.registry.change_password()
    text = await failure(pulls, image)
    assert "doesn't let us have it" in text
    assert f"the login for {bed.registry.address} from {bed.home}/config.json" in text
    login(OTHER_PASSWORD)
    await told(pulls, image)


@pytest.mark.usefixtures("hasty")
async def test_nobody_under_a_name_gets_four_tries(bed: Bed) -> None:
    for image in ("127.0.0.1:1/never/there:1", "registry.invalid/never/there:1"):
        pulls = bed.pulls()
        messages = []
        with pytest.raises(PullFailed) as caught:
            while True:
                now = await pulls.want(image)
                assert now is not None
                messages.append(now.message)
                await asyncio.sleep(0.005)
        assert any("the registry can't be reached" in message for message in messages)
        assert any("trying again in" in message for message in messages)
        assert f"the image {image} can't be pulled: the registry can't be reached" in str(caught.value)
        assert "tried 4 times" in str(caught.value)


def test_the_tries_for_nobody_fit_into_their_time() -> None:
    """Four tries of no length within 45 s, fewer when each takes long, none after that."""
    for length, most in ((0.1, 4), (5.0, 4), (12.0, 3), (60.0, 1)):
        patience, now, tries = effort._Patience(PullLimits()), 0.0, 0
        wait: float | None = 0.0
        while wait is not None:
            began, now, tries = now + wait, now + wait + length, tries + 1
            wait = patience.wait(Meaning.UNREACHABLE, began, now)
        assert tries == most
        assert now <= max(45.0 + length, length)


@pytest.mark.usefixtures("hasty")
async def test_a_registry_that_comes_back_is_found(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "back"), bed.pulls()
    bed.faults.down = True
    await says(pulls, image, "trying again")
    bed.faults.down = False
    await told(pulls, image)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("status", "words"), [(429, "asked too often"), (503, "the registry fails"), (500, "the registry fails")]
)
async def test_c003_a_registry_that_asks_for_patience_gets_it(bed: Bed, status: int, words: str) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "busy"), bed.pulls()
    code = '{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}' if status == 429 else "{}"
    bed.faults.answer = http_answer(status, code, "Retry-After: 1")
    bed.faults.answer_to, bed.faults.answers = "manifests", 10_000
    assert "trying again in" in await says(pulls, image, words)
    bed.faults.answers = 0
    await told(pulls, image)


@pytest.mark.usefixtures("hasty")
async def test_patience_has_an_end(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "endless"), bed.pulls(limited=0.5, failing=0.5)
    bed.faults.answer = http_answer(429, '{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}')
    bed.faults.answer_to, bed.faults.answers = "manifests", 10_000
    text = await failure(pulls, image)
    assert "asked too often" in text
    assert "tried" in text


async def test_a_slow_pull_that_lives_goes_on_longer_than_all_limits(bed: Bed) -> None:
    image = await asyncio.to_thread(bed.image, "lives", 4)
    pulls = bed.pulls(stalled=1.0, failing=1.0, limited=1.0, unreachable=1.0)
    bed.faults.bytes_a_second = 1 * MIB
    bed.registry.proxy.requests.clear()
    began = time.monotonic()
    seen = await told(pulls, image)
    assert time.monotonic() - began > 3
    assert not any("trying again" in now.message for now in seen)
    assert bed.manifests(image) <= 2


@pytest.mark.usefixtures("hasty")
async def test_a_pull_that_stands_still_is_begun_again(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "still", 4), bed.pulls(stalled=1.0)
    bed.faults.bytes_a_second = 4 * MIB
    await says(pulls, image, "MB of")
    bed.faults.silent = True
    assert "nothing moved for 1 s" in await says(pulls, image, "trying again")
    bed.faults.silent = False
    bed.faults.bytes_a_second = 0
    bed.registry.proxy.cut()
    await told(pulls, image)


@pytest.mark.usefixtures("hasty")
async def test_a_registry_that_never_answers_is_no_engine_that_is_away(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "mute"), bed.pulls(stalled=0.5, failing=1.5)
    bed.faults.silent = True
    text = await failure(pulls, image)
    assert "the registry fails: nothing moved for" in text
    await until(lambda: connections(bed.engine) <= 1)
    bed.faults.silent = False
    await told(pulls, image)


async def test_c003_a_pull_that_is_cut_in_the_middle_goes_on(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "cut", 4), bed.pulls()
    bed.faults.bytes_a_second = 2 * MIB
    await says(pulls, image, "MB of")
    bed.registry.proxy.cut()
    bed.faults.bytes_a_second = 0
    await told(pulls, image)


async def test_a_pull_that_nobody_asks_for_is_given_up(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "unwanted", 4), bed.pulls(unwanted=0.3)
    bed.faults.bytes_a_second = 256 * 1024
    await pulls.want(image, "me")
    for _ in range(10):  # as long as somebody asks, it goes on
        await asyncio.sleep(0.1)
        assert await pulls.want(image, "me") is not None
    assert pulls.running == 1
    await until(lambda: pulls.running == 0, 5)
    await until(lambda: connections(bed.engine) <= 1)
    assert await bed.engine.image(image) is None
    with pytest.raises(EngineAway, match="was given up"):
        await pulls.want(image, "me")


async def test_an_engine_that_dies_while_it_pulls(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "dies", 4), bed.pulls()
    bed.faults.bytes_a_second = 1 * MIB
    await says(pulls, image, "MB of")
    await asyncio.to_thread(bed.docker.kill)
    try:
        await until(lambda: pulls.running == 0)
        with pytest.raises(EngineAway):
            await pulls.want(image)
    finally:
        await asyncio.to_thread(bed.docker.resume)
    bed.faults.bytes_a_second = 0
    await told(pulls, image)


async def test_closing_gives_pulls_up(bed: Bed) -> None:
    image, pulls = await asyncio.to_thread(bed.image, "closing", 2), bed.pulls()
    bed.faults.bytes_a_second = 256 * 1024
    await says(pulls, image, "MB of")
    await pulls.aclose()
    assert pulls.running == 0
    await until(lambda: connections(bed.engine) <= 1)


def request(bed: Bed, method: str, path: str, body: bytes | None, kind: str) -> dict[str, str]:
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    heads = {"Authorization": f"Basic {login}", "Content-Type": kind, "Accept": kind}
    asked = urllib.request.Request(f"http://{bed.registry.address}{path}", body, heads, method=method)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return {**dict(answer.headers), "size": str(len(answer.read()))}


async def test_an_image_for_another_platform_is_told_as_such(bed: Bed) -> None:
    image = await asyncio.to_thread(bed.image, "platform")
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    path = "/v2/team/platform/manifests/"
    found = await asyncio.to_thread(request, bed, "GET", f"{path}1", None, kind)
    entry = {
        "mediaType": kind,
        "size": int(found["size"]),
        "digest": found["Docker-Content-Digest"],
        "platform": {"architecture": "s390x", "os": "linux"},
    }
    kind = "application/vnd.docker.distribution.manifest.list.v2+json"
    body = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": [entry]}).encode()
    await asyncio.to_thread(request, bed, "PUT", f"{path}other", body, kind)
    text = await failure(bed.pulls(), image.rpartition(":")[0] + ":other")
    assert "it isn't made for the engine's platform" in text
    assert "no matching manifest" in text


async def test_an_engine_without_space(bed: Bed, start_docker: Callable[..., DockerServer]) -> None:
    image = await asyncio.to_thread(bed.image, "large", 24)
    small = await asyncio.to_thread(start_docker, disk_bytes=32 * MIB, images=False)
    async with await DockerEngine.open(small.host) as bed.engine:
        text = await failure(bed.pulls(least_free=1 << 30), image)
        assert "the engine's disk has no space for it" in text
        assert f"free in {small.folder}/data" in text
        assert "no pull begins below 1.1 GB" in text
        text = await failure(bed.pulls(), image)  # begins, and finds out
        assert "the engine's disk has no space for it" in text
        await bed.close()


async def test_nothing_of_a_login_is_logged(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    image = await asyncio.to_thread(bed.image, "quiet")
    await told(bed.pulls(), image)
    await failure(bed.pulls("wrong-word"), f"{bed.registry.address}/team/other:1")
    for secret in (PASSWORD, "wrong-word", base64.b64encode(PASSWORD.encode()).decode()):
        assert secret not in caplog.text

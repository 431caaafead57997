"""Images that are pulled, and images that can't be: from a private registry on this machine."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bed.docker import DockerServer
from tests.bed.docker_api import ApiError
from tests.bed.docker_images import BUSYBOX, Entry
from tests.bed.docker_registry import OTHER_PASSWORD, PASSWORD, USER, Registry
from tests.bed.proxy import http_answer
from tests.e2e.docker_kit import DockerService, act, error_of, gone, gpus, run, says
from tests.e2e.service import Client, until

# Engines of busy machines take their time: what hangs is still ended.
pytestmark = pytest.mark.time_limit(180)


@pytest.fixture
def start(tmp_path: Path, docker: DockerServer, registry: Registry) -> Iterator[Callable[..., DockerService]]:
    """Starts services that log in at the registry, unless they get other variables."""
    started: list[DockerService] = []

    def begin(password: str = PASSWORD, **given: object) -> DockerService:
        login = {
            "NEMO_JOBS_IMAGE_REGISTRY": registry.address,
            "NEMO_JOBS_IMAGE_REGISTRY_USER_NAME": USER,
            "NEMO_JOBS_IMAGE_REGISTRY_PASSWORD": password,
        }
        root = tmp_path / f"service-{len(started)}"
        service = DockerService(root, docker, environ=login if password else {}, **given)  # type: ignore[arg-type]
        started.append(service)
        service.start()
        return service

    yield begin
    for service in started:
        service.close()


def big(docker: DockerServer, registry: Registry, name: str, megabytes: int = 8) -> str:
    """A private image of that size that nobody has yet: random bytes, so that nothing compresses."""
    local = docker.image(f"{name}:1", {"payload": Entry(os.urandom(megabytes << 20))})
    full = registry.push(docker, local, f"team/{name}:1")
    docker.api.delete(f"/images/{local}", force=True)
    return full


def forget(docker: DockerServer, image: str) -> None:
    try:
        docker.api.delete(f"/images/{image}", force=True)
    except ApiError:
        pass


def test_c093_a_private_image_is_pulled_with_the_login_of_the_service(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    service = start()
    client, image = service.client(), big(docker, registry, "private")
    run(client, "private", "wc -c < /payload", image=image)
    client.wait("private", "completed")
    assert client.messages("private") == [str(8 << 20)]
    forget(docker, image)


def test_c003_twenty_jobs_want_one_image_and_it_is_pulled_once(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    service = start()
    client, image = service.client(), big(docker, registry, "popular", 4)
    registry.proxy.requests.clear()
    registry.proxy.faults.bytes_a_second = 4 << 20
    for number in range(20):
        run(client, f"many-{number}", ["true"], image=image)
    for number in range(20):
        client.wait(f"many-{number}", "completed", timeout=40)
    manifests = registry.proxy.asked(r"^(GET|HEAD) /v2/team/popular/manifests/1$")
    assert 1 <= len(manifests) <= 2, manifests
    forget(docker, image)


def test_c003_c007_progress_of_a_pull_is_told_and_a_cancel_ends_it(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    service = start()
    client, image = service.client(), big(docker, registry, "slow")
    registry.proxy.faults.bytes_a_second = 1 << 20
    run(client, "slow", ["true"], image=image)
    message = says(client, "slow", r"\d+ ?%")
    assert image in message
    assert "MB" in message or "MiB" in message or "bytes" in message
    began = time.monotonic()
    act(client, "slow", "cancel")
    client.wait("slow", "cancelled")
    assert time.monotonic() - began < 5
    assert service.containers() == []
    registry.proxy.faults.bytes_a_second = 0
    run(client, "fast", ["true"], image=image)
    client.wait("fast", "completed", timeout=40)
    forget(docker, image)


def test_c003_what_cannot_be_pulled_ends_at_once_with_the_reason(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    service = start()
    client, image = service.client(), big(docker, registry, "there", 1)
    repository = image.rpartition(":")[0]
    for name, wanted, words in (
        ("wrong-tag", f"{repository}:nope", "not found|unknown"),
        ("wrong-name", f"{registry.address}/team/nobody:1", "not found|unknown"),
        ("wrong-form", "Not An Image", "reference|image"),
    ):
        began = time.monotonic()
        run(client, name, ["true"], image=wanted)
        message = error_of(client, name)
        assert time.monotonic() - began < 8, message
        assert wanted in message
        assert any(word in message for word in words.split("|")), message
        assert PASSWORD not in message
    assert service.containers() == []


def test_c003_c093_without_a_login_the_refusal_is_named_as_such(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    image = big(docker, registry, "closed", 1)
    for number, password in enumerate(("", "wrong")):
        client = start(password).client()
        run(client, f"closed-{number}", ["true"], image=image)
        message = error_of(client, f"closed-{number}")
        assert image in message
        assert "log" in message or "auth" in message or "denied" in message, message
        assert "wrong" not in message


def test_c093_a_changed_password_is_named_and_never_falls_back_to_nobody(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    service = start()
    client, image = service.client(), big(docker, registry, "rotating", 1)
    run(client, "before", ["true"], image=image)
    client.wait("before", "completed")
    forget(docker, image)
    registry.change_password()
    run(client, "after", ["true"], image=image)
    message = error_of(client, "after")
    assert registry.address in message
    assert "auth" in message or "login" in message, message
    assert PASSWORD not in message
    other = start(OTHER_PASSWORD).client()
    run(other, "again", ["true"], image=image)
    other.wait("again", "completed")
    forget(docker, image)


def test_c003_a_busy_registry_is_asked_again(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    service = start()
    client, image = service.client(), big(docker, registry, "busy", 1)
    faults = registry.proxy.faults
    faults.answer = http_answer(429, '{"errors":[{"code":"TOOMANYREQUESTS"}]}', "Retry-After: 1")
    faults.answer_to, faults.answers = "manifests", 4
    run(client, "busy", ["true"], image=image)
    says(client, "busy", "again|TOOMANY|toomany|limit")
    client.wait("busy", "completed", timeout=40)
    forget(docker, image)


def test_c003_a_pull_that_is_cut_in_the_middle_goes_on(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    service = start()
    client, image = service.client(), big(docker, registry, "cut")
    registry.proxy.faults.bytes_a_second = 4 << 20
    run(client, "cut", ["true"], image=image)
    says(client, "cut", r"\d+ ?%")
    for _ in range(3):
        registry.proxy.cut()
        time.sleep(0.2)
    registry.proxy.faults.bytes_a_second = 0
    client.wait("cut", "completed", timeout=50)
    forget(docker, image)


@pytest.mark.time_limit(90)
def test_c003_c023_a_registry_that_is_away_gets_a_fair_chance_and_gpus_are_free_meanwhile(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    """Refused connections and names that don't resolve: at most 4 tries in 45 s, then an error."""
    service = start(gpus=1)
    client, image = service.client(), big(docker, registry, "away", 1)
    registry.proxy.faults.down = True
    run(client, "comes-back", ["true"], image=image)
    began = time.monotonic()
    run(client, "away", ["true"], image="127.0.0.1:1/never/there:1", provider="gpu")
    run(client, "no-name", ["true"], image="registry.invalid/never/there:1")
    says(client, "away", "127.0.0.1:1/never/there:1")
    says(client, "comes-back", "again|try|refused|EOF|reset")
    run(client, "meanwhile", ["true"], provider="gpu")
    client.wait("meanwhile", "completed", timeout=10)
    registry.proxy.faults.down = False
    client.wait("comes-back", "completed", timeout=50)
    for name, image_name in (("away", "127.0.0.1:1/never/there:1"), ("no-name", "registry.invalid/never")):
        message = error_of(client, name, timeout=60)
        assert image_name in message
    assert 2 < time.monotonic() - began < 55
    assert service.containers() == []
    until(lambda: all(not one.get("holder") for one in gpus(client)["data"]))
    forget(docker, image)


def test_c003_a_present_image_needs_no_registry(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    docker.api.post(f"/images/{BUSYBOX}/tag", repo=f"{registry.address}/team/here", tag="1")
    registry.proxy.requests.clear()
    registry.proxy.faults.down = True
    client = start().client()
    run(client, "here", ["true"], image=f"{registry.address}/team/here:1")
    client.wait("here", "completed")
    assert registry.proxy.asked() == []
    forget(docker, f"{registry.address}/team/here:1")


def test_a_service_that_is_killed_while_it_pulls_goes_on(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    service = start()
    client, image = service.client(), big(docker, registry, "killed")
    registry.proxy.faults.bytes_a_second = 4 << 20
    run(client, "killed", "echo x >> /marks/killed", image=image)
    says(client, "killed", r"\d+ ?%")
    service.kill()
    service.start()
    registry.proxy.faults.bytes_a_second = 0
    service.client().wait("killed", "completed", timeout=40)
    assert service.marked("killed") == ["x"]
    gone(lambda: service.containers())
    forget(docker, image)


def test_an_image_that_vanishes_before_its_start_is_fetched_again(
    start: Callable[..., DockerService], docker: DockerServer, registry: Registry
) -> None:
    service = start(executors=[{"provider": "cpu", "profile": "one", "config": {"max_concurrent": 1}}])
    client, image = service.client(), big(docker, registry, "vanishing", 1)
    run(client, "first", "sleep 1", image=image, profile="one")
    run(client, "second", ["true"], image=image, profile="one")
    client.wait("first", "completed")
    client.wait("second", "completed")
    forget(docker, image)


@pytest.mark.time_limit(90)
def test_a_full_disk_of_the_engine_is_named_at_once(
    start_docker: Callable[..., DockerServer], registry: Registry, docker: DockerServer, tmp_path: Path
) -> None:
    image = big(docker, registry, "too-large", 24)
    small = start_docker(disk_bytes=32 << 20)
    login = {
        "NEMO_JOBS_IMAGE_REGISTRY": registry.address,
        "NEMO_JOBS_IMAGE_REGISTRY_USER_NAME": USER,
        "NEMO_JOBS_IMAGE_REGISTRY_PASSWORD": PASSWORD,
    }
    service = DockerService(tmp_path / "small", small, environ=login)
    try:
        client: Client = service.start().client()
        run(client, "too-large", ["true"], image=image)
        message = error_of(client, "too-large")
        assert "space" in message
        assert image in message
        # Its log lies on the same disk, so it tells elsewhere.
        run(client, "writes", "dd if=/dev/zero of=/x bs=1M count=60; echo $? > /marks/writes; rm /x")
        client.wait("writes")
        assert service.marked("writes") == ["1"]
        run(client, "fits", ["echo", "still here"])
        assert client.wait("fits")["status"] == "completed", client.status("fits")
    finally:
        service.close()

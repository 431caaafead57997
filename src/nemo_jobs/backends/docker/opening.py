"""From settings to a backend, and what is worth a warning before it is used."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from nemo_jobs.backends.docker.backend import DockerBackend, Options
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.effort import PullLimits
from nemo_jobs.backends.docker.labels import instance_id
from nemo_jobs.backends.docker.spec import HOST_NAME, DockerSettings, Mounted
from nemo_jobs.backends.docker.transport import Tls
from nemo_jobs.domain.clock import Clock

_INSIDE = "/.dockerenv"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
#: Folders of the host that make whoever has them its master.
_SOCKETS = ("docker.sock", "containerd.sock", "crio.sock")


class TlsFiles(Protocol):
    @property
    def ca_cert_path(self) -> str | None: ...
    @property
    def client_cert_path(self) -> str | None: ...
    @property
    def client_key_path(self) -> str | None: ...


class EngineSettings(Protocol):
    """Section `platform.docker`."""

    @property
    def host(self) -> str | None: ...
    @property
    def tls(self) -> TlsFiles: ...
    @property
    def max_concurrent_pulls(self) -> int: ...
    @property
    def minimum_free_bytes(self) -> int: ...


class PlatformSettings(Protocol):
    @property
    def docker(self) -> EngineSettings: ...
    @property
    def loopback_address(self) -> str | None: ...
    @property
    def image_registry(self) -> str: ...
    @property
    def image_tag(self) -> str: ...


class HostSettings(Protocol):
    @property
    def docker_owner_id(self) -> str | None: ...


class Settings(Protocol):
    """What is used of the service's settings."""

    @property
    def platform(self) -> PlatformSettings: ...
    @property
    def host(self) -> HostSettings: ...


async def open_backend(settings: Settings, data_dir: Path, *, host_id: str, clock: Clock) -> DockerBackend:
    """The backend for the configured engine, which isn't asked anything yet: `start` does that, and may
    be called again when it failed. Raises ValueError with a sentence when the address is wrong."""
    platform = settings.platform
    files = platform.docker.tls
    given = files.ca_cert_path or files.client_cert_path
    tls = Tls(files.ca_cert_path, files.client_cert_path, files.client_key_path) if given else None
    engine = await DockerEngine.open(platform.docker.host, tls=tls)
    options = Options(
        data_dir=data_dir,
        host_id=host_id,
        owner=instance_id(str(data_dir), settings.host.docker_owner_id),
        fallback_image=f"{platform.image_registry}/nhx-tasks:{platform.image_tag}",
        loopback=platform.loopback_address or _own_name(),
        pulls=PullLimits(
            at_once=platform.docker.max_concurrent_pulls, least_free=platform.docker.minimum_free_bytes
        ),
    )
    return DockerBackend(engine, options, clock)


def _own_name() -> str | None:
    """What containers call this machine where it isn't what it calls itself; None elsewhere."""
    if sys.platform == "darwin":
        return HOST_NAME
    return socket.gethostname() if os.path.exists(_INSIDE) else None


def warnings_of(name: str, config: DockerSettings, listens_on: str) -> Iterator[str]:
    """What an operator should know of a profile before a job finds it out. `listens_on` is the address
    that this service listens on."""
    for mount in config.storage.additional_volume_mounts:
        if (place := _of_host(mount)) is not None:
            what = "the engine's socket" if place.endswith(_SOCKETS) else f"{place} of the engine's host"
            yield f"profile {name} gives tasks {what} ({mount.volume_name}): there they can do what root can"
    network = config.networking.job_container_network
    if network not in ("host", "none") and listens_on in _LOOPBACK:
        yield (
            f"profile {name} runs tasks on network {network!r}, and this service listens on {listens_on} "
            "alone: they can't reach it; let it listen on an address of the host, or use network 'host'"
        )


def _of_host(mount: Mounted) -> str | None:
    """The folder of the host behind a volume whose options name one."""
    options = mount.options or {}
    driver = options.get("DriverConfig") or options.get("driver_config") or {}
    found = {**(driver.get("Options") or driver.get("options") or {}), **options}
    device = found.get("device")
    return device if mount.kind == "volume" and isinstance(device, str) and device.startswith("/") else None

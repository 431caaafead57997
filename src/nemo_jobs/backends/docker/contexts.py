"""Which engine the docker command would use."""

from nemo_jobs.backends.docker.transport import Address, Tls


async def find(address: str | None, tls: Tls | None) -> Address:
    """Where to find the engine"""
    if address and address.startswith("unix://"):
        return Address("unix", path=address.removeprefix("unix://"))
    raise ValueError("not written yet")

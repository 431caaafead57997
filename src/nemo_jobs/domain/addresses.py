"""Which hosts are this machine itself. Pure: nothing is looked up."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a name or an address can't be reached from other machines."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

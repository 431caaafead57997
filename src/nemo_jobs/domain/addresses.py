"""Which hosts are this machine itself. Pure: nothing is looked up."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a name or an address can't be reached from other machines."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    # An IPv4 address inside an IPv6 one: newer Pythons look inside, older ones don't.
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    return address.is_loopback and not mapped

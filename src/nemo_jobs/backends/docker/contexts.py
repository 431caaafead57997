"""Which engine the docker command would use, and the settings file that it shares with us."""

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.transport import Address, Tls

USUAL = "/var/run/docker.sock"
_MOST_FILE = 4 << 20  # bytes of a settings file
_PORT, _TLS_PORT = 2375, 2376
_FORMS = "unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST"


async def find(
    address: str | None = None, tls: Tls | None = None, environ: Mapping[str, str] = os.environ
) -> Address:
    """The engine at `address`, or else the one that the docker command would use. Raises ValueError
    with a sentence that names the setting at fault."""
    found = await asyncio.to_thread(_found, address, tls, environ)
    if tls is not None and found.scheme != "tcp":
        raise ValueError(f"TLS files are configured, but {found} ({found.origin}) is not reached by TCP")
    return found


def parse(text: str, tls: Tls | None = None, origin: str = "") -> Address:
    """Read an address; raises ValueError. A password in it is refused and never shown."""
    if text.startswith("unix://"):
        return _unix(text, origin)
    try:
        parts = urlsplit(text)
        port = parts.port or 0
    except ValueError:
        raise ValueError(_wrong(origin, "", "can't be read as an address")) from None
    shown = text.rpartition("@")[2] if "@" in text else text
    if parts.password is not None:
        raise ValueError(_wrong(origin, shown, "holds a password: use keys or TLS files"))
    if parts.query or parts.fragment:
        raise ValueError(_wrong(origin, shown, "has something behind its end"))
    if parts.scheme not in ("tcp", "http", "https", "ssh"):
        raise ValueError(_wrong(origin, shown, "is no address of an engine"))
    if not parts.hostname or parts.hostname.startswith("-") or (parts.username or "").startswith("-"):
        raise ValueError(_wrong(origin, shown, "names no host"))
    if parts.scheme == "ssh":
        path = "" if parts.path == "/" else parts.path
        return Address("ssh", path, parts.hostname, port, parts.username or "", origin=origin)
    if parts.path not in ("", "/") or parts.username:
        raise ValueError(_wrong(origin, shown, "may hold a host and a port alone"))
    if parts.scheme == "https":
        tls = tls or Tls()
    port = port or (_TLS_PORT if tls else _PORT)
    return Address("tcp", host=parts.hostname, port=port, tls=_checked(tls, origin), origin=origin)


def settings_folder(environ: Mapping[str, str] = os.environ) -> str:
    """Where the docker command keeps its settings."""
    return environ.get("DOCKER_CONFIG") or os.path.join(os.path.expanduser("~"), ".docker")


def settings(folder: str) -> Json:
    """The settings of the docker command; empty when there are none. Raises ValueError."""
    return _object(os.path.join(folder, "config.json")) or {}


def _found(address: str | None, tls: Tls | None, environ: Mapping[str, str]) -> Address:
    if address:
        return parse(address, tls, "the configured address")
    folder = settings_folder(environ)
    if host := environ.get("DOCKER_HOST"):
        return parse(host, tls or _tls_of(environ, folder), "DOCKER_HOST")
    name, origin = environ.get("DOCKER_CONTEXT", ""), "DOCKER_CONTEXT"
    if not name:
        name, origin = str(settings(folder).get("currentContext") or ""), "the current Docker context"
    if name and name != "default":
        return _context(folder, name, tls, origin)
    return Address("unix", USUAL, origin="the usual place")


def _context(folder: str, name: str, tls: Tls | None, origin: str) -> Address:
    """An address out of the context store of the docker command."""
    place = hashlib.sha256(name.encode()).hexdigest()
    meta = _object(os.path.join(folder, "contexts", "meta", place, "meta.json"))
    if meta is None:
        raise ValueError(f"{origin} names {name!r}, which is not in {folder}")
    endpoints = meta.get("Endpoints")
    endpoint = endpoints.get("docker") if isinstance(endpoints, dict) else None
    host = endpoint.get("Host") if isinstance(endpoint, dict) else None
    if not isinstance(endpoint, dict) or not isinstance(host, str) or not host:
        raise ValueError(f"{origin} names {name!r}, which says no engine")
    skip = endpoint.get("SkipTLSVerify") is True
    files = _tls_files(os.path.join(folder, "contexts", "tls", place, "docker"), verify=not skip)
    if files is None and skip:
        files = Tls(verify=False)
    return parse(host, tls or files, f"{origin} {name!r}")


def _tls_of(environ: Mapping[str, str], folder: str) -> Tls | None:
    """What the variables of the docker command say about TLS."""
    verify = bool(environ.get("DOCKER_TLS_VERIFY"))
    if not verify and not environ.get("DOCKER_TLS"):
        return None
    return _tls_files(environ.get("DOCKER_CERT_PATH") or folder, verify) or Tls(verify=verify)


def _tls_files(folder: str, verify: bool) -> Tls | None:
    ca, cert, key = (
        path if os.path.exists(path := os.path.join(folder, name)) else None
        for name in ("ca.pem", "cert.pem", "key.pem")
    )
    return Tls(ca, cert, key, verify) if ca or cert or key else None


def _checked(tls: Tls | None, origin: str) -> Tls | None:
    if tls is None:
        return None
    if bool(tls.cert) != bool(tls.key):
        raise ValueError(f"{origin}: TLS needs both a certificate and its key, or neither")
    for path in filter(None, (tls.ca, tls.cert, tls.key)):
        if not os.access(path, os.R_OK):
            raise ValueError(f"{origin}: the TLS file {path} can't be read")
    return tls


def _unix(text: str, origin: str) -> Address:
    path = text.removeprefix("unix://")
    if not path.startswith("/") or "\0" in path:
        raise ValueError(_wrong(origin, text, "must hold an absolute path"))
    return Address("unix", path, origin=origin)


def _wrong(origin: str, shown: str, what: str) -> str:
    return f"{origin or 'the address'} {shown!r} {what}; it can be {_FORMS}"


def _object(path: str) -> Json | None:
    """A file that holds one JSON object; None when there is no file."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(_MOST_FILE + 1))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise ValueError(f"{path} isn't JSON") from None  # its text may hold logins
    if not isinstance(value, dict):
        raise ValueError(f"{path} doesn't hold an object")
    return cast(Json, value)

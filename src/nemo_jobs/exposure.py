"""Who can reach the service, and what is said about it at the start."""

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nemo_jobs.domain.addresses import is_loopback

if TYPE_CHECKING:
    from nemo_jobs.config import Settings

log = logging.getLogger("nemo_jobs")
_PORTS = {"http": 80, "https": 443}


def problem(host: str, settings: "Settings", insecure: bool) -> str | None:
    """Why the service must not listen on `host` as it is configured; None when it may."""
    auth = settings.auth
    if auth.enabled and insecure:
        return "--insecure-no-auth contradicts auth.enabled; leave one of them away"
    if auth.enabled and auth.oidc.issuer and find_spec("jwt") is None:
        return "auth.oidc.issuer needs PyJWT; install it with: pip install 'nemo-jobs[oidc]'"
    if auth.enabled or insecure or is_loopback(host):
        return None
    return (
        f"{host} can be reached from other machines, and whoever reaches this service starts programs "
        "here: set auth.enabled (NHX_AUTH_ENABLED=true; 'nemo auth tokens create' makes the first token), "
        "listen on 127.0.0.1, or say --insecure-no-auth where the network keeps others out"
    )


def tell_elsewhere(address: str | None, port: int) -> None:
    """Warn when tasks are told to call another port of this machine: a shell that was set up for the
    `nemo` command has `NHX_BASE_URL` too, and then tasks and their tokens go to another service."""
    found = urlsplit(address or "")
    if found.scheme not in ("http", "https") or not is_loopback(found.hostname or ""):
        return
    if (found.port or _PORTS[found.scheme]) != port:
        log.warning(
            "tasks are told to call %s (NHX_BASE_URL or platform.base_url), but this service listens on "
            "port %d; unset it, unless something there hands calls on to this service",
            address,
            port,
        )


def tell(host: str, settings: "Settings", tokens: int) -> None:
    """Warn of what a person should know; `tokens` is how many there are."""
    auth = settings.auth
    if not auth.enabled:
        if not is_loopback(host):
            log.warning(
                "authentication is off (--insecure-no-auth): whoever reaches %s starts programs as this user",
                host,
            )
        if auth.oidc.issuer:
            log.warning("auth.oidc is configured but auth.enabled is false: no token is asked for")
        return
    if tokens == 0 and not auth.oidc.issuer:
        log.warning(
            "authentication is on and there is no token yet: nobody can call. Make the first one here: "
            "nemo auth tokens create NAME --data-dir DIR (with PostgreSQL: --database-url URL)"
        )
    if not is_loopback(host) and settings.service.scheme == "http":
        log.warning(
            "tokens travel readable over plain HTTP; put a proxy with TLS before %s "
            "(and set service.scheme to https to say that there is one)",
            host,
        )

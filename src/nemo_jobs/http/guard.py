"""What every request must satisfy before a route sees it.

Without authentication anybody who can reach the port may start programs here, so a web page
that a user happens to open must not: its origin and the name it used for this host are checked,
and a body must be declared as JSON, which a page can't send elsewhere without asking first.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nemo_jobs.domain.addresses import is_loopback
from nemo_jobs.http.errors import refuse
from nemo_jobs.http.request import Scope
from nemo_jobs.http.wire import Header, Reply

if TYPE_CHECKING:
    from nemo_jobs.config import Settings

_REMEMBERED = 1024
_ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - read, not bound
_PREFLIGHT: tuple[Header, ...] = (
    (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED: Header = (b"access-control-expose-headers", b"retry-after, x-should-retry")


class Guard:
    """Checks host, origin and content type of a request, from its headers alone."""

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._hosts = {host.lower().strip("[]") for host in hosts if host}
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        self._good_hosts: set[bytes] = set()

    def check(self, scope: Scope) -> tuple[Reply | None, tuple[Header, ...]]:
        """An answer that ends the request, or None and the headers to add to its answer."""
        host = origin = kind = None
        has_body = False
        for name, value in scope["headers"]:
            if name == b"host":
                if host is not None:
                    return refuse(400, "the request has more than one Host header"), ()
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"content-type":
                kind = value
            elif name == b"content-length":
                has_body = has_body or value != b"0"
            elif name == b"transfer-encoding":
                has_body = True
        if host not in self._good_hosts and not self._host_is_good(host, scope["path"]):
            return _bad_host(host), ()
        extra: tuple[Header, ...] = ()
        if origin is not None:
            if not self._origin_is_good(origin):
                return _bad_origin(origin), ()
            extra = ((b"access-control-allow-origin", origin), (b"vary", b"Origin"), _EXPOSED)
            if scope["method"] == "OPTIONS":
                return _preflight(scope), extra
        if has_body and not _is_json(kind) and not _takes_bytes(kind, scope):
            return _bad_type(kind), extra
        return None, extra

    def _host_is_good(self, header: bytes | None, path: str) -> bool:
        # Probes of an orchestrator call by address, and their answers tell nothing.
        if path.startswith("/health/"):
            return True
        if header is None or "*" in self._hosts:
            return "*" in self._hosts
        name = _host_name(header.decode("latin-1"))
        good = name is not None and (name in self._hosts or is_loopback(name))
        if good and len(self._good_hosts) < _REMEMBERED:
            self._good_hosts.add(header)
        return good

    def _origin_is_good(self, header: bytes) -> bool:
        origin = header.decode("latin-1").lower()
        if "*" in self._origins or origin in self._origins:
            return True
        scheme, _, rest = origin.partition("://")
        name = _host_name(rest)
        return scheme in ("http", "https") and name is not None and is_loopback(name)


def guard_of(settings: "Settings") -> Guard:
    """The guard for a configuration: each host name that the service was told about is its own."""
    platform, service = settings.platform, settings.service
    urls = [platform.base_url, platform.advertised_base_url, *platform.service_discovery.values()]
    named = {urlsplit(url).hostname or "" for url in urls if url and "://" in url}
    if platform.loopback_address:
        named.add(platform.loopback_address)
    if service.host not in _ANY_ADDRESS:
        named.add(service.host)
    if settings.auth.enabled:
        named.add("*")  # a page that took over a name has no token
    return Guard({*named, *service.allowed_hosts}, service.cors_origins)


def _host_name(text: str) -> str | None:
    """The name in `name`, `name:port` or `[address]:port`, in lower case; None when it is none."""
    if any(character in text for character in "/@?#\\ "):
        return None
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        port = port.removeprefix(":") if port.startswith(":") else port and "bad"
        return name.lower() if bracket and (not port or port.isdigit()) else None
    name, colon, port = text.partition(":")
    return name.lower().rstrip(".") if name and (not colon or port.isdigit()) else None


def _is_json(kind: bytes | None) -> bool:
    if kind is None:
        return False
    media = kind.split(b";", 1)[0].strip().lower()
    return media == b"application/json" or (media.startswith(b"application/") and media.endswith(b"+json"))


def _takes_bytes(kind: bytes | None, scope: Scope) -> bool:
    """Where a body may be something else than JSON."""
    path: str = scope["path"]
    # A file is whatever it is. A page can't send a PUT elsewhere without asking first.
    uploads = scope["method"] == "PUT" and path.startswith("/apis/files/") and "/-/" in path
    return uploads or _is_records(kind, path) or _is_exchange(kind, path)


def _is_records(kind: bytes | None, path: str) -> bool:
    """Log records come as protobuf, which a page can't send elsewhere without asking either."""
    return (
        kind is not None
        and b"protobuf" in kind.partition(b";")[0].lower()
        and path.startswith("/apis/files/")
        and path.endswith("/otlp/v1/logs")
    )


def _is_exchange(kind: bytes | None, path: str) -> bool:
    """The form of a token endpoint. A page can send one, but has no token to show in it."""
    return (
        kind is not None
        and kind.partition(b";")[0].strip().lower() == b"application/x-www-form-urlencoded"
        and path == "/apis/auth/v2/exchange"
    )


def _preflight(scope: Scope) -> Reply:
    asked = next(
        (value for name, value in scope["headers"] if name == b"access-control-request-headers"), None
    )
    allowed = () if asked is None else ((b"access-control-allow-headers", asked),)
    return Reply(b"", 200, (*_PREFLIGHT, *allowed))


def _bad_host(header: bytes | None) -> Reply:
    shown = "without a Host header" if header is None else f"for host {header.decode('latin-1')!r}"
    return refuse(403, f"requests {shown} are not answered; service.allowed_hosts can allow the name")


def _bad_origin(header: bytes) -> Reply:
    origin = header.decode("latin-1")
    return refuse(403, f"pages of {origin!r} may not use this service; service.cors_origins can allow it")


def _bad_type(kind: bytes | None) -> Reply:
    shown = "none" if kind is None else kind.decode("latin-1")
    return refuse(415, f"the content type must be application/json, not {shown}")

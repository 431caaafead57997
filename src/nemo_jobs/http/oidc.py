"""Access tokens of an OpenID Connect issuer: are they its own, for us, and of now?

Signatures are checked by PyJWT, which is loaded with the first token; the issuer's keys come over
the network, in a thread, and are kept. Times are compared with the service's own clock.
"""

import asyncio
import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_jobs.config_auth import Oidc, is_trusted_url
from nemo_jobs.domain.access import MAX_PRINCIPAL, NOTHING, Grants, check_principal, grants_of
from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Invalid, Json
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.identity import MAX_EMAIL, MAX_NAME, MAX_NAMES, Access

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger(__name__)

#: Tokens whose signature was found good, and for how long that is believed, in seconds.
REMEMBERED, BELIEVED = 1024, 60.0
#: The shortest time between two requests for the issuer's keys, in seconds: tokens with key ids
#: out of the air must not make this service a nuisance to its issuer.
ASK_AGAIN = 10.0
#: How long keys serve on while the issuer can't be reached, in seconds.
STALE = 3600.0
FETCH_SECONDS = 5.0
MAX_ANSWER = 1 << 20
MAX_KEYS = 64
_MISSING = "access tokens of an issuer need PyJWT: pip install 'nemo-jobs[oidc]'"
_LEAST_RSA_BITS = 2048
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_CHALLENGE = (b"www-authenticate", b'Bearer realm="nemo-jobs", error="invalid_token"')
#: What clients that log in are told of the issuer, beside what is configured.
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "device_authorization_endpoint")

Fetch = Callable[[str], Json]


class Unreachable(Exception):
    """The issuer's answer could not be had; the text says why."""


class _Key(NamedTuple):
    kid: str | None
    kind: str  # kty of the key
    curve: str | None
    algorithm: str | None  # the only one that it may be used with, if it says so
    key: Any


class Issuer:
    """One issuer, its keys, and what its claims give."""

    def __init__(self, settings: Oidc, clock: Clock, fetch: "Fetch | None" = None) -> None:
        self._settings, self._clock, self._fetch = settings, clock, fetch or get_json
        self._keys: Sequence[_Key] = ()
        self._told: Json = {}
        self._fetched = self._tried = float("-inf")
        self._lock = asyncio.Lock()
        self._good: dict[str, tuple[float, Access]] = {}

    async def access(self, shown: str) -> Access:
        """What an access token allows. Raises Refused: 401 for one that does not count, 503 while
        the issuer's keys can't be had."""
        hashed = hashlib.sha256(shown.encode()).hexdigest()
        now = self._clock.monotonic()
        known = self._good.get(hashed)
        if known is not None and now - known[0] < BELIEVED:
            return known[1]
        found = self._access_of(await self._claims(shown))
        self._good.pop(hashed, None)
        if len(self._good) >= REMEMBERED:
            self._good.pop(next(iter(self._good)))
        self._good[hashed] = (now, found)
        return found

    async def discovery(self) -> Json:
        """What `/apis/auth/discovery` tells of the issuer; without its addresses while it is away."""
        try:
            await self._refresh_if_old()
        except Refused:
            log.warning("the issuer's addresses are left out of the discovery: it can't be reached")
        wanted = self._settings
        return {
            "issuer": wanted.issuer,
            "client_id": wanted.client_id,
            "audience": wanted.wanted_audience,
            "workload": {"client_id": wanted.workload.client_id},
            **{name: self._told.get(name) for name in _ENDPOINTS},
        }

    async def _claims(self, shown: str) -> Json:
        """The claims of a token whose signature, issuer, audience and times are good."""
        jwt = await _library()
        try:
            header = jwt.get_unverified_header(shown)
        except jwt.PyJWTError as error:
            raise _refused(f"the token can't be read: {error}") from None
        algorithm = header.get("alg")
        if algorithm not in self._settings.algorithms:
            raise _refused(f"the token is signed with {str(algorithm)[:20]!r}, which is not accepted here")
        if "crit" in header:
            raise _refused("the token asks for extensions that are not known here")
        claims = self._verified(jwt, shown, algorithm, await self._keys_for(header.get("kid"), algorithm))
        self._check_times(claims)
        return claims

    def _verified(self, jwt: "ModuleType", shown: str, algorithm: str, keys: Iterable[_Key]) -> Json:
        options = {
            "require": ["exp", "iss", "aud"],
            **{f"verify_{claim}": False for claim in ("exp", "nbf", "iat", "sub", "jti")},
        }
        why = "no key of the issuer fits it"
        for key in keys:
            try:
                claims: Json = jwt.decode(
                    shown,
                    key.key,
                    algorithms=[algorithm],
                    audience=self._settings.wanted_audience,
                    issuer=self._settings.issuer,
                    options=options,
                )
            except jwt.InvalidSignatureError:
                why = "its signature is wrong"
                continue
            except jwt.PyJWTError as error:
                raise _refused(f"the token does not count here: {error}") from None
            return claims
        raise _refused(f"the token does not count here: {why}")

    def _check_times(self, claims: Json) -> None:
        now, leeway = self._clock.now() / 1e6, self._settings.leeway_seconds
        for name in ("exp", "nbf", "iat"):
            value = claims.get(name)
            if value is None and name != "exp":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**40:
                raise _refused(f"the token's {name} is no time")
        if claims["exp"] + leeway <= now:
            raise _refused("the token has expired; log in again")
        if max(claims.get("nbf", 0), claims.get("iat", 0)) - leeway > now:
            raise _refused("the token is not valid yet; is the clock right, here and at its issuer?")

    async def _keys_for(self, kid: Any, algorithm: str) -> list[_Key]:
        await self._refresh_if_old()
        found = self._fitting(kid, algorithm)
        if not found and self._clock.monotonic() - self._tried >= ASK_AGAIN:
            await self._refresh()  # the issuer may have a new key
            found = self._fitting(kid, algorithm)
        return found

    def _fitting(self, kid: Any, algorithm: str) -> list[_Key]:
        return [
            key
            for key in self._keys
            if (kid is None or key.kid == kid)
            and key.kind == _KINDS[algorithm[:2]]
            and key.algorithm in (None, algorithm)
            and _CURVES.get(algorithm, key.curve) == key.curve
        ]

    async def _refresh_if_old(self) -> None:
        now = self._clock.monotonic()
        age, quiet = now - self._fetched, now - self._tried >= ASK_AGAIN
        if age < self._settings.jwks_cache_seconds:
            return
        if self._lock.locked() or quiet:
            if age >= STALE or not self._lock.locked():
                await self._refresh()
        elif age >= STALE:
            raise _away()  # it was asked a moment ago, in vain

    async def _refresh(self) -> None:
        """Ask the issuer, once for all who want it now. Raises Refused (503) without good keys."""
        wanted = self._clock.monotonic()
        async with self._lock:
            if self._tried < wanted:
                self._tried = self._clock.monotonic()
                try:
                    async with asyncio.timeout(2 * FETCH_SECONDS + 1):
                        self._told, self._keys = await asyncio.to_thread(self._ask)
                    self._fetched = self._tried
                except TimeoutError:
                    log.warning("the keys of %s can't be had: no answer", self._settings.issuer)
                except Unreachable as error:
                    log.warning("the keys of %s can't be had: %s", self._settings.issuer, error)
        if self._clock.monotonic() - self._fetched >= STALE:
            raise _away()

    def _ask(self) -> tuple[Json, list[_Key]]:
        """The issuer's description and keys, over the network."""
        try:
            _import()
        except ImportError:
            raise Unreachable(_MISSING) from None
        issuer = str(self._settings.issuer)
        told = self._fetch(issuer.rstrip("/") + "/.well-known/openid-configuration")
        if told.get("issuer") != issuer:
            raise Unreachable(f"it says of itself that it is {str(told.get('issuer'))[:200]!r}")
        address = told.get("jwks_uri")
        if not isinstance(address, str) or not is_trusted_url(address):
            raise Unreachable(f"its jwks_uri is {str(address)[:200]!r}, which must be https")
        listed = self._fetch(address).get("keys")
        found = [
            key for item in (listed if isinstance(listed, list) else [])[:MAX_KEYS] if (key := _key(item))
        ]
        if not found:
            raise Unreachable("it offers no key that can be used")
        return {name: told[name] for name in _ENDPOINTS if isinstance(told.get(name), str)}, found

    def _access_of(self, claims: Json) -> Access:
        wanted = self._settings
        principal = _at(claims, wanted.principal_claim)
        if not isinstance(principal, str):
            raise _refused(f"the token has no claim {wanted.principal_claim!r} with the caller's name")
        given: dict[str, set[str]] = {}
        for grant in wanted.grants:
            held = _held(_at(claims, grant.claim))
            if grant.value in held or (grant.value == "*" and held):
                for workspace in grant.workspaces:
                    given.setdefault(workspace, set()).update(grant.scopes)
        grants: Grants = grants_of(given) if given else NOTHING
        try:
            check_principal(principal[: MAX_PRINCIPAL + 1], grants)
        except Invalid as error:
            raise _refused(f"the token does not count here: {error}") from None
        until = int((claims["exp"] + wanted.leeway_seconds) * 1e6)
        return Access(principal, grants, context=self._context(claims), until=until)

    def _context(self, claims: Json) -> Json:
        """What of the claims goes into the `auth_context` of jobs."""
        email, groups = _at(claims, self._settings.email_claim), _at(claims, self._settings.groups_claim)
        context: Json = {}
        if isinstance(email, str) and len(email) <= MAX_EMAIL:
            context["principal_email"] = email
        if isinstance(groups, list):
            short = [group for group in groups if isinstance(group, str) and len(group) <= MAX_NAME]
            context["principal_groups"] = short[:MAX_NAMES]
        return context


async def _library() -> "ModuleType":
    if "jwt.algorithms" in sys.modules:
        return sys.modules["jwt"]
    try:
        return await asyncio.to_thread(_import)
    except ImportError:
        raise Refused(503, _MISSING, (b"retry-after", b"60")) from None


def _import() -> "ModuleType":
    import jwt
    import jwt.algorithms

    return jwt


def _key(item: Any) -> _Key | None:
    """A public key for signatures; None for everything else that a key set may hold."""
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    kinds: Mapping[str, Any] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}
    if not isinstance(item, dict) or item.get("kty") not in kinds or item.get("use", "sig") != "sig":
        return None
    public = {name: value for name, value in item.items() if name in ("kty", "n", "e", "crv", "x", "y")}
    try:
        made: Any = kinds[item["kty"]].from_jwk(public)
    except Exception as error:  # whatever a library makes of nonsense: this key is not used
        log.warning("a key of the issuer can't be used: %s", error)
        return None
    if item["kty"] == "RSA" and made.key_size < _LEAST_RSA_BITS:
        log.warning("a key of the issuer is not used: RSA with %d bits", made.key_size)
        return None
    kid = item.get("kid")
    return _Key(kid if isinstance(kid, str) else None, item["kty"], item.get("crv"), item.get("alg"), made)


def get_json(url: str) -> Json:
    """A JSON object from an address that the issuer named. Raises `Unreachable`."""
    import urllib.error
    import urllib.request

    class _Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *given: Any, **more: Any) -> None:
            return None

    opener = urllib.request.build_opener(_Stay)
    try:
        with opener.open(url, timeout=FETCH_SECONDS) as answer:
            raw = answer.read(MAX_ANSWER + 1)
        value = json.loads(raw) if len(raw) <= MAX_ANSWER else None
    except (OSError, ValueError, RecursionError) as error:
        raise Unreachable(f"{url}: {error}") from None
    if not isinstance(value, dict):
        raise Unreachable(f"{url}: the answer is no JSON object of less than {MAX_ANSWER} bytes")
    return value


def _at(claims: Json, path: str) -> Any:
    """A claim by its name, which may hold dots, or by a path."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _held(value: Any) -> set[str]:
    """What a claim holds: the items of a list, or a text and its words."""
    if isinstance(value, str):
        return {value, *value.split()}
    if isinstance(value, list):
        return {item for item in value if isinstance(item, str)}
    return {json.dumps(value)} if isinstance(value, bool | int) else set()


def _refused(text: str) -> Refused:
    return Refused(401, text, _CHALLENGE)


def _away() -> Refused:
    return Refused(503, "the issuer of access tokens can't be reached now", (b"retry-after", b"10"))

"""The token endpoint for programs that hold a token file and expect to exchange it.

Launchers and clients of the family don't send what is in the file: they look into the discovery
for a token endpoint and give it the file's token for an access token (RFC 8693). Tokens of this
service are looked up with every request, so there is nothing to trade them for: who shows one
that counts is given it back, and asks again after an hour at most.
"""

import re
from urllib.parse import parse_qsl, urlsplit

from nemo_jobs.config_model import Platform
from nemo_jobs.domain.model import Json
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, json_reply
from nemo_jobs.store import tokens

EXCHANGE = "/apis/auth/v2/exchange"
FORM = "application/x-www-form-urlencoded"
#: The grant and the kind of token that is given, as the RFC names them.
GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
KIND = "urn:ietf:params:oauth:token-type:access_token"
#: What a client is to call itself; nothing depends on it.
CLIENT = "nemo-jobs"
#: After so many seconds a client asks again, at the latest.
LIFETIME = 3600
MAX_FIELDS = 20
_HOST = re.compile(r"[A-Za-z0-9._\-]{1,253}(:\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?")


async def exchange_token(api: Api, request: Request) -> Reply:
    """The token that was shown, if it counts. Errors are in the words of RFC 6749, too."""
    try:
        given = _form(await request.body())
        if api.gate is None:
            return _refused("invalid_request", "authentication is off here: no token is needed")
        if given.get("grant_type") != GRANT:
            return _refused("unsupported_grant_type", f"grant_type must be {GRANT}")
        shown = given.get("subject_token", "")
        if not shown.startswith(tokens.PREFIX):
            text = "subject_token must be a token of this service, such as that in the file of a task"
            return _refused("invalid_request", text)
        until = await api.gate.until(shown)
    except Refused as error:
        if error.status != 401:
            raise
        return _refused("invalid_grant", error.detail)
    lifetime = LIFETIME if until is None else min(LIFETIME, (until - api.parts.clock.now()) // 1_000_000)
    said = {"access_token": shown, "issued_token_type": KIND, "token_type": "Bearer", "expires_in": lifetime}
    return json_reply(said, 200, _NOT_KEPT)


def told(request: Request, platform: Platform) -> Json:
    """What the discovery says of it."""
    return {
        "workload_token_exchange_enabled": True,
        "workload_token_endpoint": base_of(request, platform) + EXCHANGE,
        "workload_client_id": CLIENT,
    }


def base_of(request: Request, platform: Platform) -> str:
    """The address of this service as the caller knows it: a configured one for the host that was
    asked, which says whether that is HTTPS; else that host itself."""
    host = (request.header(b"host") or "").lower()
    for url in (platform.advertised_base_url, platform.base_url):
        if url and urlsplit(url).netloc.lower() == host:
            return url.rstrip("/")
    if not _HOST.fullmatch(host):
        return (platform.advertised_base_url or platform.base_url).rstrip("/")
    return f"{request.scope['scheme']}://{host}"


def _form(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(body.decode("ascii"), max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:  # of a wrong encoding, too
        raise Refused(422, f"the body must be a form of at most {MAX_FIELDS} fields") from None
    return dict(pairs)


def _refused(error: str, text: str) -> Reply:
    return json_reply({"detail": text, "error": error, "error_description": text}, 400, _NOT_KEPT)


_NOT_KEPT = ((b"cache-control", b"no-store"),)

OPERATIONS = (
    Operation(
        "POST",
        EXCHANGE,
        exchange_token,
        "Exchange the token of a task's file, as its launcher does",
        "ExchangedToken",
        body="TokenExchange",
        body_media=(FORM,),
        errors=(400,),
        scope="none",
    ),
)

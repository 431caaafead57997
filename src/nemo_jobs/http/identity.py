"""Who calls, as far as the caller says so: with authentication off the headers are taken as given."""

import json
from dataclasses import dataclass

from nemo_jobs.domain.model import Json
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.request import Request

MAX_EMAIL = 320
MAX_NAMES = 100
MAX_NAME = 256

_PREFIX = b"x-nhx-"
_ONE = {
    b"x-nhx-actor-account-id": "principal_account_id",
    b"x-nhx-principal-email": "principal_email",
    b"x-nhx-principal-on-behalf-of": "principal_on_behalf_of",
    b"x-nhx-principal-on-behalf-of-email": "principal_on_behalf_of_email",
    b"x-nhx-subject-account-id": "principal_on_behalf_of_account_id",
}
_MANY = {
    b"x-nhx-principal-groups": "principal_groups",
    b"x-nhx-actor-aliases": "principal_authz_aliases",
    b"x-nhx-principal-on-behalf-of-groups": "principal_on_behalf_of_groups",
    b"x-nhx-subject-aliases": "principal_on_behalf_of_authz_aliases",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """`actor` goes into records and events, `context` into a job that the caller creates."""

    actor: str
    context: str


def _context(fields: Json) -> str:
    empty: Json = {
        "principal_id": "",
        "principal_authz_aliases": [],
        "principal_groups": [],
        "principal_on_behalf_of_authz_aliases": [],
    }
    return json.dumps({**empty, **fields}, ensure_ascii=False, separators=(",", ":"))


ANONYMOUS = Caller("anonymous", _context({}))


def caller(request: Request) -> Caller:
    """The caller of a request. Raises Refused (422) for a header that is out of bounds."""
    given = [(name, value) for name, value in request.scope["headers"] if name.startswith(_PREFIX)]
    if not given:
        return ANONYMOUS
    fields: Json = {}
    for name, raw in given:
        value = raw.decode("latin-1").strip()
        if name == b"x-nhx-principal-id":
            fields["principal_id"] = _bounded(name, value, MAX_NAME)
        elif name in _ONE:
            limit = MAX_EMAIL if name.endswith(b"email") else MAX_NAME
            fields[_ONE[name]] = _bounded(name, value, limit)
        elif name in _MANY:
            fields[_MANY[name]] = _names(name, value)
    actor = fields.get("principal_id") or ANONYMOUS.actor
    return Caller(actor, _context(fields))


def _names(header: bytes, value: str) -> list[str]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    if len(names) > MAX_NAMES:
        raise Refused(422, f"header {header.decode()} has {len(names)} entries; {MAX_NAMES} are allowed")
    return [_bounded(header, name, MAX_NAME) for name in names]


def _bounded(header: bytes, value: str, limit: int) -> str:
    if len(value) > limit:
        raise Refused(
            422, f"header {header.decode()} has a value of {len(value)} characters; {limit} are allowed"
        )
    return value

"""Who calls, and what they may do.

With authentication off the identity headers are taken as given and everybody may do everything.
With it on a request carries the `Access` of its token, and identity headers count only for a
token of scope `service` and for the token of a task.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nemo_jobs.domain.access import EVERYWHERE, NOTHING, SERVICE_PREFIX, Grants, Scope
from nemo_jobs.domain.model import Json
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.request import Request

if TYPE_CHECKING:
    from nemo_jobs.store.tokens import TaskOf

MAX_EMAIL = 320
MAX_NAMES = 100
MAX_NAME = 256

_PREFIX = b"x-nhx-"
_PRINCIPAL = b"x-nhx-principal-id"
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
#: How a service of the family names itself where nothing checks it.
_SERVICE_BEARER = f"bearer {SERVICE_PREFIX}".encode()


@dataclass(frozen=True, slots=True)
class Caller:
    """`actor` goes into records and events, `context` into a job that the caller creates."""

    actor: str
    context: str


@dataclass(frozen=True, slots=True)
class Access:
    """What a token allows, and whose it is. `task` is the live attempt that a task's token is
    bound to; `context` holds fields of `auth_context`; `until` is its end in microseconds."""

    principal: str
    grants: Grants
    token_id: str = ""
    task: "TaskOf | None" = None
    context: Mapping[str, object] = field(default_factory=dict)
    until: int | None = None

    def speaks_for_others(self, workspace: str) -> bool:
        """Whether identity headers count and what is for services is shown."""
        return self.task is not None or self.grants.is_service(workspace)


def _context(fields: Mapping[str, object]) -> str:
    empty: Json = {
        "principal_id": "",
        "principal_authz_aliases": [],
        "principal_groups": [],
        "principal_on_behalf_of_authz_aliases": [],
    }
    return json.dumps({**empty, **fields}, ensure_ascii=False, separators=(",", ":"))


#: The access of a request that needs none.
NOBODY = Access("anonymous", NOTHING)
ANONYMOUS = Caller("anonymous", _context({}))


def caller(request: Request) -> Caller:
    """The caller of a request. Raises Refused (422) for a header that is out of bounds."""
    access = request.access
    if access is None:
        return _as_given(request)
    known: Json = {"principal_id": access.principal, **access.context}
    if access.speaks_for_others(request.path.get("workspace", EVERYWHERE)):
        claimed = _fields(request)
        if claimed.get("principal_id"):
            known = claimed
        else:
            known |= claimed | {"principal_id": access.principal}
    return Caller(known["principal_id"], _context(known))


def may(request: Request, workspace: str, scope: Scope) -> bool:
    """Whether the caller has a scope in a workspace that the path does not name. The token of a
    task has none anywhere."""
    return request.access is None or request.access.grants.allows(workspace, scope)


def readable(request: Request) -> frozenset[str] | None:
    """The workspaces that the caller may read; None for all."""
    return None if request.access is None else request.access.grants.where(Scope.READ)


def shows_to_services(request: Request, workspace: str) -> bool:
    """Whether the caller is shown what is for services only: `auth_context`."""
    return request.access is None or request.access.speaks_for_others(workspace)


def _as_given(request: Request) -> Caller:
    named, bearer = False, b""
    for name, value in request.scope["headers"]:
        if name.startswith(_PREFIX):
            named = True
        elif name == b"authorization":
            bearer = value
    fields = _fields(request) if named else {}
    if "principal_id" not in fields and bearer[: len(_SERVICE_BEARER)].lower() == _SERVICE_BEARER:
        shown = bearer[len(b"bearer ") :].decode("latin-1").strip()
        fields["principal_id"] = _bounded(b"authorization", shown, MAX_NAME)
    if not fields:
        return ANONYMOUS
    return Caller(fields.get("principal_id") or ANONYMOUS.actor, _context(fields))


def _fields(request: Request) -> Json:
    """What the identity headers say, as fields of `auth_context`."""
    fields: Json = {}
    for name, raw in request.scope["headers"]:
        if not name.startswith(_PREFIX):
            continue
        value = raw.decode("latin-1").strip()
        if name == _PRINCIPAL:
            fields["principal_id"] = _bounded(name, value, MAX_NAME)
        elif name in _ONE:
            limit = MAX_EMAIL if name.endswith(b"email") else MAX_NAME
            fields[_ONE[name]] = _bounded(name, value, limit)
        elif name in _MANY:
            fields[_MANY[name]] = _names(name, value)
    return fields


def _names(header: bytes, value: str) -> Sequence[str]:
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

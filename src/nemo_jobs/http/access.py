"""The check before every handler: whose token is it, and does it allow this?

Without authentication there is no gate, and a request pays nothing for it.
"""

from collections.abc import Sequence

from nemo_jobs.config_auth import Auth
from nemo_jobs.domain.access import EVERYWHERE, Scope
from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Unavailable
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.identity import NOBODY, Access
from nemo_jobs.http.oidc import Issuer
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.rules import Rule, rule_of
from nemo_jobs.store import tokens
from nemo_jobs.store.db import Database

#: How long what is known of a token is believed without another look, in seconds. A revocation is
#: told to every service at once; if that message is lost, it counts after this time.
BELIEVED = 5.0
#: Tokens that are known at once; more are looked up again and again.
REMEMBERED = 4096
MAX_TOKEN = 16 * 1024
_REALM = b'Bearer realm="nemo-jobs"'


class Gate:
    """Lets a request in, with what its token allows, or refuses it with 401 or 403."""

    def __init__(self, db: Database, clock: Clock, auth: Auth, operations: Sequence[Operation]) -> None:
        self._db, self._clock = db, clock
        self._rules = {id(operation): rule_of(operation) for operation in operations}
        self._operations = tuple(operations)  # their ids stay theirs as long as they are here
        self._known: dict[str, tuple[float, Access]] = {}
        self._changes = 0
        self.issuer = Issuer(auth.oidc, clock) if auth.oidc.issuer else None
        self._unhook = db.on_wake(self._on_wake)

    def close(self) -> None:
        """Stop to listen for revocations. Twice is fine."""
        self._unhook()

    async def admit(self, operation: Operation, request: Request) -> None:
        """Set `request.access`. Raises Refused (401, 403), and Unavailable while tokens can't be
        looked up."""
        rule = self._rules[id(operation)]
        if rule.scope is None:
            request.access = await self._if_any(request) if rule.asks else NOBODY
            return
        access = await self._access(_bearer(request))
        self._check_end(access)
        request.access = access
        if access.task is not None:
            await self._check_task(rule, access, request)
        else:
            _check_scope(rule, rule.scope, access, request)

    async def until(self, shown: str) -> int | None:
        """When a token ends that counts now, in microseconds since 1970; None: when it is revoked.
        Raises Refused (401) and Unavailable."""
        access = await self._access(shown)
        self._check_end(access)
        return access.until

    async def holds(self, operation: Operation, request: Request) -> bool:
        """Whether a request that was let in, and lasts, would be let in now."""
        try:
            await self.admit(operation, request)
        except Refused:
            return False
        return True

    def _check_end(self, access: Access) -> None:
        if access.until is not None and access.until <= self._clock.now():
            raise _unknown("the token has expired; use a new one")

    async def _if_any(self, request: Request) -> Access:
        """For what everybody may ask, and some are told more: never refuses, never waits long."""
        if self._db.problem is not None:
            return NOBODY
        try:
            access = await self._access(_bearer(request))
        except (Refused, Unavailable):
            return NOBODY
        return access if access.until is None or access.until > self._clock.now() else NOBODY

    async def _access(self, shown: str | None) -> Access:
        if shown is None:
            raise Refused(
                401,
                "this service asks for a token: send 'Authorization: Bearer <token>' "
                "(the nemo command sends NHX_ACCESS_TOKEN)",
                (b"www-authenticate", _REALM),
            )
        if shown.startswith(tokens.PREFIX):
            return await self._opaque(shown)
        if self.issuer is not None and shown.count(".") == 2:
            return await self.issuer.access(shown)
        raise _unknown("the token is none of this service's")

    async def _opaque(self, shown: str) -> Access:
        if not tokens.well_formed(shown):
            raise _unknown("the token is not complete, or not one of this service's")
        hashed = tokens.hash_of(shown)
        known = self._known.get(hashed)
        now = self._clock.monotonic()
        if known is not None and now - known[0] < BELIEVED:
            return known[1]
        changes = self._changes
        found = await self._db.read(tokens.find, hashed, point=True)
        access = _of(found)
        if access.task is None and changes == self._changes:
            # The token of a task is looked up each time: it ends with its attempt, at once.
            self._known.pop(hashed, None)
            if len(self._known) >= REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[hashed] = (now, access)
        return access

    async def _check_task(self, rule: Rule, access: Access, request: Request) -> None:
        task = access.task
        if task is None:
            return
        path = list(request.path.values())
        allowed = rule.task is not None and rule.task(task, path)
        if allowed and rule.secret:
            named = await self._db.read(
                tokens.secrets_of_attempt, task.attempt_id, task.workspace, point=True
            )
            allowed = (path[0], path[1]) in named
        if not allowed:
            raise Refused(
                403,
                f"this token belongs to a task of job {task.job!r} in workspace {task.workspace!r} "
                "and serves for that job's own records only",
            )

    def _on_wake(self, topic: str, key: str) -> None:
        if topic == "token" or not key:
            self._changes += 1
            self._known.clear()


def _bearer(request: Request) -> str | None:
    """The token of the Authorization header; None without the header."""
    found = None
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            if found is not None:
                raise _unknown("the request has more than one Authorization header")
            found = value
    if found is None:
        return None
    scheme, _, rest = found.partition(b" ")
    shown = rest.strip()
    if scheme.lower() != b"bearer" or not shown or not shown.isascii() or len(shown) > MAX_TOKEN:
        raise _unknown("the Authorization header must be 'Bearer <token>'")
    return str(shown.decode("ascii"))


def _of(found: tokens.Found | None) -> Access:
    if found is None:
        raise _unknown("the token is not known")
    record = found.record
    if record.revoked_at is not None:
        raise _unknown("the token has been revoked")
    if found.attempt_id is not None and found.task is None:
        raise _unknown("the token has ended with the run of the job that it was made for")
    return Access(
        principal=record.principal,
        grants=tokens.grants_in(record),
        token_id=record.id,
        task=found.task,
        until=record.expires_at,
    )


def _check_scope(rule: Rule, scope: Scope, access: Access, request: Request) -> None:
    grants = access.grants
    if rule.workspace is None:
        if rule.everywhere and not grants.allows(EVERYWHERE, scope):
            raise Refused(403, f"this needs scope {scope.value!r} in all workspaces, which the token lacks")
        if not grants.allows_somewhere(scope):
            raise Refused(403, f"this needs scope {scope.value!r}, and the token has it in no workspace")
        return
    workspace = request.path[rule.workspace]
    if rule.wild and workspace == "-":
        allowed = grants.allows_somewhere(scope)
    else:
        allowed = grants.allows(workspace, scope)
    if not allowed:
        raise Refused(
            403,
            f"this needs scope {scope.value!r} in workspace {workspace[:80]!r}; "
            f"the token has {grants.named(workspace)} there",
        )


def _unknown(text: str) -> Refused:
    return Refused(401, text, (b"www-authenticate", _REALM + b', error="invalid_token"'))

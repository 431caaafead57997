"""Tokens: made, listed and revoked by those who are admin where they hold."""

import json
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, Field, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from nemo_jobs.domain.access import EVERYWHERE, MAX_PRINCIPAL, Scope, grants_of
from nemo_jobs.domain.model import Json
from nemo_jobs.domain.spec import Text
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.identity import caller
from nemo_jobs.http.jobs import check_page_size
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, dumps, json_reply, page_reply, time_text
from nemo_jobs.store import tokens as store

TOKENS = "/apis/auth/v2/tokens"
TOKEN = TOKENS + "/{name}"
MAX_SECONDS = 100 * 366 * 86_400


class TokenListQuery(BaseModel):
    page: Annotated[int, Field(gt=0)] = 1
    page_size: Annotated[int, Field(gt=0)] = 100
    sort: Literal["-created_at"] = "-created_at"


class TokenCreate(BaseModel):
    """`grants` maps workspaces (or `*`) to scopes; without an end the token holds until revoked."""

    principal: Annotated[str, Field(min_length=1, max_length=MAX_PRINCIPAL)]
    grants: Annotated[dict[str, list[Scope]], Field(min_length=1)]
    description: Annotated[Text, Field(max_length=1000)] | None = None
    expires_at: AwareDatetime | None = None
    expires_in_seconds: Annotated[int, Field(gt=0, le=MAX_SECONDS)] | None = None

    @model_validator(mode="after")
    def _one_end(self) -> "TokenCreate":
        if self.expires_at is not None and self.expires_in_seconds is not None:
            raise PydanticCustomError("two_ends", "give expires_at or expires_in_seconds, not both")
        return self

    def end(self, now: int) -> int | None:
        """When it expires, in microseconds since 1970 UTC."""
        if self.expires_in_seconds is not None:
            return now + self.expires_in_seconds * 1_000_000
        if self.expires_at is None:
            return None
        since = self.expires_at - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


_CREATE = TypeAdapter(TokenCreate)


async def create_token(api: Api, request: Request) -> Reply:
    """The only answer that holds the token itself."""
    _authentication_is_on(request)
    body = await request.parsed(_CREATE)
    given = {name: [scope.value for scope in scopes] for name, scopes in body.grants.items()}
    grants_of(given)
    _check_may_give(request, body.grants)
    now = api.parts.clock.now()
    made = store.new_token()
    record = await api.parts.db.write(
        store.add,
        store.hash_of(made),
        body.principal,
        given,
        description=body.description,
        expires_at=body.end(now),
        now=now,
        actor=caller(request).actor,
    )
    return json_reply({**token_json(record), "token": made}, 201, ((b"cache-control", b"no-store"),))


async def list_tokens(api: Api, request: Request) -> Reply:
    _authentication_is_on(request)
    query = request.query(TokenListQuery)
    check_page_size(query.page_size)
    within = _administered(request)
    found, total = await api.parts.db.read(store.list_tokens, within, query.page, query.page_size)
    return page_reply(
        [dumps(token_json(record)) for record in found],
        page=query.page,
        page_size=query.page_size,
        total=total,
        sort=query.sort,
    )


async def revoke_token(api: Api, request: Request) -> Reply:
    _authentication_is_on(request)
    parts = api.parts
    gone = await parts.db.write(store.revoke, request.path["name"], _administered(request), parts.clock.now())
    return json_reply(token_json(gone))


def token_json(record: store.TokenRecord) -> Json:
    """A token as it is shown: all but itself."""
    ends = {"expires_at": record.expires_at, "revoked_at": record.revoked_at}
    return {
        "id": record.id,
        "principal": record.principal,
        "description": record.description,
        "grants": json.loads(record.grants),
        "created_at": time_text(record.created_at),
        "created_by": record.created_by,
        **{name: None if at is None else time_text(at) for name, at in ends.items()},
    }


def _administered(request: Request) -> frozenset[str] | None:
    """The workspaces in which the caller is admin; None for all."""
    return frozenset() if request.access is None else request.access.grants.where(Scope.ADMIN)


def _check_may_give(request: Request, given: dict[str, list[Scope]]) -> None:
    """Nobody gives what they don't have."""
    within = _administered(request)
    beyond = sorted(name for name in given if within is not None and name not in within)
    if beyond:
        shown = ", ".join(name[:80] for name in beyond[:5])
        raise Refused(403, f"only an admin of {shown} can make a token that holds there")
    if within is not None and any(Scope.SERVICE in scopes for scopes in given.values()):
        raise Refused(403, f"only an admin of {EVERYWHERE} can make a token of scope service")


def _authentication_is_on(request: Request) -> None:
    """Without authentication anybody who reaches the port could make tokens for later."""
    if request.access is None:
        raise Refused(
            403,
            "authentication is off (auth.enabled), so tokens are not made over the API; "
            "'nemo auth tokens create --data-dir DIR' makes one on the service's machine",
        )


OPERATIONS = (
    Operation(
        "POST",
        TOKENS,
        create_token,
        "Create a token",
        "NewToken",
        201,
        body="TokenCreate",
        errors=(403, 409, 422),
        scope="admin",
    ),
    Operation(
        "GET",
        TOKENS,
        list_tokens,
        "List tokens",
        "TokenPage",
        query="TokenListQuery",
        errors=(403, 422),
        scope="admin",
    ),
    Operation("DELETE", TOKEN, revoke_token, "Revoke a token", "Token", errors=(403, 404), scope="admin"),
)

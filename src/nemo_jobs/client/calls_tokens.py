"""Tokens: who may call a service that asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nemo_jobs.client.ask import Ask, Call, Steps, Walk
from nemo_jobs.client.calls import Calls, given
from nemo_jobs.client.connection import quote
from nemo_jobs.client.paging import by_number

if TYPE_CHECKING:
    from nemo_jobs.client.types import NewToken, Token, TokenPage

_TOKENS = "/apis/auth/v2/tokens"


class TokenCalls(Calls):
    """Tokens; an admin of a workspace sees and makes those that hold there alone."""

    @Call
    def create_token(
        self,
        principal: str,
        *,
        grants: Mapping[str, Sequence[str]],
        description: str | None = None,
        expires_in_seconds: int | None = None,
        expires_at: str | None = None,
    ) -> Ask[NewToken]:
        """Make a token; keep `token` of the answer, it is shown once."""
        body = given(
            {
                "principal": principal,
                "grants": {name: list(scopes) for name, scopes in grants.items()},
                "description": description,
                "expires_in_seconds": expires_in_seconds,
                "expires_at": expires_at,
            }
        )
        return Ask("POST", _TOKENS, body=body)

    @Call
    def list_tokens(self, *, page: int | None = None, page_size: int | None = None) -> Ask[TokenPage]:
        """One page of tokens, the newest first."""
        return Ask("GET", _TOKENS, query=[("page", page), ("page_size", page_size)])

    @Walk
    def iter_tokens(self, *, page_size: int = 100) -> Steps[Token]:
        """All tokens."""
        return by_number(_TOKENS, [("page_size", page_size)])

    @Call
    def revoke_token(self, token_id: str) -> Ask[Token]:
        """Revoke a token; within seconds nobody is let in by it."""
        return Ask("DELETE", f"{_TOKENS}/{quote(token_id)}")

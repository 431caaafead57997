"""Models of what the routes of tokens and secrets answer, for the API document only."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.http import documents_gpus, documents_secrets
from nemo_jobs.http.tokens import TokenCreate, TokenListQuery


class Token(BaseModel):
    """A token as it is listed; what it is itself is shown only when it is made."""

    id: str
    principal: str
    description: str | None
    grants: dict[str, list[str]]
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None


class NewToken(Token):
    token: str


class TokenExchange(BaseModel):
    """A form as RFC 8693 has it; other fields of it are ignored."""

    grant_type: Literal["urn:ietf:params:oauth:grant-type:token-exchange"]
    subject_token: str


class ExchangedToken(BaseModel):
    access_token: str
    issued_token_type: str
    token_type: Literal["Bearer"]
    expires_in: int


class TokenPagination(BaseModel):
    total_results: int
    total_pages: int
    page_size: int
    page: int
    current_page_size: int


class TokenPage(BaseModel):
    data: list[Token]
    sort: str | None = None
    pagination: TokenPagination = Field(default=...)


_TOKENS = (Token, NewToken, TokenPage, TokenCreate, TokenListQuery)
MODELS: dict[str, TypeAdapter[Any]] = {
    **{model.__name__: TypeAdapter(model) for model in (*_TOKENS, TokenExchange, ExchangedToken)},
    **documents_secrets.MODELS,
    **documents_gpus.MODELS,
}

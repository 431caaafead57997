"""Models of what the routes of tokens and secrets answer, for the API document only."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.http import documents_secrets
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


MODELS: dict[str, TypeAdapter[Any]] = {
    **{
        model.__name__: TypeAdapter(model)
        for model in (Token, NewToken, TokenPage, TokenCreate, TokenListQuery)
    },
    **documents_secrets.MODELS,
}

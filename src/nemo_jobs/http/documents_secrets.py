"""Models of what the routes of secrets answer, for the API document only."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter

from nemo_jobs.http.secrets import KeyRotate, SecretCreate, SecretListQuery, SecretUpdate


class Secret(BaseModel):
    """A secret without its value. `notes` are sentences for people about a value just set."""

    name: str
    workspace: str
    description: str | None
    created_at: datetime
    updated_at: datetime
    notes: list[str] = Field(default_factory=list)


class SecretPagination(BaseModel):
    total_results: int
    total_pages: int
    page_size: int
    page: int
    current_page_size: int


class SecretPage(BaseModel):
    data: list[Secret]
    sort: str | None = None
    pagination: SecretPagination = Field(default=...)


class SecretValue(BaseModel):
    name: str
    workspace: str
    value: str


class KeyRotation(BaseModel):
    """`left` counts what is still under an older key; `unreadable` names some that stay there."""

    key_id: str
    finished: bool
    changed: int
    left: int
    unreadable: list[str]


MODELS: dict[str, TypeAdapter[Any]] = {
    model.__name__: TypeAdapter(model)
    for model in (
        *(Secret, SecretPage, SecretValue, KeyRotation),
        *(SecretCreate, SecretUpdate, SecretListQuery, KeyRotate),
    )
}

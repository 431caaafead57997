"""Secrets: values go in, and come out for tasks alone."""

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter
from pydantic_core import PydanticCustomError

from nemo_jobs.domain.model import Json, Unavailable
from nemo_jobs.domain.secrets import MASKED_LENGTH, VALUE_LIMIT, Reference, Sealed
from nemo_jobs.domain.spec import Name, Text
from nemo_jobs.http.errors import BadInput
from nemo_jobs.http.identity import caller
from nemo_jobs.http.jobs import check_page_size
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import Reply, dumps, json_reply, no_content, page_reply, time_text
from nemo_jobs.store import secrets as store
from nemo_jobs.vault.secrets import SecretMissing, Secrets

SECRETS = "/apis/secrets/v2/workspaces/{workspace}/secrets"
SECRET = SECRETS + "/{name}"
ROTATE = "/apis/secrets/v2/rotate-key"
#: An answer with a value must not lie in a cache.
_NOT_KEPT = (b"cache-control", b"no-store")
_NOT_MASKED = (
    f"the value has fewer than {MASKED_LENGTH} characters and will not be masked in logs; "
    "it would hide ordinary text"
)


def _check_value(value: str) -> str:
    """What a variable of a process can hold."""
    if "\0" in value:
        raise PydanticCustomError("string_nul", "must not contain a NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise PydanticCustomError(
            "string_unicode", "contains half a surrogate pair, which is no text"
        ) from None
    if size > VALUE_LIMIT:
        raise PydanticCustomError(
            "string_too_long",
            "has {size} bytes; a secret has at most {limit}",
            {"size": size, "limit": VALUE_LIMIT},
        )
    return value


Value = Annotated[
    str, Field(min_length=1, description="never returned but to tasks"), AfterValidator(_check_value)
]


class SecretListQuery(BaseModel):
    page: Annotated[int, Field(gt=0)] = 1
    page_size: Annotated[int, Field(gt=0)] = 10
    sort: Literal["name", "-name", "created_at", "-created_at", "updated_at", "-updated_at"] = "created_at"


class SecretCreate(BaseModel):
    name: Name
    description: Text | None = None
    value: Value


class SecretUpdate(BaseModel):
    """What is left out stays as it is."""

    description: Text | None = None
    value: Value | None = None


class KeyRotate(BaseModel):
    hand_over: bool = Field(
        default=True,
        description="whether other services get the new key through the database, encrypted with the old one",
    )


T = TypeVar("T")
_CREATE = TypeAdapter(SecretCreate)
_UPDATE = TypeAdapter(SecretUpdate)
_ROTATE = TypeAdapter(KeyRotate)


async def list_secrets(api: Api, request: Request) -> Reply:
    query = request.query(SecretListQuery)
    check_page_size(query.page_size)
    found, total = await api.parts.db.read(
        store.list_secrets, request.path["workspace"], query.sort, query.page, query.page_size
    )
    return page_reply(
        [dumps(_shown(secret)) for secret in found],
        page=query.page,
        page_size=query.page_size,
        total=total,
        sort=query.sort,
    )


async def get_secret(api: Api, request: Request) -> Reply:
    path = request.path
    return json_reply(
        _shown(await api.parts.db.read(store.get_secret, path["workspace"], path["name"], point=True))
    )


async def create_secret(api: Api, request: Request) -> Reply:
    who = caller(request).actor
    body = await _hidden(request, _CREATE)
    parts = api.parts
    at = Reference(request.path["workspace"], body.name)

    async def put(sealed: Sealed) -> store.SecretRecord:
        return await parts.db.write(store.create_secret, at, body.description, sealed, parts.clock.now(), who)

    made = await vault(api).storing(("secret", *at), body.value, put)
    return json_reply(_shown(made, body.value), 201)


async def update_secret(api: Api, request: Request) -> Reply:
    who = caller(request).actor
    body = await _hidden(request, _UPDATE)
    parts = api.parts
    at = Reference(request.path["workspace"], request.path["name"])
    change = {"description": body.description} if "description" in body.model_fields_set else {}

    async def put(sealed: Sealed | None) -> store.SecretRecord:
        return await parts.db.write(store.update_secret, at, change, sealed, parts.clock.now(), who)

    value = body.value
    if value is None:
        return json_reply(_shown(await put(None)))
    # Looked at first, so that asking for an unknown name makes no key.
    await parts.db.read(store.get_secret, *at, point=True)
    return json_reply(_shown(await vault(api).storing(("secret", *at), value, put), value))


async def delete_secret(api: Api, request: Request) -> Reply:
    await api.parts.db.write(store.delete_secret, request.path["workspace"], request.path["name"])
    return no_content()


async def access_secret(api: Api, request: Request) -> Reply:
    """The value, for services and for the task that needs it."""
    at = Reference(request.path["workspace"], request.path["name"])
    try:
        value = await vault(api).reveal(at)
    except SecretMissing as error:
        raise Unavailable(str(error)) from error
    answer = {"name": at.name, "workspace": at.workspace, "value": value}
    return json_reply(answer, headers=(_NOT_KEPT,))


async def rotate_key(api: Api, request: Request) -> Reply:
    """Encrypt all secrets with a new key. An answer that is not `finished` asks for the same
    request again; what has been done is not done twice."""
    raw = await request.body()
    body = await request.validated(raw, _ROTATE) if raw.strip() else KeyRotate()
    done = await vault(api).rotate(hand_over=body.hand_over)
    return json_reply(
        {
            "key_id": done.key_id,
            "finished": done.finished,
            "changed": done.changed,
            "left": done.left,
            "unreadable": done.unreadable,
        }
    )


def vault(api: Api) -> Secrets:
    """The vault of this service. Raises Unavailable where it has none."""
    if api.parts.secrets is None:
        raise Unavailable("this service keeps no secrets")
    return api.parts.secrets


async def _hidden(request: Request, adapter: TypeAdapter[T]) -> T:
    """The body, of which no error shows anything."""
    try:
        return await request.parsed(adapter)
    except BadInput as error:
        raise BadInput(error.error, *error.where, shown=False) from None


def _shown(secret: store.SecretRecord, value: str | None = None) -> Json:
    """A secret without its value; with a remark on a value that was just set."""
    shown: Json = {
        "name": secret.name,
        "workspace": secret.workspace,
        "description": secret.description,
        "created_at": time_text(secret.created_at),
        "updated_at": time_text(secret.updated_at),
    }
    if value is not None and len(value) < MASKED_LENGTH:
        shown["notes"] = [_NOT_MASKED]
    return shown


_MISSING = (404, 422)
OPERATIONS = (
    Operation(
        "GET",
        SECRETS,
        list_secrets,
        "List secrets, without their values",
        "SecretPage",
        query="SecretListQuery",
        errors=_MISSING,
    ),
    Operation(
        "POST",
        SECRETS,
        create_secret,
        "Store a secret",
        "Secret",
        201,
        body="SecretCreate",
        errors=(404, 409, 413, 422, 503),
    ),
    Operation("GET", SECRET, get_secret, "Get a secret, without its value", "Secret", errors=(404,)),
    Operation(
        "PATCH",
        SECRET,
        update_secret,
        "Change a secret's value or description",
        "Secret",
        body="SecretUpdate",
        errors=(404, 409, 413, 422, 503),
    ),
    Operation("DELETE", SECRET, delete_secret, "Delete a secret", None, 204, errors=(404,)),
    Operation(
        "GET",
        SECRET + "/access",
        access_secret,
        "Get a secret with its value: for services and tasks",
        "SecretValue",
        errors=(404, 503),
        scope="service",
    ),
    Operation(
        "POST",
        ROTATE,
        rotate_key,
        "Encrypt all secrets with a new key, or go on doing so",
        "KeyRotation",
        body="KeyRotate",
        errors=(409, 413, 422, 503),
    ),
)

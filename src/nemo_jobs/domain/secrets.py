"""Secrets as words that store, vault, engine and HTTP share: references, ciphertext, key states."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nemo_jobs.domain.model import Conflict, Json

#: Values with fewer characters are not masked in logs: they would hide ordinary text.
MASKED_LENGTH = 4
#: The largest value in bytes of UTF-8; a single variable of a process holds at most 128 KiB.
VALUE_LIMIT = 64 << 10


class Reference(NamedTuple):
    """Which secret is meant."""

    workspace: str
    name: str

    def __str__(self) -> str:
        return f"{self.workspace}/{self.name}"


class Sealed(NamedTuple):
    """Ciphertext and the id of the key that opens it."""

    value: str
    key_id: str


class SealedRow(NamedTuple):
    """A stored ciphertext with what it is bound to: `where` is part of its encryption."""

    where: tuple[str, ...]
    sealed: Sealed


class KeyState(NamedTuple):
    """What the database knows of keys: nothing that opens anything without a key.

    `key` is the id of the key that encrypts now, `old` the one before while a rotation is under
    way. `wrapped` is the present key encrypted with the key `by`, for services that have not got
    it yet; it is dropped after `until` (microseconds since 1970 UTC).
    """

    key: str
    old: str | None = None
    wrapped: str | None = None
    by: str | None = None
    until: int | None = None


class Given(NamedTuple):
    """What the work of a step may know: the secrets that its variables name, and what each of its
    runs that have not ended was given, encrypted."""

    wanted: dict[str, Reference]
    runs: tuple[tuple[str, Sealed], ...]


class KeyChanged(Conflict):
    """The key that was used is not the one that encrypts now: seal again with the present one."""

    def __init__(self) -> None:
        super().__init__("the key of secrets was changed meanwhile; try again")


def reference(text: str, workspace: str) -> Reference:
    """`secret` of `workspace`, or `workspace/secret`."""
    head, slash, tail = text.partition("/")
    return Reference(head, tail) if slash else Reference(workspace, head)


def references(step_spec: Mapping[str, Any], workspace: str) -> dict[str, Reference]:
    """Variable to secret, for the variables of a step that come from secrets."""
    environment: list[Json] | None = step_spec.get("environment")
    if not environment:
        return {}
    return {
        variable["name"]: reference(source["name"], workspace)
        for variable in environment
        if (source := variable.get("from_secret")) is not None
    }

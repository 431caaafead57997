"""Opaque tokens: made, found by their hash, listed, revoked. The token itself is never stored."""

import hashlib
import json
import secrets
import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.access import EVERYWHERE, Grants, Scope, check_principal, grants_of, plain
from nemo_jobs.domain.model import Conflict, Invalid, NotFound
from nemo_jobs.domain.states import TERMINAL
from nemo_jobs.store.driver import off_loop
from nemo_jobs.store.records import text
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import attempt, job, workspace
from nemo_jobs.store.tables_access import token

#: What tells a token of ours from others, and a task's from a person's.
PREFIX, TASK_PREFIX = "nemo_", "nemo_task_"
#: Tokens of people and programs that exist at once, at most; the lists are read as a whole.
MAX_TOKENS = 10_000
#: How long revoked and expired tokens are still listed, in microseconds.
KEPT = 30 * 86_400_000_000
TOKEN_ID = "token"  # noqa: S105 - the prefix of ids
_DIGITS = 48


class TokenRecord(NamedTuple):
    """A token as it is listed. `grants` is JSON text; times in microseconds since 1970 UTC."""

    id: str
    principal: str
    description: str | None
    grants: str
    created_at: int
    created_by: str | None
    expires_at: int | None
    revoked_at: int | None


class TaskOf(NamedTuple):
    """The live attempt whose task carries a token."""

    attempt_id: str
    job_id: str
    job: str
    workspace: str
    fileset: str
    output_location: str | None


class Found(NamedTuple):
    """A token that somebody showed. `task` is None for one of a person, and for one whose
    attempt has ended or is gone; `attempt_id` tells the two apart."""

    record: TokenRecord
    attempt_id: str | None
    task: TaskOf | None


_COLUMNS = [
    token.c[name]
    for name in ("id", "principal", "description", "grants", "created_at", "created_by", "expires_at")
] + [token.c.revoked_at]
_FIND = Statement(
    sa.select(
        *_COLUMNS,
        token.c.attempt_id,
        job.c.id,
        job.c.name,
        job.c.workspace,
        job.c.fileset,
        job.c.output_location,
        job.c.state,
    )
    .select_from(
        token.outerjoin(attempt, attempt.c.id == token.c.attempt_id).outerjoin(
            # An attempt that is no longer its job's current one has ended.
            job,
            (job.c.id == attempt.c.job_id) & (job.c.attempt_id == attempt.c.id),
        )
    )
    .where(token.c.hash == sa.bindparam("the_hash"))
)
_INSERT = Statement(
    sa.insert(token).inline().values({column.name: sa.bindparam(column.name) for column in token.c})
)
_OF_PEOPLE = token.c.attempt_id.is_(None)
_BY_ID = Statement(sa.select(*_COLUMNS).where(token.c.id == sa.bindparam("the_id"), _OF_PEOPLE))
_ALL = Statement(sa.select(*_COLUMNS).where(_OF_PEOPLE).order_by(token.c.created_at.desc(), token.c.id))
_COUNT = Statement(sa.select(sa.func.count()).select_from(token).where(_OF_PEOPLE))
_REVOKE = Statement(
    sa.update(token)
    .where(token.c.id == sa.bindparam("the_id"), token.c.revoked_at.is_(None))
    .values(revoked_at=sa.bindparam("now"))
)
_SPEC = Statement(
    sa.select(sa.func.coalesce(attempt.c.platform_spec, job.c.platform_spec))
    .select_from(attempt.join(job, job.c.id == attempt.c.job_id))
    .where(attempt.c.id == sa.bindparam("the_attempt"))
)
#: Held, so that it can't be deleted and made anew under another's hands meanwhile.
_HAS_WORKSPACE = Statement(
    sa.select(workspace.c.name).where(workspace.c.name == sa.bindparam("the_name")).with_for_update(read=True)
)


def new_token(prefix: str = PREFIX) -> str:
    """A new secret of 192 random bits; its last 8 digits are a checksum, so that what is no token
    of ours, or a mistyped one, is refused without a look at the database."""
    digits = secrets.token_hex(_DIGITS // 2)
    return f"{prefix}{digits}{_check(prefix + digits)}"


def well_formed(shown: str) -> bool:
    """Whether this can be a token that `new_token` made."""
    head, check = shown[:-8], shown[-8:]
    prefix = TASK_PREFIX if shown.startswith(TASK_PREFIX) else PREFIX
    return len(shown) == len(prefix) + _DIGITS + 8 and shown.isascii() and _check(head) == check


def hash_of(shown: str) -> str:
    """Under which a token is stored. It is found by this alone, so how long a look-up takes tells
    nothing about a token; and what has 192 random bits needs no slow hash."""
    return hashlib.sha256(shown.encode()).hexdigest()


def find(tx: Tx, hashed: str) -> Found | None:
    """The token with this hash, whatever became of it. One look-up by key."""
    row = tx.one(_FIND, {"the_hash": hashed})
    if row is None:
        return None
    record, attempt_id, task = TokenRecord(*row[:8]), row[8], None
    if attempt_id is not None and row[9] is not None and row[14] not in TERMINAL:
        task = TaskOf(attempt_id, *row[9:14])
    return Found(record, attempt_id, task)


@off_loop
def add(
    tx: Tx,
    hashed: str,
    principal: str,
    given: Mapping[str, Iterable[str]],
    *,
    description: str | None,
    expires_at: int | None,
    now: int,
    actor: str,
) -> TokenRecord:
    """Store a token under its hash. Raises Invalid for a name, a workspace or an expiry that can't
    be, and Conflict when there are too many."""
    check_principal(principal, grants_of(given))
    if expires_at is not None and expires_at <= now:
        raise Invalid("the token would have expired before it is made; choose a later expires_at")
    for name in given:
        if name != EVERYWHERE and tx.one(_HAS_WORKSPACE, {"the_name": name}) is None:
            raise Invalid(f"grants: no workspace {name!r}; create it first")
    row = tx.one(_COUNT)
    if row and row[0] >= MAX_TOKENS:
        raise Conflict(f"there are {MAX_TOKENS} tokens already; revoked ones go after 30 days")
    stored = json.dumps(plain(given), separators=(",", ":"))
    note = description and text(description)
    record = TokenRecord(names.new_id(TOKEN_ID, now), principal, note, stored, now, actor, expires_at, None)
    tx.count(_INSERT, {**record._asdict(), "hash": hashed, "attempt_id": None})
    return record


def add_for_attempt(tx: Tx, hashed: str, attempt_id: str, principal: str, now: int) -> None:
    """Store the token of an attempt's task; it holds as long as the attempt lives."""
    record = TokenRecord(names.new_id(TOKEN_ID, now), principal, None, "{}", now, None, None, None)
    tx.count(_INSERT, {**record._asdict(), "hash": hashed, "attempt_id": attempt_id})


@off_loop
def list_tokens(
    tx: Tx, within: frozenset[str] | None, page: int, page_size: int
) -> tuple[list[TokenRecord], int]:
    """One page of the tokens that hold nowhere but in the workspaces `within` (None: all tokens),
    the newest first, and how many those are. Tokens of tasks are not listed."""
    found = [record for row in tx.run(_ALL) if covers(within, (record := TokenRecord(*row)).grants)]
    skip = (page - 1) * page_size
    return found[skip : skip + page_size], len(found)


def revoke(tx: Tx, token_id: str, within: frozenset[str] | None, now: int) -> TokenRecord:
    """Revoke a token that holds nowhere but `within`; again is fine. Raises NotFound."""
    row = tx.one(_BY_ID, {"the_id": token_id})
    record = TokenRecord(*row) if row else None
    if record is None or not covers(within, record.grants):
        raise NotFound(f"no token {token_id[:80]!r}")
    if record.revoked_at is None:
        tx.count(_REVOKE, {"the_id": token_id, "now": now})
        tx.wake("token", token_id)
        record = record._replace(revoked_at=now)
    return record


def covers(within: frozenset[str] | None, stored: str) -> bool:
    """Whether stored grants hold nowhere else."""
    return within is None or within.issuperset(json.loads(stored))


def count(tx: Tx) -> int:
    """How many tokens of people and programs there are."""
    row = tx.one(_COUNT)
    return int(row[0]) if row else 0


def forget_workspace(tx: Tx, name: str) -> None:
    """Take a workspace that goes out of all grants: a later one of that name is another's. Tokens
    that held nowhere else go with it."""
    rows = tx.run(
        sa.select(token.c.id, token.c.grants).where(
            _OF_PEOPLE, token.c.grants.like(sa.literal(f'%"{_escaped(name)}"%'), escape="!")
        )
    )
    for token_id, stored in rows:
        before = json.loads(stored)
        left = {key: scopes for key, scopes in before.items() if key != name}
        if left == before:
            continue
        if left:
            grants = json.dumps(left, separators=(",", ":"))
            tx.count(sa.update(token).where(token.c.id == token_id).values(grants=grants))
        else:
            tx.count(sa.delete(token).where(token.c.id == token_id))
        tx.wake("token", token_id)


def secrets_of_attempt(tx: Tx, attempt_id: str, home: str) -> frozenset[tuple[str, str]]:
    """(workspace, name) of each secret that the attempt's spec names; `home` is its workspace."""
    row = tx.one(_SPEC, {"the_attempt": attempt_id})
    found = set()
    for step in json.loads(row[0])["steps"] if row else ():
        for variable in step.get("environment") or ():
            if variable.get("from_secret"):
                place, slash, name = variable["from_secret"]["name"].partition("/")
                found.add((place, name) if slash else (home, place))
    return frozenset(found)


@off_loop
def purge(tx: Tx, now: int) -> int:
    """Remove tokens of attempts that have ended, and those revoked or expired long ago."""
    live = (
        sa.select(job.c.attempt_id)
        .where(sa.text("job.state NOT IN ('completed', 'error', 'cancelled')"))
        .scalar_subquery()
    )
    ended = token.c.attempt_id.is_not(None) & token.c.attempt_id.not_in(live)
    old = (token.c.revoked_at < now - KEPT) | (token.c.expires_at < now - KEPT)
    return tx.count(sa.delete(token).where(ended | old))


def grants_in(record: TokenRecord) -> Grants:
    """What a stored token allows."""
    stored = json.loads(record.grants)
    return grants_of(stored) if stored else Grants({}, frozenset())


def first_grants() -> dict[str, list[str]]:
    """What the first token of an installation gets unless told otherwise."""
    return {EVERYWHERE: [Scope.ADMIN.value]}


def _check(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _escaped(name: str) -> str:
    return name.replace("!", "!!").replace("%", "!%").replace("_", "!_")

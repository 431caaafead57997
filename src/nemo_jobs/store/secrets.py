"""Secrets: names and ciphertext, never a value."""

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from nemo_jobs.domain.model import Conflict, NotFound
from nemo_jobs.domain.secrets import Given, KeyChanged, Reference, Sealed, references
from nemo_jobs.store.records import load, text
from nemo_jobs.store.secret_keys import key_state
from nemo_jobs.store.sql import Statement, Tx, insert_into
from nemo_jobs.store.tables import step, workspace
from nemo_jobs.store.tables_access import secret
from nemo_jobs.store.tables_secrets import run_secret


@dataclass(frozen=True, slots=True)
class SecretRecord:
    workspace: str
    name: str
    description: str | None
    created_at: int
    created_by: str | None
    updated_at: int
    updated_by: str | None


_COLUMNS = (
    secret.c.workspace,
    secret.c.name,
    secret.c.description,
    secret.c.created_at,
    secret.c.created_by,
    secret.c.updated_at,
    secret.c.updated_by,
)
_IN = sa.bindparam("in_workspace", type_=sa.Text)
_NAMED = sa.bindparam("the_name", type_=sa.Text)
_THIS = (secret.c.workspace == _IN, secret.c.name == _NAMED)
_BY_NAME = Statement(sa.select(*_COLUMNS).where(*_THIS))
_VALUE = Statement(sa.select(secret.c.value, secret.c.key_id).where(*_THIS))
_WORKSPACE = sa.select(workspace.c.name).where(workspace.c.name == _NAMED)
_HAS_WORKSPACE = Statement(_WORKSPACE)
# The workspace must not go away between this look and the insert.
_KEEP_WORKSPACE = Statement(_WORKSPACE.with_for_update(read=True, key_share=True))
_INSERT = Statement(
    lambda dialect: insert_into(secret, dialect).on_conflict_do_nothing(index_elements=["workspace", "name"])
)
_DELETE = Statement(sa.delete(secret).where(*_THIS))
_INSERT_RUN = Statement(
    lambda dialect: insert_into(run_secret, dialect).on_conflict_do_nothing(index_elements=["run"])
)
_RUN = Statement(
    sa.select(run_secret.c.value, run_secret.c.key_id).where(run_secret.c.run == sa.bindparam("the_run"))
)
_GIVEN = Statement(
    sa.select(step.c.spec, run_secret.c.run, run_secret.c.value, run_secret.c.key_id)
    .select_from(step.outerjoin(run_secret, run_secret.c.step_id == step.c.id))
    .where(
        step.c.attempt_id == sa.bindparam("the_attempt"),
        step.c.name == _NAMED,
        step.c.workspace == _IN,
    )
    .order_by(run_secret.c.run)
)
_FORGET = Statement(sa.delete(run_secret).where(run_secret.c.step_id == sa.bindparam("the_step")))
SORTS = ("name", "-name", "created_at", "-created_at", "updated_at", "-updated_at")
_ORDERS = {
    name: (sa.desc if name.startswith("-") else sa.asc)(secret.c[name.removeprefix("-")]) for name in SORTS
}


def list_secrets(
    tx: Tx, workspace_name: str, sort: str = "-created_at", page: int = 1, page_size: int = 10
) -> tuple[list[SecretRecord], int]:
    """One page and how many there are in all. Raises NotFound for an unknown workspace."""
    _check_workspace(tx, _HAS_WORKSPACE, workspace_name)
    inside = secret.c.workspace == workspace_name
    row = tx.one(sa.select(sa.func.count()).select_from(secret).where(inside))
    total, skip = int(row[0]) if row else 0, (page - 1) * page_size
    if skip >= total:
        return [], total
    query = sa.select(*_COLUMNS).where(inside).order_by(_ORDERS[sort], secret.c.name)
    return [SecretRecord(*found) for found in tx.run(query.limit(page_size).offset(skip))], total


def get_secret(tx: Tx, workspace_name: str, name: str) -> SecretRecord:
    row = tx.one(_BY_NAME, {"in_workspace": workspace_name, "the_name": name})
    if row is None:
        raise _missing(workspace_name, name)
    return SecretRecord(*row)


def sealed_secret(tx: Tx, workspace_name: str, name: str) -> Sealed:
    """The ciphertext of one secret. Raises NotFound."""
    row = tx.one(_VALUE, {"in_workspace": workspace_name, "the_name": name})
    if row is None:
        raise _missing(workspace_name, name)
    return Sealed(*row)


def sealed_secrets(tx: Tx, wanted: Iterable[Reference]) -> dict[Reference, Sealed]:
    """The ciphertexts of those that exist."""
    rows = {ref: tx.one(_VALUE, {"in_workspace": ref.workspace, "the_name": ref.name}) for ref in set(wanted)}
    return {ref: Sealed(*row) for ref, row in rows.items() if row is not None}


def missing_secrets(tx: Tx, wanted: Iterable[Reference]) -> set[Reference]:
    """Those that do not exist."""
    wanted = set(wanted)
    return wanted - set(sealed_secrets(tx, wanted))


def create_secret(
    tx: Tx, at: Reference, description: str | None, sealed: Sealed, now: int, actor: str
) -> SecretRecord:
    """Store a new secret. Raises NotFound for the workspace, Conflict, KeyChanged."""
    _check_workspace(tx, _KEEP_WORKSPACE, at.workspace)
    _check_key(tx, sealed)
    made = {
        "workspace": at.workspace,
        "name": at.name,
        "description": description and text(description),
        "value": sealed.value,
        "key_id": sealed.key_id,
        "created_at": now,
        "created_by": actor,
        "updated_at": now,
        "updated_by": actor,
    }
    if not tx.count(_INSERT, made):
        raise Conflict(
            f"secret {at.name!r} exists already in workspace {at.workspace!r}; "
            "change its value, or choose another name"
        )
    return get_secret(tx, at.workspace, at.name)


def update_secret(
    tx: Tx, at: Reference, change: dict[str, str | None], sealed: Sealed | None, now: int, actor: str
) -> SecretRecord:
    """Change the description, if `change` holds it, and the value, if one is given."""
    before = get_secret(tx, at.workspace, at.name)
    values: dict[str, str | int | None] = {}
    if "description" in change:
        given = change["description"]
        values["description"] = given and text(given)
    if sealed is not None:
        _check_key(tx, sealed)
        values |= sealed._asdict()
    if not values:
        return before
    values |= {"updated_at": max(now, before.updated_at), "updated_by": actor}
    this = (secret.c.workspace == at.workspace, secret.c.name == at.name)
    tx.count(sa.update(secret).where(*this).values(**values))
    return get_secret(tx, at.workspace, at.name)


def delete_secret(tx: Tx, workspace_name: str, name: str) -> None:
    if not tx.count(_DELETE, {"in_workspace": workspace_name, "the_name": name}):
        raise _missing(workspace_name, name)


def keep_run(tx: Tx, run: str, step_id: str, sealed: Sealed) -> Sealed:
    """Keep what a run is given, and give what it was given: the same for every start of it."""
    _check_key(tx, sealed)
    row = {"run": run, "step_id": step_id, "value": sealed.value, "key_id": sealed.key_id}
    tx.count(_INSERT_RUN, row)
    return run_values(tx, run) or sealed


def run_values(tx: Tx, run: str) -> Sealed | None:
    """What a run was given; None when nothing is known of it."""
    row = tx.one(_RUN, {"the_run": run})
    return None if row is None else Sealed(*row)


def given_to(tx: Tx, workspace_name: str, attempt_id: str, step_name: str) -> Given:
    """What the work of a step may know; nothing for a step that does not exist."""
    named = {"in_workspace": workspace_name, "the_attempt": attempt_id, "the_name": step_name}
    if any("\0" in value for value in named.values()):
        return Given({}, ())
    rows = tx.run(_GIVEN, named)
    wanted = references(load(rows[0][0]), workspace_name) if rows else {}
    return Given(wanted, tuple((row[1], Sealed(row[2], row[3])) for row in rows if row[1] is not None))


def forget_runs(tx: Tx, step_id: str) -> None:
    """The runs of a step have ended."""
    tx.count(_FORGET, {"the_step": step_id})


def _check_workspace(tx: Tx, look: Statement, name: str) -> None:
    if tx.one(look, {"the_name": name}) is None:
        raise NotFound(f"no workspace {name!r}; create it first")


def _check_key(tx: Tx, sealed: Sealed) -> None:
    state = key_state(tx, share=True)
    if state is None or state.key != sealed.key_id:
        raise KeyChanged


def _missing(workspace_name: str, name: str) -> NotFound:
    return NotFound(f"no secret {name!r} in workspace {workspace_name!r}")

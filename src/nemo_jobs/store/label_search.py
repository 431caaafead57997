"""Lists of jobs that must have a label: through the labels' index, where that is the shorter way.

The index of `job_label` holds a label's jobs in the order of their creation. Whether to begin
there or at the jobs depends on how many of each there are, which a database without statistics
does not know; both are counted first, in indexes alone and no further than it matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nemo_jobs.domain.filters import ORDER, And, Compare, Node, Op
from nemo_jobs.store.filters import column_meets, compile_filter
from nemo_jobs.store.sql import Dialect, InOrder, Tx
from nemo_jobs.store.tables import job, workspace
from nemo_jobs.store.tables_access import job_label

Condition = sa.ColumnElement[bool]

#: So few labels are looked through without asking for a shorter way.
FEW = 500
#: Labels are counted up to here.
MANY = 20_000

_found = job_label.alias("found")
#: The copies are told, too: with them the indexes of jobs answer for states and sources, without a
#: look at the jobs themselves, which are large. Adding 0 keeps SQLite from turning a bound on one
#: date into one on the other, after which it would no longer take those indexes.
_THEIRS = sa.and_(
    job.c.id == _found.c.job_id,
    job.c.workspace == _found.c.workspace,
    job.c.created_at == _found.c.job_created_at + sa.literal_column("0"),
)


@dataclass(frozen=True, slots=True)
class LabelSearch:
    """What to select from instead of the job table, and with which conditions. `created` and `id`
    are the index's own copies, in whose order it lies."""

    source: sa.FromClause
    where: tuple[Condition, ...]
    counted: sa.FromClause  # what a count needs
    created: sa.ColumnElement[Any]
    id: sa.ColumnElement[Any]


def search_by_label(tx: Tx, where: Node | None, in_workspace: str | None) -> LabelSearch | None:
    """The way through the index of labels; None where the one through the jobs is shorter."""
    terms = where.nodes if isinstance(where, And) else (where,) if where is not None else ()
    plain = [term for term in terms if isinstance(term, Compare)]
    labels = [term for term in plain if _is_label(term)]
    if not labels or any(_is_key(term) for term in plain):
        return None
    label = min(labels, key=lambda term: term.op is Op.IN)  # rather one value than several
    dates = [term for term in plain if _is_date(term)]
    (key,) = label.path
    driving = (
        _found.c.workspace == in_workspace
        if in_workspace is not None
        else _found.c.workspace.in_(sa.select(workspace.c.name)),
        _found.c.key == key,
        column_meets(_found.c.value, label, tx.dialect),
        *(column_meets(_found.c.job_created_at, term, tx.dialect) for term in dates),
    )
    rivals = [term for term in plain if _has_index(term)]
    if rivals and not _is_shorter(tx, driving, _of_jobs([*rivals[:1], *dates], in_workspace, tx.dialect)):
        return None
    rest = [term for term in terms if term is not label and term not in dates]
    joined = InOrder(_found, job, _THEIRS)
    return LabelSearch(
        source=joined,
        where=(*driving, *(compile_filter(term, tx.dialect) for term in rest)),
        counted=joined if rest else _found,
        created=_found.c.job_created_at,
        id=_found.c.job_id,
    )


def _is_label(term: Compare) -> bool:
    """Whether it asks for a label that has one of some values."""
    if term.field != "labels" or term.op not in (Op.EQ, Op.IN):
        return False
    values = term.value if isinstance(term.value, tuple) else (term.value,)
    return None not in values


def _is_date(term: Compare) -> bool:
    return term.field == "created_at" and term.op in (Op.EQ, *ORDER)


def _is_key(term: Compare) -> bool:
    """Whether a term leads to a job or a few at once."""
    return term.field in ("id", "name") and term.op in (Op.EQ, Op.IN)


def _has_index(term: Compare) -> bool:
    return term.field in ("status", "source") and term.op in (Op.EQ, Op.IN)


def _of_jobs(terms: Sequence[Node], in_workspace: str | None, dialect: Dialect) -> tuple[Condition, ...]:
    narrow = (job.c.workspace == in_workspace,) if in_workspace is not None else ()
    return (*narrow, *(compile_filter(term, dialect) for term in terms))


def _is_shorter(tx: Tx, labels: Sequence[Condition], jobs: Sequence[Condition]) -> bool:
    """Whether there are fewer labels to look through than jobs: a look from one at the other takes
    the same time, since indexes answer in both directions."""
    cost = _count(tx, _found, labels, MANY)
    return cost <= FEW or cost < _count(tx, job, jobs, cost + 1)


def _count(tx: Tx, table: sa.FromClause, where: Sequence[Condition], most: int) -> int:
    one: sa.Select[Any] = sa.select(sa.literal_column("1").label("one"))
    some = one.select_from(table).where(*where).limit(most).subquery("some")
    row = tx.one(sa.select(sa.func.count()).select_from(some))
    return int(row[0]) if row else 0

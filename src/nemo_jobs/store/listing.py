"""Lists of jobs and steps: filter, sort, page, and exact totals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import sqlalchemy as sa

from nemo_jobs.domain.filters import ORDER, Compare, Node, Op
from nemo_jobs.domain.model import JobRecord, NotFound, StepRecord
from nemo_jobs.domain.states import TERMINAL, State
from nemo_jobs.store.filters import compile_filter
from nemo_jobs.store.job_rows import SIZE, rows_of, within
from nemo_jobs.store.label_search import LabelSearch, search_by_label
from nemo_jobs.store.records import JOB_COLUMNS, step_record, steps_joined
from nemo_jobs.store.sql import Statement, Tx
from nemo_jobs.store.tables import job, job_count, step, workspace


@dataclass(frozen=True, slots=True)
class JobQuery:
    """One page of jobs; `workspace` None means all of them."""

    workspace: str | None
    where: Node | None = None
    sort: str = "-created_at"  # created_at, updated_at, source; with - descending
    page: int = 1
    page_size: int = 10


@dataclass(frozen=True, slots=True)
class StepQuery:
    """One page of steps; None does not narrow. `after` is (created_at, id) of the last step of
    the page before: a walk by it misses nothing, whatever changes meanwhile."""

    workspace: str | None = None
    job: str | None = None  # name, else id
    states: tuple[State, ...] | None = None
    source: str | None = None
    cleanup_pending: bool | None = None
    sort: str = "created_at"  # created_at, updated_at; with - descending
    page: int = 1
    page_size: int = 25
    attempt_id: str | None = None  # of any of the job's attempts; None: of current ones only
    after: tuple[int, str] | None = None
    within: frozenset[str] | None = None  # workspaces


_HAS_WORKSPACE = Statement(sa.select(workspace.c.name).where(workspace.c.name == sa.bindparam("the_name")))
_IN_WORKSPACE = job.c.workspace == sa.bindparam("in_workspace")
_N, _SKIP = sa.bindparam("n", type_=sa.Integer), sa.bindparam("skip", type_=sa.Integer)
_SORTS: dict[str, tuple[sa.Column[Any], ...]] = {
    "created_at": (job.c.created_at, job.c.id),
    "updated_at": (job.c.updated_at, job.c.id),
    "source": (job.c.source, job.c.created_at, job.c.id),
}


class JobPage(NamedTuple):
    """The first jobs of a page, how many match in all, and the ids of the page's other jobs, which
    were too large to come along: `job_rows.rows_of` fetches them."""

    jobs: list[JobRecord]
    total: int
    rest: tuple[str, ...] = ()


def _sorted(
    sort: str,
    where: tuple[sa.ColumnElement[bool], ...],
    what: Sequence[sa.ColumnElement[Any]] = (job.c.id,),
    labelled: LabelSearch | None = None,
) -> sa.Select[Any]:
    columns: tuple[sa.ColumnElement[Any], ...] = _SORTS[sort.removeprefix("-")]
    chosen = sa.select(*what).where(*where)
    if labelled is not None:
        chosen = chosen.select_from(labelled.source)
        if columns == _SORTS["created_at"]:
            columns = (labelled.created, labelled.id)
    order = [column.desc() for column in columns] if sort.startswith("-") else columns
    return chosen.order_by(*order).limit(_N).offset(_SKIP)


def _plain(*what: sa.ColumnElement[Any]) -> dict[tuple[bool, str], Statement]:
    """The lists without a filter, by (in one workspace, sort)."""
    return {
        (narrow, sign + name): Statement(_sorted(sign + name, (_IN_WORKSPACE,) if narrow else (), what))
        for narrow in (True, False)
        for sign in ("", "-")
        for name in _SORTS
    }


_PLAIN_ROWS, _PLAIN_IDS, _PLAIN_SIZES = _plain(*JOB_COLUMNS), _plain(job.c.id), _plain(job.c.id, SIZE)
_TOTAL = sa.select(sa.cast(sa.func.coalesce(sa.func.sum(job_count.c.n), 0), sa.BigInteger))
_TOTAL_HERE = _TOTAL.where(job_count.c.workspace == sa.bindparam("in_workspace"))
_TOTALS = {True: Statement(_TOTAL_HERE), False: Statement(_TOTAL)}


def _ends(*where: sa.ColumnElement[bool]) -> Statement:
    """The first and the last date, each from an end of the index."""
    ends = (sa.func.min(job.c.created_at), sa.func.max(job.c.created_at))
    return Statement(sa.select(*(sa.select(end).where(*where).scalar_subquery() for end in ends)))


_ENDS = {True: _ends(_IN_WORKSPACE), False: _ends()}


def list_jobs(tx: Tx, query: JobQuery) -> JobPage:
    """A page. Raises NotFound for an unknown workspace."""
    if query.workspace is not None and tx.one(_HAS_WORKSPACE, {"the_name": query.workspace}) is None:
        raise NotFound(f"no workspace {query.workspace!r}")
    narrow = query.workspace is not None
    where: tuple[sa.ColumnElement[bool], ...] = (_IN_WORKSPACE,) if narrow else ()
    labelled = None
    if query.where is not None:
        labelled = search_by_label(tx, query.where, query.workspace)
        where = labelled.where if labelled else (*where, compile_filter(query.where, tx.dialect))
    params: dict[str, Any] = {"in_workspace": query.workspace}
    total = _total(tx, query, where, params, labelled.counted if labelled else job)
    skip = (query.page - 1) * query.page_size
    size = min(query.page_size, total - skip)
    if size <= 0:
        return JobPage([], total)
    sort, from_end = query.sort, total - skip - size
    if from_end < skip:
        # The last pages are read from the end: nobody waits for the database to skip so many rows.
        sort, skip = (sort[1:] if sort.startswith("-") else f"-{sort}"), from_end
    params |= {"n": size, "skip": skip}
    if query.where is None and tx.dialect == "sqlite":
        each = tx.each(_PLAIN_ROWS[narrow, sort], params)
        found, all_of_them = within(JobRecord(*row) for row in each)
        if all_of_them:
            return JobPage(found if sort == query.sort else found[::-1], total)
    # Ids first: sorting and skipping whole rows would take as much memory as they are large.
    sized = query.where is None and tx.dialect == "postgresql"
    plain = _PLAIN_SIZES if sized else _PLAIN_IDS
    of_ids = plain[narrow, sort] if query.where is None else _sorted(sort, where, labelled=labelled)
    rows = tx.run(of_ids, params)
    ids = [row[0] for row in rows]
    jobs, rest = rows_of(tx, ids if sort == query.sort else ids[::-1], dict(rows) if sized else None)
    return JobPage(jobs, total, rest)


def _total(
    tx: Tx, query: JobQuery, where: tuple[Any, ...], params: dict[str, Any], source: sa.FromClause
) -> int:
    states = _only_states(query.where)
    if query.where is None:
        row = tx.one(_TOTALS[query.workspace is not None], params)
    elif states is not None:
        counted = _TOTAL_HERE if query.workspace is not None else _TOTAL
        row = tx.one(counted.where(job_count.c.state.in_(states)), params)
    elif _is_early_or_late(query.where) and _most_meet(tx, query.where, query, params):
        row = tx.one(_TOTALS[query.workspace is not None], params)
        others = sa.select(sa.func.count()).select_from(job)
        narrow = () if query.workspace is None else (_IN_WORKSPACE,)
        less = tx.one(others.where(*narrow, sa.not_(compile_filter(query.where, tx.dialect))), params)
        return max(int(row[0]) - int(less[0]), 0) if row and less else 0
    else:
        row = tx.one(sa.select(sa.func.count()).select_from(source).where(*where), params)
    return int(row[0]) if row else 0


def _is_early_or_late(where: Node) -> TypeGuard[Compare]:
    """Whether a filter asks for the jobs on one side of a date, and for nothing else."""
    return (
        isinstance(where, Compare)
        and (where.field, where.path) == ("created_at", ())
        and where.op in ORDER
        and isinstance(where.value, int)
    )


def _most_meet(tx: Tx, where: Compare, query: JobQuery, params: dict[str, Any]) -> bool:
    """Whether more jobs lie on this side of the date than on the other, as far as the first and the
    last tell. The total of all is known, so that it is enough to count the fewer."""
    ends = tx.one(_ENDS[query.workspace is not None], params)
    if ends is None or ends[0] is None or not isinstance(where.value, int):
        return False
    before: int = where.value - ends[0]
    after: int = ends[1] - where.value
    return before > after if where.op in (Op.LT, Op.LTE) else after > before


def _only_states(where: Node | None) -> list[str] | None:
    """The states that a filter asks for when it asks for nothing else."""
    if not isinstance(where, Compare) or where.field != "status" or where.op not in (Op.EQ, Op.IN):
        return None
    values = where.value if isinstance(where.value, tuple) else (where.value,)
    return [value for value in values if isinstance(value, str)]


def list_steps(tx: Tx, query: StepQuery) -> tuple[list[StepRecord], int]:
    """The steps on the page and how many match in all."""
    where = _step_conditions(query)
    joined = steps_joined().where(*where)
    counted = joined.with_only_columns(sa.func.count(), maintain_column_froms=True)
    row = tx.one(counted)
    total = int(row[0]) if row else 0
    skip = (query.page - 1) * query.page_size
    column, down = step.c[query.sort.removeprefix("-")], query.sort.startswith("-")
    order = (column.desc(), step.c.id.desc()) if down else (column, step.c.id)
    chosen = joined.order_by(*order).limit(query.page_size)
    if query.after is not None:
        place = sa.tuple_(column, step.c.id)
        behind = place < query.after if down else place > query.after
        row = tx.one(counted.where(behind))
        left = int(row[0]) if row else 0
        # The pages before this one are counted as full: their steps may have left the list.
        total = max(total, skip + left)
        chosen = chosen.where(behind)
    elif skip < total:
        left = total - skip
        chosen = chosen.offset(skip)
    else:
        left = 0
    return [step_record(found) for found in tx.run(chosen)] if left else [], total


def _step_conditions(query: StepQuery) -> list[sa.ColumnElement[bool] | sa.TextClause]:
    attempt_id = job.c.attempt_id if query.attempt_id is None else query.attempt_id
    where: list[sa.ColumnElement[bool] | sa.TextClause] = [step.c.attempt_id == attempt_id]
    if query.workspace is not None:
        where.append(step.c.workspace == query.workspace)
    elif query.within is not None:
        where.append(step.c.workspace.in_(sorted(query.within)))
    if query.job is not None:
        where.append(sa.or_(job.c.name == query.job, job.c.id == query.job))
    if query.source is not None:
        where.append(job.c.source == query.source)
    if query.states is not None:
        where.append(step.c.state.in_([state.value for state in query.states]))
        if TERMINAL.isdisjoint(query.states):
            # In the words of the partial index over live steps, which is used only then.
            where.append(sa.text("step.state NOT IN ('completed', 'error', 'cancelled')"))
    if query.cleanup_pending:
        where.append(sa.false())  # tasks are finalised in the transaction that ends their step
    return where

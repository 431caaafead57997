"""Core statements compiled once per dialect and run on the driver's own cursor.

A statement costs about 5 us this way; through Core's own execution it costs 30 to 100.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.ext.compiler import compiles

Dialect = Literal["sqlite", "postgresql"]
#: A tuple of column values; what is in it, the statement says.
Row = Any
Params = Mapping[str, Any]
_NOTHING: Params = {}


class Cursor(Protocol):
    """What both drivers' cursors offer."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, sql: Any, values: Any = ..., /) -> Any: ...

    def executemany(self, sql: Any, values: Any, /) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def fetchone(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """SQL text and how to order a statement's parameters."""

    sql: str
    values: Callable[[Params], Sequence[Any]]


def prepare(core: sa.ClauseElement, dialect: Dialect) -> Prepared:
    """A statement that is run often, with a place for each parameter."""
    compiled = core.compile(dialect=_dialect(dialect))
    if "[POSTCOMPILE_" in compiled.string:
        raise ValueError(f"a list can't be a value of a statement that is compiled once: {compiled.string}")
    names: list[str] = list(getattr(compiled, "positiontup", None) or ())
    given = {name: value for name, value in (compiled.params or {}).items() if not _required(compiled, name)}
    fixed = {name: given[name] for name in names if name in given}
    return Prepared(compiled.string, _orderer(names, fixed))


def prepare_once(core: sa.ClauseElement, dialect: Dialect, params: Params) -> Prepared:
    """A statement that was put together for this call; lists in it become as many parameters."""
    compiled: Any = core.compile(dialect=_dialect(dialect))
    if not hasattr(compiled, "construct_expanded_state"):
        return Prepared(compiled.string, lambda params: ())  # definitions of tables take no values
    state = compiled.construct_expanded_state(dict(params))
    values = tuple(state.positional_parameters)
    return Prepared(state.statement, lambda params: values)


def _required(compiled: Any, name: str) -> bool:
    bind = compiled.binds.get(name)
    return bind is not None and bool(bind.required)


def _orderer(names: list[str], fixed: dict[str, Any]) -> Callable[[Params], Sequence[Any]]:
    if not names:
        return lambda params: ()
    if len(names) == 1:
        (only,) = names
        return lambda params: (params[only] if only in params else fixed[only],)
    pick: Callable[[Params], Sequence[Any]] = itemgetter(*names)
    if not fixed:
        return pick
    return lambda params: pick({**fixed, **params})


@functools.cache
def _dialect(name: Dialect) -> sa.Dialect:
    if name == "sqlite":
        return SQLiteDialect_pysqlite(paramstyle="qmark")
    # Late: a service on SQLite starts a tenth sooner without it.
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

    psycopg: Callable[..., sa.Dialect] = PGDialect_psycopg
    return psycopg(paramstyle="format")


class Statement:
    """A Core statement that is compiled at its first use, once per dialect.

    Meant for module-level constants. A function of the dialect makes twins where the two
    databases need different words.
    """

    __slots__ = ("_core", "postgresql", "sqlite")

    def __init__(self, core: sa.ClauseElement | Callable[[Dialect], sa.ClauseElement]) -> None:
        self._core = core
        self.sqlite: Prepared | None = None
        self.postgresql: Prepared | None = None

    def prepared(self, dialect: Dialect) -> Prepared:
        ready = self.sqlite if dialect == "sqlite" else self.postgresql
        if ready is None:
            core = self._core if isinstance(self._core, sa.ClauseElement) else self._core(dialect)
            ready = prepare(core, dialect)
            setattr(self, dialect, ready)
        return ready


def listed(dialect: Dialect, name: str) -> sa.ScalarSelect[Any]:
    """The texts of the parameter `name`, a JSON array, for `column.in_(...)` in a hot statement."""
    if dialect == "sqlite":
        return sa.select(sa.text("value")).select_from(sa.text(f"json_each(:{name})")).scalar_subquery()
    return sa.select(sa.text(f"jsonb_array_elements_text(CAST(:{name} AS jsonb))")).scalar_subquery()


def insert_into(table: sa.Table, dialect: Dialect) -> Any:
    """INSERT of all columns, in the dialect's own form, which knows ON CONFLICT."""
    kind: Any = sqlite.insert
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        kind = postgresql.insert
    return kind(table).inline().values({column.name: sa.bindparam(column.name) for column in table.c})


class InOrder(sa.sql.expression.Join):
    """A join whose left side SQLite takes first."""

    inherit_cache = True


@compiles(InOrder, "sqlite")
def _cross_join(join: InOrder, compiler: Any, **kw: Any) -> str:
    text: str = compiler.visit_join(join, **kw)
    return text.replace(" JOIN ", " CROSS JOIN ", 1)


class Tx:
    """One transaction, or one caller's part of a group commit: what store functions work with."""

    __slots__ = ("_cursor", "counts", "dialect", "wakes")

    def __init__(self, cursor: Cursor, dialect: Dialect) -> None:
        self._cursor = cursor
        self.dialect: Dialect = dialect
        self.wakes: set[tuple[str, str]] = set()
        self.counts: Counter[tuple[str, str]] = Counter()

    def run(self, stmt: Statement | sa.ClauseElement, params: Params | None = None) -> list[Row]:
        """All rows of a statement that returns rows."""
        self._execute(stmt, params)
        return self._cursor.fetchall()

    def each(self, stmt: Statement, params: Params | None = None) -> Iterator[Row]:
        """The rows one by one; on SQLite no more are read than are taken. Nothing else may be run
        meanwhile."""
        self._execute(stmt, params)
        while (row := self._cursor.fetchone()) is not None:
            yield row

    def one(self, stmt: Statement | sa.ClauseElement, params: Params | None = None) -> Row | None:
        """The first row, or None."""
        self._execute(stmt, params)
        row: Row | None = self._cursor.fetchone()
        return row

    def count(self, stmt: Statement | sa.ClauseElement, params: Params | None = None) -> int:
        """Run a statement without result rows; how many rows it touched."""
        self._execute(stmt, params)
        return self._cursor.rowcount

    def many(self, stmt: Statement, rows: Iterable[Params]) -> None:
        """Run a statement once per set of parameters."""
        ready = stmt.prepared(self.dialect)
        values = [ready.values(row) for row in rows]
        try:
            self._cursor.executemany(ready.sql, values)
        except UnicodeEncodeError:
            self._cursor.executemany(ready.sql, [_encodable(row) for row in values])

    def wake(self, topic: str, key: str = "") -> None:
        """Tell everybody who listens, here and in other services, after the commit."""
        self.wakes.add((topic, key))

    def tally(self, workspace: str, state: str, change: int) -> None:
        """Change the number of jobs; written once, at the end of the transaction."""
        self.counts[workspace, state] += change

    def _execute(self, stmt: Statement | sa.ClauseElement, params: Params | None) -> None:
        if isinstance(stmt, Statement):
            ready = stmt.prepared(self.dialect)
        else:
            ready = prepare_once(stmt, self.dialect, params or _NOTHING)
        values = ready.values(params or _NOTHING)
        try:
            self._cursor.execute(ready.sql, values)
        except UnicodeEncodeError:
            # Half of a surrogate pair has no UTF-8 form: JSON allows it, databases don't.
            self._cursor.execute(ready.sql, _encodable(values))


def _encodable(values: Sequence[Any]) -> list[Any]:
    return [
        value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for value in values
    ]

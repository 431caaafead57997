"""Looking into the JSON of `job.spec`, on SQLite and on PostgreSQL.

One JSON value is seen through a few expressions: its type, its text where it is text, its number
where it is a number. An absent value and null are alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import sqlalchemy as sa

from nemo_jobs.domain.filters import Op
from nemo_jobs.store.sql import Dialect
from nemo_jobs.store.tables import job

Condition = sa.ColumnElement[bool]
Expression = sa.ColumnElement[Any]

COMPARE: dict[Op, Callable[[Any, Any], Condition]] = {
    Op.LT: lambda left, right: left < right,
    Op.LTE: lambda left, right: left <= right,
    Op.GT: lambda left, right: left > right,
    Op.GTE: lambda left, right: left >= right,
}


class JsonValue(Protocol):
    """A JSON value somewhere in a row."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def text(self) -> Expression: ...

    @property
    def number(self) -> Expression: ...

    def present(self) -> Condition: ...

    def is_text(self) -> Condition: ...

    def is_bool(self, wanted: bool) -> Condition: ...

    def as_number(self, wanted: Any) -> Any: ...

    def below(self, path: Sequence[str]) -> "JsonValue":
        """The value at `path` inside this one, where it is an object."""
        ...

    def any_element(self, test: Callable[["JsonValue"], Condition]) -> Condition:
        """Whether this is an array with an element that passes `test`."""
        ...


def _jsonb() -> Any:
    from sqlalchemy.dialects.postgresql import JSONB  # late: SQLite alone starts sooner without it

    return JSONB


def spec_at(path: Sequence[str], dialect: Dialect) -> JsonValue:
    """The value at `path` in the job's spec."""
    if dialect == "sqlite":
        return _SqliteValue(job.c.spec, "$").below(path)
    # jsonb knows no NUL; a spec that holds one must not make every search fail.
    clean = sa.func.replace(job.c.spec, "\\u0000", "\\ufffd")
    return _PostgresValue(sa.cast(clean, _jsonb())).below(path)


def text_meets(text: Expression, op: Op, value: str, dialect: Dialect) -> Condition:
    """`$like`, `$startsWith` and `$endsWith`."""
    if op is Op.LIKE:
        return text.icontains(value, autoescape=True)
    if op is Op.STARTS:
        return sa.func.substr(text, 1, len(value), type_=sa.Text) == value
    if dialect == "sqlite":
        return sa.func.substr(text, -len(value), type_=sa.Text) == value
    return sa.func.right(text, len(value), type_=sa.Text) == value


def ordered(text: Expression, op: Op, value: Any, dialect: Dialect) -> Condition:
    """Order; that of text is by code points, whatever the database's language is."""
    if isinstance(value, str) and dialect == "postgresql":
        return COMPARE[op](sa.collate(text, "C"), value)
    return COMPARE[op](text, value)


@dataclass(frozen=True, slots=True)
class _SqliteValue:
    doc: Expression
    path: str
    own_type: Expression | None = None
    own_value: Expression | None = None
    dialect: Dialect = "sqlite"

    @property
    def type(self) -> Expression:
        found = sa.func.json_type(self.doc, self.path) if self.own_type is None else self.own_type
        return sa.func.coalesce(found, "null", type_=sa.Text)

    @property
    def value(self) -> Expression:
        return sa.func.json_extract(self.doc, self.path) if self.own_value is None else self.own_value

    @property
    def text(self) -> Expression:
        return sa.type_coerce(self.value, sa.Text)

    @property
    def number(self) -> Expression:
        return sa.case((self.type.in_(("integer", "real")), self.value))

    def present(self) -> Condition:
        return self.type != "null"

    def is_text(self) -> Condition:
        return self.type == "text"

    def is_bool(self, wanted: bool) -> Condition:
        return self.type == ("true" if wanted else "false")

    def as_number(self, wanted: Any) -> Any:
        return wanted

    def below(self, path: Sequence[str]) -> "_SqliteValue":
        if not path:
            return self
        if any('"' in key for key in path):
            return _SqliteValue(sa.null(), "$")  # SQLite has no way to write such a key
        return _SqliteValue(self.doc, self.path + "".join(f'."{key}"' for key in path))

    def any_element(self, test: Callable[[JsonValue], Condition]) -> Condition:
        each = sa.func.json_each(self.doc, self.path).table_valued("value", "type").alias()
        nested = sa.case((each.c.type.in_(("object", "array")), each.c.value))
        element = _SqliteValue(nested, "$", each.c.type, each.c.value)
        found = sa.exists(sa.select(sa.literal(1)).select_from(each).where(test(element)))
        return sa.and_(self.type == "array", found)


@dataclass(frozen=True, slots=True)
class _PostgresValue:
    json: Expression
    dialect: Dialect = "postgresql"

    @property
    def type(self) -> Expression:
        return sa.func.coalesce(sa.func.jsonb_typeof(self.json), "null", type_=sa.Text)

    @property
    def text(self) -> Expression:
        return self.json.op("#>>", return_type=sa.Text())(sa.literal_column("CAST('{}' AS text[])"))

    @property
    def number(self) -> Expression:
        return sa.case((self.type == "number", sa.cast(self.text, sa.Numeric)))

    def present(self) -> Condition:
        return self.type != "null"

    def is_text(self) -> Condition:
        return self.type == "string"

    def is_bool(self, wanted: bool) -> Condition:
        word = "true" if wanted else "false"
        return sa.func.coalesce(sa.and_(self.type == "boolean", self.text == word), sa.false())

    def as_number(self, wanted: Any) -> Any:
        # Numbers in JSON can be larger than any float.
        return sa.literal(Decimal(repr(wanted)), sa.Numeric)

    def below(self, path: Sequence[str]) -> "_PostgresValue":
        return _PostgresValue(sa.func.jsonb_extract_path(self.json, *path, type_=_jsonb())) if path else self

    def any_element(self, test: Callable[[JsonValue], Condition]) -> Condition:
        empty = sa.cast(sa.literal("[]", sa.Text), _jsonb())
        array = sa.case((self.type == "array", self.json), else_=empty)
        elements = sa.func.jsonb_array_elements(array, type_=_jsonb())
        each = elements.table_valued(sa.column("value", _jsonb())).alias()
        element = _PostgresValue(each.c.value)
        return sa.exists(sa.select(sa.literal(1)).select_from(each).where(test(element)))

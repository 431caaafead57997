"""A job filter's tree as a condition in SQL.

Every comparison is true or false, never unknown, so that NOT means what it says. Parts of `spec`
are read with each database's own JSON functions: see `json_values`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, assert_never

import sqlalchemy as sa

from nemo_jobs.domain.filters import ENTITY_TYPE, And, Compare, ElemMatch, Node, Not, Op, Or, Scalar
from nemo_jobs.store.json_values import COMPARE, JsonValue, ordered, spec_at, text_meets
from nemo_jobs.store.sql import Dialect
from nemo_jobs.store.tables import job
from nemo_jobs.store.tables_access import job_label

Condition = sa.ColumnElement[bool]

_COLUMNS: dict[str, sa.ColumnElement[Any]] = {
    "id": job.c.id,
    "name": job.c.name,
    "workspace": job.c.workspace,
    "project": job.c.project,
    "status": job.c.state,
    "source": job.c.source,
    "created_at": job.c.created_at,
    "updated_at": job.c.updated_at,
    "entity_type": sa.literal(ENTITY_TYPE, sa.Text),
}


def compile_filter(node: Node, dialect: Dialect) -> Condition:
    """The condition on the job table that `node` means."""
    match node:
        case And(nodes):
            return sa.and_(*(compile_filter(item, dialect) for item in nodes))
        case Or(nodes):
            return sa.or_(*(compile_filter(item, dialect) for item in nodes))
        case Not(inner):
            return sa.not_(compile_filter(inner, dialect))
        case ElemMatch(path=path, nodes=nodes):
            tests = [(item.path, item) for item in nodes]
            return spec_at(path, dialect).any_element(
                lambda element: sa.and_(*(json_meets(element.below(path), item) for path, item in tests))
            )
        case Compare():
            return _compare(node, dialect)
        case _:
            assert_never(node)


def _compare(node: Compare, dialect: Dialect) -> Condition:
    if node.field == "spec":
        return json_meets(spec_at(node.path, dialect), node)
    if node.field == "labels":
        return _label_meets(node, dialect)
    column = _COLUMNS.get(node.field)
    if column is None or node.path:
        return _absent(node)
    return column_meets(column, node, dialect)


def _absent(node: Compare) -> Condition:
    """What no job has equals nothing but null."""
    values = node.value if isinstance(node.value, tuple) else (node.value,)
    return sa.true() if node.op in (Op.EQ, Op.IN) and None in values else sa.false()


def column_meets(column: sa.ColumnElement[Any], node: Compare, dialect: Dialect) -> Condition:
    """Whether a column meets a comparison, wherever its field would be."""
    value: Any = node.value
    # In words that an index can be used with.
    sure = _present(column) if getattr(column, "nullable", False) else _as_it_is
    match node.op:
        case Op.EQ:
            return column.is_(None) if value is None else sure(column == value)
        case Op.IN | Op.NIN:
            some = [item for item in value if item is not None]
            known = sure(column.in_(some)) if some else sa.false()
            if node.op is Op.NIN:
                return sa.and_(column.is_not(None), sa.not_(known))
            return sa.or_(known, column.is_(None)) if len(some) < len(value) else known
        case Op.LIKE | Op.STARTS | Op.ENDS:
            return _sure(text_meets(column, node.op, value, dialect))
        case Op.LT | Op.LTE | Op.GT | Op.GTE:
            return sure(ordered(column, node.op, value, dialect))
        case Op.CONTAINS | Op.HAS_KEY:
            return sa.false()
        case _:
            assert_never(node.op)


def _label_meets(node: Compare, dialect: Dialect) -> Condition:
    """Whether a job has a label that meets a comparison; one that it hasn't is like null."""
    if node.op is Op.HAS_KEY:
        return _has_label(str(node.value))
    (key,), value = node.path, node.value
    if node.op is Op.EQ and value is None:
        return sa.not_(_has_label(key))
    if isinstance(value, tuple) and None in value:
        some = replace(node, value=tuple(item for item in value if item is not None))
        known = _has_label(key, column_meets(job_label.c.value, some, dialect))
        return known if node.op is Op.NIN else sa.or_(known, sa.not_(_has_label(key)))
    return _has_label(key, column_meets(job_label.c.value, node, dialect))


def _has_label(key: str, *conditions: Condition) -> Condition:
    found: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(job_label)
    return found.where(job_label.c.job_id == job.c.id, job_label.c.key == key, *conditions).exists()


def _as_it_is(condition: Condition) -> Condition:
    return condition


def _present(column: sa.ColumnElement[Any]) -> Callable[[Condition], Condition]:
    return lambda condition: sa.and_(column.is_not(None), condition)


def _sure(condition: Condition) -> Condition:
    return sa.func.coalesce(condition, sa.false(), type_=sa.Boolean)


def json_meets(value: JsonValue, node: Compare) -> Condition:
    """Whether a JSON value meets a comparison; types count: 1 is neither "1" nor true."""
    wanted: Any = node.value
    match node.op:
        case Op.EQ:
            return _json_equals(value, wanted)
        case Op.IN:
            return _json_among(value, wanted)
        case Op.NIN:
            return sa.and_(value.present(), sa.not_(_json_among(value, wanted)))
        case Op.LIKE | Op.STARTS | Op.ENDS:
            return _sure(sa.and_(value.is_text(), text_meets(value.text, node.op, wanted, value.dialect)))
        case Op.LT | Op.LTE | Op.GT | Op.GTE:
            if isinstance(wanted, str):
                return _sure(sa.and_(value.is_text(), ordered(value.text, node.op, wanted, value.dialect)))
            return _sure(COMPARE[node.op](value.number, value.as_number(wanted)))
        case Op.CONTAINS:
            return value.any_element(lambda element: _json_equals(element, wanted))
        case Op.HAS_KEY:
            return value.below((str(wanted),)).present()
        case _:
            assert_never(node.op)


def _json_among(value: JsonValue, wanted: Sequence[Scalar]) -> Condition:
    """Equal to one of many, in one term for all texts and one for all numbers: databases bound the
    depth of a condition."""
    texts = [item for item in wanted if isinstance(item, str)]
    numbers = [item for item in wanted if isinstance(item, int | float) and not isinstance(item, bool)]
    rest = {item for item in wanted if item is None or isinstance(item, bool)}
    terms = [_json_equals(value, item) for item in rest]
    if texts:
        terms.append(_sure(sa.and_(value.is_text(), value.text.in_(texts))))
    if numbers:
        terms.append(_sure(value.number.in_([value.as_number(item) for item in numbers])))
    return sa.or_(sa.false(), *terms)


def _json_equals(value: JsonValue, wanted: Scalar) -> Condition:
    if wanted is None:
        return sa.not_(value.present())
    if isinstance(wanted, bool):
        return value.is_bool(wanted)
    if isinstance(wanted, str):
        return _sure(sa.and_(value.is_text(), value.text == wanted))
    return _sure(value.number == value.as_number(wanted))

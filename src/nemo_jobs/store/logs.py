"""Log lines: stored as compressed chunks, read by sequence number.

Every line of an attempt has a number, given once when it is stored: from 0, without holes. A
chunk holds consecutive numbers, so a page reads only the chunks it needs, and a line never moves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from nemo_jobs.domain import names
from nemo_jobs.domain.model import LogLine, NotFound
from nemo_jobs.store import chunks
from nemo_jobs.store.chunks import Chunk, LogBatch
from nemo_jobs.store.compaction import compact_ended
from nemo_jobs.store.records import load
from nemo_jobs.store.sql import Row, Statement, Tx
from nemo_jobs.store.tables import attempt, job, log_chunk, step, task

__all__ = [
    "Chunk",
    "LogBatch",
    "LogFilter",
    "Selector",
    "append",
    "attempt_of",
    "before",
    "check_filter",
    "compact_ended",
    "page",
    "tail",
]


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Only lines of this step, of this task; each by name or by id."""

    step: str | None = None
    task: str | None = None


_GROW = Statement(
    sa.update(attempt)
    .where(attempt.c.id == sa.bindparam("attempt_id"))
    .values(
        log_lines=attempt.c.log_lines + sa.bindparam("more_lines"),
        log_bytes=attempt.c.log_bytes + sa.bindparam("more_bytes"),
    )
    .returning(attempt.c.log_lines, attempt.c.log_bytes)
)
_INSERT = Statement(
    sa.insert(log_chunk).inline().values({column.name: sa.bindparam(column.name) for column in log_chunk.c})
)


def append(tx: Tx, attempt_id: str, step_name: str, batch: LogBatch) -> int:
    """Store the lines of `batch`; how many bytes of lines the attempt holds then."""
    packed = chunks.pack(batch).chunks
    lines = sum(chunk.n for chunk in packed)
    size = sum(chunk.size for chunk in packed)
    params = {"attempt_id": attempt_id, "more_lines": lines, "more_bytes": size}
    row = tx.one(_GROW, params)
    if row is None:
        raise NotFound(f"no attempt {attempt_id!r}")
    seq = row[0] - lines
    for chunk in packed:
        _store(tx, attempt_id, step_name, chunk, seq)
        seq += chunk.n
    if lines:
        tx.wake("logs", attempt_id)
    total: int = row[1]
    return total


def _store(tx: Tx, attempt_id: str, step_name: str, chunk: Chunk, seq: int) -> None:
    tx.count(
        _INSERT,
        {
            "attempt_id": attempt_id,
            "first_seq": seq,
            "n": chunk.n,
            "step": step_name,
            "task": chunk.task,
            "stream": chunk.stream,
            "at": chunk.at,
            "size": chunk.size,
            "codec": chunk.codec,
            "data": chunk.data,
        },
    )


#: Which attempt of a job: by number (0 is the first) or id; None is the current one.
Selector = int | str | None


def attempt_of(tx: Tx, job_id: str, selector: Selector) -> str:
    """The id of the attempt that `selector` means: a number (0 is the first), an id, or None for
    the current one. Raises NotFound."""
    query = sa.select(attempt.c.id).where(attempt.c.job_id == job_id)
    if selector is None:
        query = sa.select(job.c.attempt_id).where(job.c.id == job_id)
    elif isinstance(selector, int):
        if abs(selector) >= 2**31:
            raise NotFound(f"the job has no attempt {selector}")
        query = query.where(attempt.c.seq == selector)
    else:
        query = query.where(attempt.c.id == selector)
    row = tx.one(query)
    if row is None:
        raise NotFound(f"the job has no attempt {selector}" if selector is not None else "no such job")
    found: str = row[0]
    return found


_ATTEMPT = Statement(
    sa.select(job.c.name, attempt.c.log_lines)
    .join(attempt, attempt.c.job_id == job.c.id)
    .where(attempt.c.id == sa.bindparam("in_attempt"))
)
#: Bytes of lines that are read from the database in one go, about.
READ_SIZE = 4 << 20
#: Bytes of lines in one page, about: lines may be long, and a page is built in memory.
PAGE_SIZE = 8 << 20


_CHUNK = (
    *(log_chunk.c.first_seq, log_chunk.c.n, log_chunk.c.step, log_chunk.c.task, log_chunk.c.stream),
    *(log_chunk.c.at, log_chunk.c.codec, log_chunk.c.data),
)


class _Queries:
    """The statements over the chunks of an attempt, narrowed to a step, a task, both or none."""

    def __init__(self, by_step: bool, by_task: bool) -> None:
        where = [log_chunk.c.attempt_id == sa.bindparam("in_attempt")]
        where += [log_chunk.c.step == sa.bindparam("in_step")] if by_step else []
        where += [log_chunk.c.task == sa.bindparam("in_task")] if by_task else []
        seq, limit = log_chunk.c.first_seq, sa.bindparam("n", type_=sa.Integer)
        spans = sa.select(seq, log_chunk.c.n, log_chunk.c.size).where(*where).limit(limit)
        edge = sa.bindparam("edge", type_=sa.BigInteger)
        self.after = Statement(spans.where(seq > edge).order_by(seq))
        self.before = Statement(spans.where(seq < edge).order_by(seq.desc()))
        low, high = sa.bindparam("low", type_=sa.BigInteger), sa.bindparam("high", type_=sa.BigInteger)
        data = sa.select(*_CHUNK).where(*where, seq.between(low, high))
        self.data = Statement(data.order_by(seq))
        total = sa.func.coalesce(sa.func.sum(log_chunk.c.n), 0)
        self.total = Statement(sa.select(sa.cast(total, sa.BigInteger)).where(*where))


_QUERIES = {(step, task): _Queries(step, task) for step in (False, True) for task in (False, True)}


@dataclass(frozen=True, slots=True)
class _Place:
    """An attempt with a filter whose names are known."""

    attempt_id: str
    job: str
    lines: int
    wanted: LogFilter

    @classmethod
    def find(cls, tx: Tx, attempt_id: str, flt: LogFilter) -> "_Place":
        row = tx.one(_ATTEMPT, {"in_attempt": attempt_id})
        if row is None:
            raise NotFound(f"no attempt {attempt_id!r}")
        name, lines = row
        return cls(attempt_id, name, lines, _names(tx, flt))

    @property
    def queries(self) -> _Queries:
        return _QUERIES[self.wanted.step is not None, self.wanted.task is not None]

    @property
    def params(self) -> dict[str, str | None]:
        return {"in_attempt": self.attempt_id, "in_step": self.wanted.step, "in_task": self.wanted.task}

    def total(self, tx: Tx) -> int:
        if self.wanted == LogFilter():
            return self.lines
        row = tx.one(self.queries.total, self.params)
        return int(row[0]) if row else 0

    def spans(self, tx: Tx, query: Statement, edge: int, limit: int) -> list[Row]:
        return tx.run(query, {**self.params, "edge": edge, "n": limit})


def page(
    tx: Tx, attempt_id: str, flt: LogFilter, first: int, limit: int, most: int = PAGE_SIZE
) -> tuple[list[LogLine], int, bool]:
    """Up to `limit` lines from number `first` on, how many match in all, whether more follow.

    Long lines make a page shorter: it holds about `most` bytes, and at least one line.
    """
    place = _Place.find(tx, attempt_id, flt)
    first = min(max(0, first), place.lines)
    spans = place.spans(tx, place.queries.before, first + 1, 1)
    if spans and spans[0][0] + spans[0][1] <= first:
        spans = []
    spans += place.spans(tx, place.queries.after, first, limit + 1)
    parts: list[_Part] = []
    left, room, more = limit, most, False
    for seq, n, size in spans:
        start = max(0, first - seq)
        stop = min(n, start + min(left, _fitting(room, n, size, bool(parts))))
        more = stop < n
        if start < stop:
            parts.append(_Part(seq, start, stop, size))
        left -= stop - start
        room -= size * (stop - start) // n
        if more:
            break
    return _lines(tx, place, parts), place.total(tx), more


def before(tx: Tx, attempt_id: str, flt: LogFilter, seq: int, limit: int) -> tuple[list[LogLine], int, bool]:
    """The up to `limit` lines right before number `seq`, ascending; how many match in all; whether
    there are older ones."""
    place = _Place.find(tx, attempt_id, flt)
    end = min(max(0, seq), place.lines)
    parts: list[_Part] = []
    left, room, more = limit, PAGE_SIZE, False
    for first, n, size in place.spans(tx, place.queries.before, end, limit + 1):
        stop = min(n, end - first)
        start = max(0, stop - min(left, _fitting(room, n, size, bool(parts))))
        more = start > 0
        if start < stop:
            parts.append(_Part(first, start, stop, size))
        left -= stop - start
        room -= size * (stop - start) // n
        if more:
            break
    return _lines(tx, place, parts[::-1]), place.total(tx), more


def _fitting(room: int, n: int, size: int, has_some: bool) -> int:
    """How many lines of a chunk of `n` lines fit into `room` bytes; a page without a line has room
    for one."""
    return max(0 if has_some else 1, room * n // max(1, size))


def tail(tx: Tx, attempt_id: str, flt: LogFilter, limit: int) -> tuple[list[LogLine], int, bool]:
    """The newest `limit` lines, ascending; how many match in all; whether there are older ones."""
    return before(tx, attempt_id, flt, 1 << 62, limit)


class _Part(NamedTuple):
    """Lines [start, stop) of the chunk that begins at `seq`."""

    seq: int
    start: int
    stop: int
    size: int


def _lines(tx: Tx, place: _Place, parts: Sequence[_Part]) -> list[LogLine]:
    """The lines of these parts, in their order; many small chunks are read together."""
    found: list[LogLine] = []
    for group in _read_together(parts):
        span = {"low": group[0].seq, "high": group[-1].seq}
        rows = tx.run(place.queries.data, {**place.params, **span})
        for part, row in zip(group, rows, strict=True):
            found += _unpacked(place.job, part, row)
    return found


def _read_together(parts: Sequence[_Part]) -> Iterator[Sequence[_Part]]:
    begin, size = 0, 0
    for number, part in enumerate(parts):
        if size + part.size > READ_SIZE and number > begin:
            yield parts[begin:number]
            begin, size = number, 0
        size += part.size
    if parts:
        yield parts[begin:]


def _unpacked(job_name: str, part: _Part, row: Row) -> list[LogLine]:
    seq, n, step_name, task_name, stream, at, codec, data = row
    runs, raw = chunks.unpack(codec, data, n, at, stream)
    told = chunks.spread(runs, part.start, part.stop)
    texts = chunks.texts(raw, part.start, part.stop, n)
    return [
        LogLine(number, when, job_name, step_name, task_name, name, text, facts)
        for number, ((when, name, facts), text) in enumerate(zip(told, texts, strict=True), seq + part.start)
    ]


def _names(tx: Tx, flt: LogFilter) -> LogFilter:
    """The filter by names only; an id that nobody has stays as it is and matches nothing."""
    return LogFilter(_name(tx, step, names.STEP_ID, flt.step), _name(tx, task, names.TASK_ID, flt.task))


def _name(tx: Tx, table: sa.Table, prefix: str, asked: str | None) -> str | None:
    if asked is None or not asked.startswith(prefix + "-"):
        return asked
    row = tx.one(sa.select(table.c.name).where(table.c.id == asked))
    return row[0] if row else asked


def check_filter(tx: Tx, attempt_id: str, flt: LogFilter) -> None:
    """Raise NotFound for a step or task that the attempt does not have. A step whose turn has not
    come, known from the spec alone, is not missing."""
    place = _Place.find(tx, attempt_id, flt)
    if place.wanted.step is not None and not _has_step(tx, attempt_id, place.wanted.step):
        raise NotFound(f"the job has no step {flt.step!r}")
    if place.wanted.task is not None:
        query = (
            sa.select(task.c.id)
            .join(step, task.c.step_id == step.c.id)
            .where(step.c.attempt_id == attempt_id, task.c.name == place.wanted.task)
        )
        if tx.one(query) is None and place.total(tx) == 0:
            raise NotFound(f"the job has no task {flt.task!r}")


def _has_step(tx: Tx, attempt_id: str, name: str) -> bool:
    query = sa.select(step.c.id).where(step.c.attempt_id == attempt_id, step.c.name == name)
    if tx.one(query) is not None:
        return True
    spec = tx.one(
        sa.select(sa.func.coalesce(attempt.c.platform_spec, job.c.platform_spec))
        .join(attempt, attempt.c.job_id == job.c.id)
        .where(attempt.c.id == attempt_id)
    )
    return spec is not None and any(item["name"] == name for item in load(spec[0])["steps"])

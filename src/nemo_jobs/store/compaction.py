"""Merging the small chunks of a log whose attempt has ended.

A job that prints a line a second leaves a chunk a line; merged, they take a tenth of the room.
Numbers, times and streams of the lines stay as they are, so cursors that were given out hold.
Which attempts have ended is read from the events; how far, is remembered in `meta`.
"""

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from nemo_jobs.domain.states import TERMINAL
from nemo_jobs.store import chunks
from nemo_jobs.store.driver import off_loop
from nemo_jobs.store.events import events
from nemo_jobs.store.sql import Row, Statement, Tx
from nemo_jobs.store.tables import log_chunk, meta

#: Bytes of lines in a merged chunk, at most.
FULL = 256 << 10
#: Chunks that one call merges, at most: it holds up other writers.
BUDGET = 500
#: Events that one call looks at, at most.
WINDOW = 2000

_BEGIN = Statement(
    sa.text("INSERT INTO meta (key, value) VALUES ('compacted', '0') ON CONFLICT (key) DO NOTHING")
)
_PLACE = Statement(sa.select(meta.c.value).where(meta.c.key == "compacted").with_for_update(skip_locked=True))
_MOVE = Statement(sa.update(meta).where(meta.c.key == "compacted").values(value=sa.bindparam("place")))
_SPANS = Statement(
    sa.select(*(log_chunk.c.first_seq, log_chunk.c.n, log_chunk.c.step, log_chunk.c.task, log_chunk.c.size))
    .where(log_chunk.c.attempt_id == sa.bindparam("in_attempt"))
    .order_by(log_chunk.c.first_seq)
)
_DATA = Statement(
    sa.select(*(log_chunk.c.codec, log_chunk.c.data, log_chunk.c.n, log_chunk.c.at, log_chunk.c.stream))
    .where(
        log_chunk.c.attempt_id == sa.bindparam("in_attempt"),
        log_chunk.c.first_seq.between(sa.bindparam("low"), sa.bindparam("high")),
    )
    .order_by(log_chunk.c.first_seq)
)
_DROP = Statement(
    sa.delete(log_chunk).where(
        log_chunk.c.attempt_id == sa.bindparam("in_attempt"),
        log_chunk.c.first_seq > sa.bindparam("low"),
        log_chunk.c.first_seq <= sa.bindparam("high"),
    )
)
_GROW = Statement(
    sa.update(log_chunk)
    .where(log_chunk.c.attempt_id == sa.bindparam("in_attempt"), log_chunk.c.first_seq == sa.bindparam("low"))
    .values({name: sa.bindparam(f"new_{name}") for name in ("n", "stream", "at", "size", "codec", "data")})
)


@off_loop
def compact_ended(tx: Tx, limit: int) -> int:
    """Merge the chunks of up to `limit` attempts that ended; how many chunks were merged."""
    tx.count(_BEGIN)
    row = tx.one(_PLACE)
    if row is None:
        return 0  # another service is at it
    merged, done = 0, int(row[0])
    place = done
    for event in events(tx, place, WINDOW):
        if event.kind == "job" and event.to_state in TERMINAL:
            merged += compact(tx, event.attempt_id, BUDGET - merged)
            limit -= 1
            if merged >= BUDGET:
                done = event.id - 1  # this attempt may have more
                break
        done = event.id
        if limit <= 0:
            break
    if done != place:
        tx.count(_MOVE, {"place": str(done)})
    return merged


def compact(tx: Tx, attempt_id: str, budget: int) -> int:
    """Merge neighbours in one attempt's log; how many chunks were merged, about `budget` at most."""
    merged = 0
    for group in _groups(tx.run(_SPANS, {"in_attempt": attempt_id})):
        if merged >= budget:
            break
        part = group[: max(2, budget - merged)]
        _merge(tx, attempt_id, part)
        merged += len(part)
    return merged


def _groups(spans: Sequence[Row]) -> Iterator[list[Row]]:
    """Runs of neighbours of the same step and task that fit into one chunk."""
    group: list[Row] = []
    size = 0
    for span in spans:
        if group and (span[2:4] != group[0][2:4] or size + span[4] > FULL):
            if len(group) > 1:
                yield group
            group, size = [], 0
        group.append(span)
        size += span[4]
    if len(group) > 1:
        yield group


def _merge(tx: Tx, attempt_id: str, group: Sequence[Row]) -> None:
    low, high = group[0][0], group[-1][0]
    runs: list[chunks.Run] = []
    lines: list[bytes] = []
    for codec, data, n, at, stream in tx.run(_DATA, {"in_attempt": attempt_id, "low": low, "high": high}):
        some, raw = chunks.unpack(codec, data, n, at, stream)
        runs += some
        lines.append(raw)
    joined = b"".join(lines)
    codec, data = chunks.pack_runs(runs, joined)
    tx.count(_DROP, {"in_attempt": attempt_id, "low": low, "high": high})
    tx.count(
        _GROW,
        {
            "in_attempt": attempt_id,
            "low": low,
            "new_n": sum(run[0] for run in runs),
            "new_at": runs[0][1],
            "new_stream": runs[0][2],
            "new_size": sum(span[4] for span in group),
            "new_codec": codec,
            "new_data": data,
        },
    )

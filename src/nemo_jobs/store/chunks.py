"""Chunks of log lines as bytes: packing for the database and reading back.

A chunk is the lines of one stream of one task that came together, each ended by a line feed.
Merged chunks ("runs") begin with one line of JSON: [[lines, time, stream], ...], so that every
line keeps its time and stream. Log records of other programs bring a fourth member, their facts.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from nemo_jobs.domain.model import Json, RecordFacts

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 1
#: Below this many bytes compression gains nothing.
SMALL = 128
#: More than this never comes out of one chunk: a guard against damaged data.
LARGEST = 64 << 20

Run = tuple[int, int, str, Sequence[Any] | None]  # lines, time, stream, facts
Told = tuple[int, str, RecordFacts | None]  # time, stream, facts


@dataclass(frozen=True, slots=True)
class Chunk:
    """`n` lines of one stream of one task, with one time. `codec` is empty as long as `data`
    is the lines themselves; see `pack`."""

    task: str
    stream: str
    at: int
    n: int
    data: bytes
    codec: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Chunks in the order in which they came, and how far the output was read with them."""

    chunks: tuple[Chunk, ...]
    cursor: Json


def pack(batch: LogBatch) -> LogBatch:
    """The batch as it is stored. Compressing takes time and no lock: for large batches call
    this in a thread first."""
    return replace(batch, chunks=tuple(chunk if chunk.codec else _packed(chunk) for chunk in batch.chunks))


def _packed(chunk: Chunk) -> Chunk:
    lines = chunk.data.count(b"\n")
    if lines != chunk.n or not chunk.data.endswith(b"\n"):
        raise ValueError(f"a chunk said to be {chunk.n} lines is {lines}, or its end is missing")
    codec, data = compress(chunk.data)
    return replace(chunk, codec=codec, size=len(chunk.data), data=data)


def compress(data: bytes) -> tuple[str, bytes]:
    if len(data) < SMALL:
        return "raw", data
    return "zstd", zstd.compress(data, level=LEVEL)


def pack_runs(runs: Sequence[Run], lines: bytes) -> tuple[str, bytes]:
    """Codec and bytes of a merged chunk."""
    return pack_heads([json.dumps(run if run[3] else run[:3], separators=(",", ":")) for run in runs], lines)


def pack_heads(heads: Sequence[str], lines: bytes) -> tuple[str, bytes]:
    """The same of runs that are JSON already."""
    head = f"[{','.join(heads)}]\n".encode()
    return "zstd-runs", zstd.compress(head + lines, level=LEVEL)


def unpack(codec: str, data: bytes, n: int, at: int, stream: str) -> tuple[list[Run], bytes]:
    """The runs of a stored chunk and its lines."""
    if codec == "raw":
        return [(n, at, stream, None)], data
    plain = zstd.decompress(data)
    if codec == "zstd":
        return [(n, at, stream, None)], plain
    head, _, lines = plain.partition(b"\n")
    runs: list[Any] = json.loads(head)
    return [(run[0], run[1], run[2], run[3] if len(run) > 3 else None) for run in runs], lines


def texts(lines: bytes, start: int, stop: int, n: int) -> list[str]:
    """Lines [start, stop) of `n` as text: what is not UTF-8, and NUL, which terminals and programs
    trip over, become the replacement character."""
    if start > n - stop:  # nearer to the end: don't split what comes before
        chosen = lines.rsplit(b"\n", n - start + 1)[-(n - start) - 1 : stop - n - 1]
    else:
        chosen = lines.split(b"\n", stop)[start:stop]
    return b"\n".join(chosen).decode("utf-8", "replace").replace("\0", "\ufffd").split("\n")


def spread(runs: Sequence[Run], start: int, stop: int) -> Iterator[Told]:
    """Time, stream and facts of each of the lines [start, stop)."""
    begin = 0
    for count, at, stream, facts in runs:
        inside = min(begin + count, stop) - max(begin, start)
        if inside > 0:
            yield from repeat((at, stream, RecordFacts(*facts) if facts else None), inside)
        begin += count

"""Rows of an answer into words. The router has checked kinds, ids and frame sizes before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_worker.grammar_link.frame import Frame
from gpu_worker.grammar_link.row_pool import PooledRow, RowPool
from shared.bitmask import RowKind, Words, pack_into
from shared.protocol import StepAnswerEntry, WireRow

POOL, DENSE = int(RowKind.POOL), int(RowKind.DENSE)
Source = PooledRow | Frame | None
"""What a row refers to: a row of the pool, a frame, nothing."""
NOTHING: tuple[Source, ...] = (None,)


def sources(entry: StepAnswerEntry, frames: Sequence[Frame], pool: RowPool) -> tuple[Source, ...]:
    """Those of the rows of ``entry``, taken when the answer comes: the pool changes afterwards."""
    rows = entry.rows
    if len(rows) == 1 and rows[0].kind != DENSE:
        return (pool.read(rows[0].value),) if rows[0].kind == POOL else NOTHING
    return tuple([
        pool.read(row.value) if row.kind == POOL else frames[row.value] if row.kind == DENSE else None for row in rows
    ])  # fmt: skip


def write_rows(
    entry: StepAnswerEntry, found: Sequence[Source], out: Words, first: int, num_rows: int, stop_ids: frozenset[int]
) -> None:
    """Writes the rows of ``entry`` to ``out`` [rows, W] from row ``first`` on; of the ``num_rows`` there those beyond the guided
    ones become zero: nothing is allowed."""
    rows = entry.rows
    for index in range(min(len(rows), num_rows)):
        write_row(rows[index], found[index], out[first + index], stop_ids)
    if len(rows) < num_rows:
        out[first + len(rows) : first + num_rows] = 0


def write_row(row: WireRow, source: Source, out: Words, stop_ids: frozenset[int]) -> None:
    """Writes one row to ``out`` [W]."""
    kind = row.kind
    if isinstance(source, PooledRow):
        out[:] = source.words
    elif source is not None:
        out[:] = np.frombuffer(source.buffer, dtype="<i4")
    elif kind == RowKind.SINGLE:
        pack_into(out, [row.value])
    elif kind == RowKind.SPARSE:
        pack_into(out, np.frombuffer(row.ids, dtype="<i4"))
    elif kind == RowKind.ALL:
        out[:] = -1
    else:
        pack_into(out, list(stop_ids))

"""Rows of an answer into words. The router has checked kinds, ids and frame sizes before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpu_worker.grammar_link.frame import Frame
from gpu_worker.grammar_link.row_pool import PooledRow, RowPool
from shared.bitmask import RowKind, Words, pack_into
from shared.protocol import StepAnswerEntry, WireRow

POOL = int(RowKind.POOL)
_NONE: Mapping[int, PooledRow] = {}


class Content(NamedTuple):
    """What the rows of an answer refer to: its frames, and the rows of the pool by index."""

    frames: Sequence[Frame]
    pooled: Mapping[int, PooledRow]


def content(entry: StepAnswerEntry, frames: Sequence[Frame], pool: RowPool) -> Content:
    """Taken when the answer comes: the pool changes afterwards."""
    rows = entry.rows
    if len(rows) == 1:
        value = rows[0].value
        return Content(frames, {value: pool.read(value)} if rows[0].kind == POOL else _NONE)
    return Content(frames, {row.value: pool.read(row.value) for row in rows if row.kind == POOL})


def write_rows(entry: StepAnswerEntry, content: Content, out: Words, first: int, num_rows: int, stop_ids: frozenset[int]) -> None:
    """Writes the rows of ``entry`` to ``out`` [rows, W] from row ``first`` on; of the ``num_rows`` there those beyond the guided
    ones become zero: nothing is allowed."""
    rows = entry.rows
    for index in range(min(len(rows), num_rows)):
        write_row(rows[index], content, out[first + index], stop_ids)
    if len(rows) < num_rows:
        out[first + len(rows) : first + num_rows] = 0


def write_row(row: WireRow, content: Content, out: Words, stop_ids: frozenset[int]) -> None:
    """Writes one row to ``out`` [W]."""
    if row.kind == POOL:
        out[:] = content.pooled[row.value].words
    elif row.kind == RowKind.DENSE:
        out[:] = np.frombuffer(content.frames[row.value].buffer, dtype="<i4")
    elif row.kind == RowKind.ALL:
        out[:] = -1
    elif row.kind == RowKind.SINGLE:
        pack_into(out, [row.value])
    elif row.kind == RowKind.SPARSE:
        pack_into(out, np.frombuffer(row.ids, dtype="<i4"))
    else:
        pack_into(out, list(stop_ids))

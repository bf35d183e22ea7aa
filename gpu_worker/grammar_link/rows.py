"""Rows of an answer into words. The router has checked kinds, ids and frame sizes before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpu_worker.grammar_link.frame import Frame
from gpu_worker.grammar_link.row_pool import PooledRow, RowPool
from shared.bitmask import RowKind, Words, pack_into
from shared.protocol import StepAnswerEntry, WireRow


class Content(NamedTuple):
    """What the rows of an answer refer to: its frames, and the rows of the pool by index."""

    frames: Sequence[Frame]
    pooled: Mapping[int, PooledRow]


def content(entry: StepAnswerEntry, frames: Sequence[Frame], pool: RowPool) -> Content:
    """Taken when the answer comes: the pool changes afterwards."""
    return Content(frames, {row.value: pool.read(row.value) for row in entry.rows if row.kind == RowKind.POOL})


def write_rows(entry: StepAnswerEntry, content: Content, out: Words, stop_ids: frozenset[int]) -> None:
    """Writes the rows of ``entry`` to ``out`` [rows, W]; rows beyond the guided ones become zero: nothing is allowed."""
    for index, row in enumerate(entry.rows[: len(out)]):
        _write_row(row, content, out[index], stop_ids)
    out[len(entry.rows) :] = 0


def _write_row(row: WireRow, content: Content, out: Words, stop_ids: frozenset[int]) -> None:
    if row.kind == RowKind.POOL:
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

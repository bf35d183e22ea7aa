"""Rows of an answer into words. The router has checked kinds, ids and frame sizes before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from shared.bitmask import RowKind, Words, pack
from shared.protocol import StepAnswerEntry, WireRow


class Frame(Protocol):
    """A received frame: its bytes without a copy."""

    @property
    def buffer(self) -> memoryview: ...


def write_rows(entry: StepAnswerEntry, frames: Sequence[Frame], out: Words, vocab_size: int, stop_ids: frozenset[int]) -> None:
    """Writes the rows of ``entry`` to ``out`` [rows, W]; rows beyond the guided ones become zero: nothing is allowed."""
    for index, row in enumerate(entry.rows[: len(out)]):
        _write_row(row, frames, out[index], vocab_size, stop_ids)
    out[len(entry.rows) :] = 0


def _write_row(row: WireRow, frames: Sequence[Frame], out: Words, vocab_size: int, stop_ids: frozenset[int]) -> None:
    if row.kind == RowKind.DENSE:
        out[:] = np.frombuffer(frames[row.value].buffer, dtype="<i4")
    elif row.kind == RowKind.ALL:
        out[:] = -1
    elif row.kind == RowKind.SINGLE:
        out[:] = pack([row.value], vocab_size)
    elif row.kind == RowKind.SPARSE:
        out[:] = pack(np.frombuffer(row.ids, dtype="<i4"), vocab_size)
    else:
        out[:] = pack(sorted(stop_ids), vocab_size)

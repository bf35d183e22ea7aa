"""Rows of an answer into words. The router has checked kinds, ids and frame sizes before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from shared.bitmask import RowKind, Words, pack_into
from shared.protocol import StepAnswerEntry, WireRow


class Frame(Protocol):
    """A received frame: its bytes without a copy."""

    @property
    def buffer(self) -> memoryview: ...


def write_rows(entry: StepAnswerEntry, frames: Sequence[Frame], out: Words, stop_ids: frozenset[int]) -> None:
    """Writes the rows of ``entry`` to ``out`` [rows, W]; rows beyond the guided ones become zero: nothing is allowed."""
    for index, row in enumerate(entry.rows[: len(out)]):
        _write_row(row, frames, out[index], stop_ids)
    out[len(entry.rows) :] = 0


def _write_row(row: WireRow, frames: Sequence[Frame], out: Words, stop_ids: frozenset[int]) -> None:
    if row.kind == RowKind.DENSE:
        out[:] = np.frombuffer(frames[row.value].buffer, dtype="<i4")
    elif row.kind == RowKind.ALL:
        out[:] = -1
    elif row.kind == RowKind.SINGLE:
        pack_into(out, [row.value])
    elif row.kind == RowKind.SPARSE:
        pack_into(out, np.frombuffer(row.ids, dtype="<i4"))
    else:
        pack_into(out, list(stop_ids))

"""How the rows of one answer become wire rows, pool writes and frames."""

from __future__ import annotations

from grammar_service.row_pool import Place, RowPool
from grammar_service.rows import Row
from shared.bitmask import RowKind
from shared.protocol import PoolWrite, WireRow

_STOP_ONLY = WireRow(RowKind.STOP_ONLY)


class Frames:
    """The frames of one answer and the writes into the worker's pool that it carries; equal rows share both."""

    def __init__(self, pool: RowPool) -> None:
        self.frames: list[bytes] = []
        self.writes: list[PoolWrite] = []
        self._pool = pool
        self._index: dict[Row, int] = {}
        self._wires: dict[Row, WireRow] = {}

    def wire(self, row: Row, stop_ids: frozenset[int]) -> WireRow:
        """The wire row for a session whose stop set is ``stop_ids``."""
        if row.id_set and row.id_set == stop_ids:
            return _STOP_ONLY
        wire = self._wires.get(row)
        if wire is None:
            wire = self._wires[row] = self._new(row)
        return wire

    def _new(self, row: Row) -> WireRow:
        if row.pooled and (place := self._pool.get(row) or self._written(row)) is not None:
            return place.wire
        return row.inline or WireRow(RowKind.DENSE, self._frame(row))

    def _written(self, row: Row) -> Place | None:
        if row in self._index:  # it travels in this answer already
            return None
        place = self._pool.put(row)
        if place is not None:
            frame = 0 if row.inline else self._frame(row)
            self.writes.append(PoolWrite(place.index, place.generation, frame, row.ids if row.inline else b""))
        return place

    def _frame(self, row: Row) -> int:
        index = self._index.get(row)
        if index is None:
            index = self._index[row] = len(self.frames)
            self.frames.append(bytes(row.data))
        return index

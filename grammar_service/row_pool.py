"""The part of a worker's row pool that this connection may write: which row is at which index. Pure; nobody else assigns indices.

A reference is (index, generation). An index is written again only when the last step that was answered with it has retired, and
no generation is used twice, so a reference never means another row than the one it was made for.
"""

from __future__ import annotations

from collections import OrderedDict

from grammar_service.rows import Row
from shared.bitmask import RowKind
from shared.protocol import WireRow

MAX_ROWS = 4096  # as many as one answer can write


class Place:
    """A row in the pool; ``step`` is the last one answered with it."""

    __slots__ = ("index", "step", "wire")

    def __init__(self, index: int, generation: int, step: int) -> None:
        self.index = index
        self.step = step
        self.wire = WireRow(RowKind.POOL, index, b"", generation)

    @property
    def generation(self) -> int:
        return self.wire.generation


class RowPool:
    """Indices ``base`` to ``base + rows - 1`` of the worker's pool; least recently answered rows give way. ``rows`` may be 0."""

    def __init__(self, base: int = 0, rows: int = 0) -> None:
        self.base, self.rows = base, min(rows, MAX_ROWS)
        self._places: OrderedDict[object, Place] = OrderedDict()  # by row; oldest step first
        self._generation = 0
        self._step = self._retired_step = -1

    def __len__(self) -> int:
        return len(self._places)

    def begin(self, step: int, retired_step: int) -> None:
        """What follows answers ``step``. An entry that waited may be older than what was answered meanwhile."""
        self._step = max(self._step, step)
        self._retired_step = max(self._retired_step, min(retired_step, self._step - 1))

    def get(self, row: Row) -> Place | None:
        """Where the row is, for one more answer."""
        place = self._places.get(row)
        if place is not None and place.step != self._step:
            place.step = self._step
            self._places.move_to_end(row)
        return place

    def put(self, row: Row) -> Place | None:
        """A place for a row that has none, to be written; None where every index may still be read."""
        if len(self._places) < self.rows:
            index = self.base + len(self._places)
        elif (oldest := next(iter(self._places.values()), None)) is not None and oldest.step <= self._retired_step:
            self._places.popitem(last=False)
            index = oldest.index
        else:
            return None
        self._generation += 1
        place = self._places[row] = Place(index, self._generation, self._step)
        return place

    def grant(self, base: int, rows: int) -> RowPool:
        """After another Welcome on the same connection: the worker lost writes or granted another part. Nothing counts as written;
        indices that may still be read stay unused until they have retired."""
        if (base, min(rows, MAX_ROWS)) == (self.base, self.rows):
            self._places = OrderedDict((object(), place) for place in self._places.values())
            return self
        pool = RowPool(base, rows)
        pool._generation = self._generation
        return pool

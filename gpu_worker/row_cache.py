"""RowCache: which mask rows stay on the device, by what they came from, so that a row crosses the bus when it is new. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class _Entry:
    index: int
    there: bool = False


class RowCache:
    """``size`` places; the one unused for longest is given away. A row counts as there when the launch that was to fill its place
    has said that it did: until then every launch that refers to it fills it again."""

    def __init__(self, size: int) -> None:
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._free = list(range(size))

    def place(self, origin: Hashable) -> tuple[int, bool]:
        """The place of a row, and whether it is to be filled. A launch may ask for half as many as there are places."""
        entry = self._entries.get(origin)
        if entry is None:
            index = self._free.pop() if self._free else self._entries.popitem(last=False)[1].index
            self._entries[origin] = entry = _Entry(index)
        else:
            self._entries.move_to_end(origin)
        return entry.index, not entry.there

    def filled(self, origin: Hashable, index: int) -> None:
        """A launch has filled the place that it was given for this row."""
        entry = self._entries.get(origin)
        if entry is not None and entry.index == index:
            entry.there = True

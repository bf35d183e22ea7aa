"""A set of stop ids as bits of a row, merged by word, so that setting and clearing them touches few words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from shared.bitmask import Words


class StopBits(NamedTuple):
    """``words`` are (word index, bits) pairs."""

    words: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ids: Iterable[int]) -> StopBits:
        merged: dict[int, int] = {}
        for stop in ids:
            merged[stop >> 5] = merged.get(stop >> 5, 0) | (1 << (stop & 31))
        return cls(tuple(merged.items()))

    def clear(self, rows: Words) -> list[bool]:
        """Forbids the ids in rows [n, W]; for each row True if any of them was allowed."""
        allowed = [False] * len(rows)
        unsigned = rows.view(np.uint32)
        for word, bits in self.words:
            column = unsigned[:, word]
            found = column & bits
            if np.count_nonzero(found):
                column ^= found
                allowed = [bool(bit) or before for bit, before in zip(found.tolist(), allowed, strict=True)]
        return allowed

    def set(self, row: Words) -> None:
        """Allows the ids."""
        unsigned = row.view(np.uint32)
        for word, bits in self.words:
            unsigned[word] = int(unsigned[word]) | bits

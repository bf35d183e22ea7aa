"""The rows that grammar services have written into this worker's pool. The link's thread only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_worker.grammar_link.frame import Frame
from shared.bitmask import Words, num_words, pack_into
from shared.protocol import PoolWrite


class PooledRow:
    """``words`` int32 [W] of one generation of an index; they stay as they are when the index is written again."""

    __slots__ = ("words",)

    def __init__(self, words: Words) -> None:
        self.words = words


class RowPool:
    """int32 [rows, W] in host memory, untouched pages of it unmapped. The router has checked indices, generations and contents."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self.words: Words = np.zeros((num_rows, num_words(vocab_size)), dtype=np.int32)
        self._rows: dict[int, PooledRow] = {}

    def write(self, write: PoolWrite, frames: Sequence[Frame]) -> None:
        """Puts a row at its index. An answer that is kept for a retry may still refer to the one before: it keeps its words."""
        before, target = self._rows.get(write.index), self.words[write.index]
        if before is not None:
            before.words = before.words.copy()
        if write.ids:
            pack_into(target, np.frombuffer(write.ids, dtype="<i4"))
        else:
            target[:] = np.frombuffer(frames[write.frame].buffer, dtype="<i4")
        self._rows[write.index] = PooledRow(target)

    def read(self, index: int) -> PooledRow:
        """The row that is at an index now."""
        return self._rows[index]

"""One rank's part of the vocabulary: which columns of a row it holds and what they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.reference import RowStatus

_WORD = 32


@dataclass(frozen=True, slots=True)
class VocabularySlice:
    """Columns ``start`` .. ``start + width`` of rows of ``columns`` columns.

    Any start and width will do, 0 included; a slice need not begin at a mask word. ``d2t`` int32 [columns] on the device (or None)
    is the whole table on every rank, so that all ranks name tokens alike: column i stands for target id i + d2t[i], a mask bit is
    looked up by target id. Raises ValueError for a slice outside the row or a table of another length.
    """

    columns: int
    start: int
    width: int
    vocab_size: int
    d2t: Tensor | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    column: Tensor = field(init=False, repr=False)
    target: Tensor = field(init=False, repr=False)
    inside: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.start + self.width <= self.columns or self.vocab_size <= 0:
            raise ValueError(f"columns {self.start}..{self.start + self.width} of {self.columns}, {self.vocab_size} ids: no slice")
        if self.d2t is not None and (self.d2t.dtype != torch.int32 or self.d2t.shape != (self.columns,)):
            raise ValueError(f"d2t must be int32[{self.columns}], not {self.d2t.dtype}{list(self.d2t.shape)}")
        column = torch.arange(self.start, self.start + self.width, device=self.device)
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "target", self.token(column))
        object.__setattr__(self, "inside", (self.target >= 0) & (self.target < self.vocab_size))

    @classmethod
    def of_rank(
        cls, rank: int, ranks: int, columns: int, vocab_size: int, d2t: Tensor | None = None, device: torch.device | None = None
    ) -> VocabularySlice:
        """Slices as even as can be: the first columns % ranks of them hold one column more."""
        each, more = divmod(columns, ranks)
        start = rank * each + min(rank, more)
        width = each + int(rank < more)
        return cls(columns, start, width, vocab_size, d2t, device or torch.device("cpu"))

    def token(self, column: Tensor) -> Tensor:
        """Target ids of columns of the whole row."""
        return column if self.d2t is None else column + self.d2t[column]

    def owns(self, column: Tensor) -> Tensor:
        return (column >= self.start) & (column < self.start + self.width)

    def allowed(self, bitmask: Tensor | None, row_index: Tensor | None, status: Tensor) -> Tensor:
        """bool [R, width] by status int32 [R] and whole mask rows int32 [N, words]; a row without a mask allows nothing."""
        if bitmask is None:
            return self.inside & (status != RowStatus.GUIDED).unsqueeze(1)
        if row_index is not None:
            exists = (row_index >= 0) & (row_index < len(bitmask))
            bits = self._bits(bitmask[torch.where(exists, row_index, 0).long()]) & exists.unsqueeze(1)
        else:
            bits = self._bits(bitmask)
        return (bits | (status == RowStatus.UNGUIDED).unsqueeze(1)) & self.inside

    def _bits(self, words: Tensor) -> Tensor:
        """The mask bits of the slice's targets; those outside the vocabulary are whatever they are."""
        if self.d2t is not None:
            target = self.target.clamp(0, self.vocab_size - 1)
            return ((words[:, target >> 5] >> (target & 31).int()) & 1).bool()
        first, last = self.start // _WORD, -(-(self.start + self.width) // _WORD)
        part = words[:, first:last]
        part = torch.nn.functional.pad(part, (0, last - first - part.shape[1]))  # columns above the vocabulary have no words
        bits = (part.unsqueeze(2) >> torch.arange(_WORD, dtype=torch.int32, device=words.device)) & 1
        return bits.view(len(words), -1)[:, self.start - first * _WORD :][:, : self.width].bool()

"""Which columns of a logits row may be used, and the mask written into the logits.

Column i of a logits row stands for target id `bit_offset + i (+ d2t[i])`: bit_offset is the first id of a
tensor-parallel slice, d2t the offset table of a pruned vocabulary (i32, one entry a column, ascending targets).
A column is allowed iff its id lies in [0, vocab_size) and, in a guided row, its bit is set in the row's mask.
A guided row whose row_index lies outside the mask allows nothing; it is never treated as unguided.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.plain.rows import RowStatus

Columns = NDArray[np.int64]

_WORD = 32
_SPARSE = 4  # fewer than a quarter of the words non-zero: unpack those alone


@dataclass(slots=True)
class RowMasks:
    """The masks of R logits rows of `width` columns; checks shapes and dtypes (ValueError), then answers per row."""

    width: int
    vocab_size: int
    bit_offset: int
    words: NDArray[np.uint32] | None
    index: NDArray[np.int32]
    status: NDArray[np.int32]
    targets: Columns | None  # target id of each column where there is a d2t
    vocabulary: Columns  # columns whose target id exists, ascending

    @classmethod
    def of(
        cls,
        logits: Tensor,
        vocab_size: int,
        bitmask: Tensor | None,
        row_index: Tensor | None,
        row_status: Tensor | None,
        bit_offset: int = 0,
        d2t: Tensor | None = None,
    ) -> "RowMasks":
        if logits.ndim != 2 or logits.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"logits must be fp32, fp16 or bf16 [R, columns], not {logits.dtype}{list(logits.shape)}")
        if vocab_size <= 0 or bit_offset < 0:
            raise ValueError(f"vocab_size must be > 0 and bit_offset >= 0, not {vocab_size}, {bit_offset}")
        rows, width = logits.shape
        default = RowStatus.UNGUIDED if bitmask is None else RowStatus.GUIDED
        index = np.arange(rows, dtype=np.int32) if row_index is None else _rows_i32("row_index", row_index, rows)
        status = np.full(rows, default, np.int32) if row_status is None else _rows_i32("row_status", row_status, rows)
        words, targets = _mask_words(bitmask, vocab_size), _targets(width, bit_offset, d2t)
        vocabulary = _in_vocabulary(width, vocab_size, bit_offset, targets)
        return cls(width, vocab_size, bit_offset, words, index, status, targets, vocabulary)

    def allowed(self, row: int) -> Columns:
        """Allowed columns of a row that is not held, ascending."""
        if self.status[row] == RowStatus.UNGUIDED:
            return self.vocabulary
        if self.words is None:
            raise ValueError(f"row {row} is guided, but there is no bitmask")
        if not 0 <= self.index[row] < len(self.words):
            return np.empty(0, dtype=np.int64)
        return self._guided(self.words[self.index[row]])

    def held(self, row: int) -> bool:
        return int(self.status[row]) not in (RowStatus.UNGUIDED, RowStatus.GUIDED)

    def tokens(self, columns: Columns) -> Columns:
        """Target ids of columns."""
        return columns + self.bit_offset if self.targets is None else self.targets[columns]

    def _guided(self, words: NDArray[np.uint32]) -> Columns:
        if self.targets is None:
            ids = _set_bits(words)
            ends = (self.bit_offset, min(self.vocab_size, self.bit_offset + self.width))
            low, high = np.searchsorted(ids, ends)
            return ids[low:high] - self.bit_offset
        return self.vocabulary[_bits(words)[self.targets[self.vocabulary]]]


def apply_bitmask(
    logits: Tensor,
    bitmask: Tensor,
    row_index: Tensor | None,
    row_status: Tensor | None,
    vocab_size: int,
    bit_offset: int = 0,
    d2t: Tensor | None = None,
) -> None:
    """In place: exactly -inf in every column that is not allowed; unguided and held rows are not touched."""
    masks = RowMasks.of(logits, vocab_size, bitmask, row_index, row_status, bit_offset, d2t)
    for row in np.flatnonzero(masks.status == RowStatus.GUIDED):
        banned = torch.ones(masks.width, dtype=torch.bool)
        banned[torch.from_numpy(masks.allowed(int(row)))] = False
        logits[int(row)].masked_fill_(banned, float("-inf"))


def _rows_i32(name: str, value: Tensor, rows: int) -> NDArray[np.int32]:
    if value.dtype != torch.int32 or value.ndim != 1 or value.numel() < rows:
        raise ValueError(f"{name} must be int32[>={rows}], not {value.dtype}{list(value.shape)}")
    result: NDArray[np.int32] = value[:rows].numpy()
    return result


def _mask_words(bitmask: Tensor | None, vocab_size: int) -> NDArray[np.uint32] | None:
    if bitmask is None:
        return None
    need = -(-vocab_size // _WORD)
    if bitmask.dtype != torch.int32 or bitmask.ndim != 2 or bitmask.shape[1] < need:
        raise ValueError(f"bitmask must be int32[N, >={need}], not {bitmask.dtype}{list(bitmask.shape)}")
    words: NDArray[np.uint32] = np.ascontiguousarray(bitmask.numpy()).view(np.uint32)
    return words


def _targets(width: int, bit_offset: int, d2t: Tensor | None) -> Columns | None:
    if d2t is None:
        return None
    if d2t.dtype != torch.int32 or d2t.ndim != 1 or d2t.numel() != width:
        raise ValueError(f"d2t must be int32[{width}], not {d2t.dtype}{list(d2t.shape)}")
    targets: Columns = np.arange(bit_offset, bit_offset + width, dtype=np.int64) + d2t.numpy()
    return targets


def _in_vocabulary(width: int, vocab_size: int, bit_offset: int, targets: Columns | None) -> Columns:
    if targets is None:
        return np.arange(max(0, min(width, vocab_size - bit_offset)))
    return np.flatnonzero((targets >= 0) & (targets < vocab_size))


def _set_bits(words: NDArray[np.uint32]) -> Columns:
    live = np.flatnonzero(words)
    if live.size * _SPARSE > words.size:
        return np.flatnonzero(_bits(words))
    where, bit = np.nonzero(_bits(words[live]).reshape(-1, _WORD))
    return live[where] * _WORD + bit


def _bits(words: NDArray[np.uint32]) -> NDArray[np.bool_]:
    return np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_)

"""Repetition, presence and frequency penalties, in fp32, each operation rounded by itself (no fused multiply-add).

A token that was seen (prompt or output): l < 0 ? l * repetition : l / repetition. A token that was counted (output,
and the part of the prompt that is not ignored): then minus (presence + frequency * count). Finite results are clamped
to the largest finite value of the logits' dtype; -inf, +inf and NaN are returned as they were.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.plain.masks import Columns
from kernels.plain.weights import F32


@dataclass(slots=True)
class Penalties:
    """Parameters of R rows and the occurrence state of S slots.

    repetition, presence, frequency f32[R] (neutral 1, 0, 0); slot i32[R] (negative: no penalties);
    counts int32 or uint16 [S, V]; seen int32[S, ceil(V/32)], bit 1 = in the ignored prompt prefix (repetition only);
    prefix i32[R, P], the drafts before this row on its own path, padded -1: counted as if they were output.
    """

    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    slot: Tensor
    counts: Tensor
    seen: Tensor
    prefix: Tensor | None = None

    def apply(self, row: int, tokens: Columns, x: F32, limit: float) -> F32:
        """Penalised copy of x, the logits of `tokens` (each in [0, V))."""
        slot = int(self.slot[row])
        if slot < 0:
            return x
        counts = self._counts(row, slot)
        seen = np.unpackbits(self.seen[slot].numpy().view(np.uint8), bitorder="little")[tokens] != 0
        repetition, presence, frequency = (np.float32(t[row]) for t in (self.repetition, self.presence, self.frequency))
        return penalise(x, seen, counts[tokens], repetition, presence, frequency, np.float32(limit))

    def _counts(self, row: int, slot: int) -> NDArray[np.int64]:
        counts = self.counts[slot].numpy().astype(np.int64)
        if self.prefix is not None:
            path = self.prefix[row].numpy()
            np.add.at(counts, path[(path >= 0) & (path < counts.size)], 1)
        return counts


def penalise(
    x: F32,
    seen: NDArray[np.bool_],
    counts: NDArray[np.int64],
    repetition: np.float32,
    presence: np.float32,
    frequency: np.float32,
    limit: np.float32,
) -> F32:
    """The formula; `seen` need not cover the counted tokens."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.where(x < 0, x * repetition, x / repetition)
        repeated = np.where(seen | (counts > 0), scaled, x)
        lowered = repeated - (presence + frequency * counts.astype(np.float32))
        result = np.where(counts > 0, lowered, repeated)
    bounded: F32 = np.where(np.isfinite(x), np.clip(result, -limit, limit), x).astype(np.float32)
    return bounded


def penalties(logits: Tensor, state: Penalties, *, vocab_size: int) -> None:
    """In place on logits [R, columns], for engines that sample elsewhere; columns at and above V are not touched."""
    width = min(vocab_size, logits.shape[1])
    tokens, limit = np.arange(width), torch.finfo(logits.dtype).max
    for row in range(logits.shape[0]):
        x = logits[row, :width].to(torch.float32).numpy().copy()
        logits[row, :width] = torch.from_numpy(state.apply(row, tokens, x, limit)).to(logits.dtype)

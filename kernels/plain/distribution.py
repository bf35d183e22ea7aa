"""A row's distribution as integers over target ids, compared and subtracted without rounding."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.plain.keep import Kept
from kernels.plain.masks import Columns, RowMasks
from kernels.plain.weights import high64

Integers = NDArray[Any]  # object array of Python ints: residual weights need more than 64 bits


@dataclass(frozen=True, slots=True)
class Distribution:
    """p(ids[i]) = weights[i] / total; ids in column order, which is ascending where d2t is."""

    ids: Columns
    weights: Integers
    total: int

    @classmethod
    def of(cls, kept: Kept, masks: RowMasks) -> "Distribution":
        return cls(masks.tokens(kept.columns), kept.masses.astype(object), kept.total)

    @classmethod
    def empty(cls) -> "Distribution":
        return cls(np.empty(0, np.int64), np.empty(0, object), 1)

    def weight(self, token: int) -> int:
        return int(sum(self.weights[self.ids == token]))

    def accepts(self, q: "Distribution", token: int, bits: int) -> bool:
        """u * q(token) < p(token), u = bits / 2^64: strict, so that p(token) = 0 always rejects."""
        return bits * q.weight(token) * self.total < self.weight(token) * q.total << 64

    def residual(self, q: "Distribution") -> "Distribution":
        """max(p - q, 0), not normalised; p itself where that has no mass."""
        left = np.maximum(self.weights * q.total - q.weights_at(self.ids) * self.total, 0)
        total = int(left.sum())
        return Distribution(self.ids, left, total) if total else self

    def weights_at(self, ids: Columns) -> Integers:
        """Weights of other ids, 0 where not in this distribution."""
        lookup = dict(zip(self.ids.tolist(), self.weights, strict=True))
        return np.array([lookup.get(i, 0) for i in ids.tolist()], dtype=object)

    def draw(self, bits: int) -> int:
        """First id whose running weight exceeds the share of the total that the bits point at."""
        target = high64(bits, self.total)
        running = np.cumsum(self.weights)
        return int(self.ids[int(np.argmax(running > target))])

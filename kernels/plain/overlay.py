"""Per-row changes to few tokens inside the sampling pass: bias, then penalties, then bans.

All ids are target ids; ids outside [0, V) are ignored. Lists are in compressed rows: row r owns entries
start[r] .. start[r + 1]. Results that overflow are clamped to +-FLT_MAX; -inf, +inf and NaN inputs stay as they are.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.plain.masks import Columns
from kernels.plain.penalties import Penalties
from kernels.plain.weights import F32

_FLT_MAX = np.finfo(np.float32).max


@dataclass(slots=True)
class TokenList:
    """Ids of each row: start i32[R + 1], ids i32[n], values f32[n] (bias only). Ids of one row are distinct."""

    start: Tensor
    ids: Tensor
    values: Tensor | None = None

    @classmethod
    def of(cls, rows: list[list[int]], values: list[list[float]] | None = None) -> "TokenList":
        start = np.cumsum([0, *(len(r) for r in rows)])
        flat = None if values is None else torch.tensor([v for r in values for v in r], dtype=torch.float32)
        ids = torch.tensor([i for r in rows for i in r], dtype=torch.int32)
        return cls(torch.from_numpy(start.astype(np.int32)), ids, flat)

    def span(self, row: int) -> slice:
        return slice(int(self.start[row]), int(self.start[row + 1]))


@dataclass(slots=True)
class Overlay:
    """Bias (added in fp32), penalties (`Penalties`) and bans (-inf) of R rows; any of them may be absent."""

    bias: TokenList | None = None
    penalties: Penalties | None = None
    bans: TokenList | None = None

    def adjust(self, row: int, tokens: Columns, x: F32) -> F32:
        """Adjusted copy of x, the logits of `tokens`."""
        x = x.copy()
        if self.bias is not None and self.bias.values is not None:
            span = self.bias.span(row)
            _add_bias(x, tokens, self.bias.ids[span].numpy(), self.bias.values[span].numpy())
        if self.penalties is not None:
            x = self.penalties.apply(row, tokens, x, float(_FLT_MAX))
        if self.bans is not None:
            x[_place(tokens, self.bans.ids[self.bans.span(row)].numpy()) >= 0] = -np.inf
        return x


def _place(tokens: Columns, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Where in the list each token stands, -1 for most; linear in both lengths, whatever their order."""
    place = np.full(int(tokens.max(initial=-1)) + 1, -1, dtype=np.int32)
    inside = (ids >= 0) & (ids < place.size)
    place[ids[inside]] = np.flatnonzero(inside)
    return place[tokens]


def _add_bias(x: F32, tokens: Columns, ids: NDArray[np.int32], values: F32) -> None:
    place = _place(tokens, ids)
    at = np.flatnonzero(place >= 0)
    x[at] = _add(x[at], values[place[at]])


def _add(x: F32, value: F32) -> F32:
    with np.errstate(over="ignore", invalid="ignore"):
        total = x + value
    bounded = np.where(np.isfinite(value), np.clip(total, -_FLT_MAX, _FLT_MAX), total)
    return np.where(np.isfinite(x), bounded, x)

"""The total order of a row in one int64 a column, so that a filter is one number and ranks can compare what they hold.

code = (complement of the ordered bits of the fp32 logit) << 32 | column: ascending codes are logits descending, -0 equal
to +0, then columns ascending. Columns are those of the whole row, whatever slice they lie in. NaN has no code.
"""

from __future__ import annotations

import torch
from torch import Tensor

NOTHING = (1 << 63) - 1
"""The code of no column; as a cut it keeps all."""
COLUMN_MASK = 0xFFFFFFFF
_MAGNITUDE = 0x7FFFFFFF


def keys(x: Tensor) -> Tensor:
    """int64, ascending where fp32 x descends; equal where x is equal."""
    bits = (x + 0.0).view(torch.int32)
    return (~(bits ^ ((bits >> 31) & _MAGNITUDE))).long()


def codes(x: Tensor, columns: Tensor) -> Tensor:
    """Codes of logits fp32 and their columns (int64, broadcast)."""
    return (keys(x) << 32) | columns


def value(code: Tensor) -> Tensor:
    """The fp32 logit of a code (never -0)."""
    ordered = ~(code >> 32).int()
    return (ordered ^ ((ordered >> 31) & _MAGNITUDE)).view(torch.float32)


def column(code: Tensor) -> Tensor:
    return code & COLUMN_MASK


def padded(code: Tensor, n: int) -> Tensor:
    """[R, n]: codes [R, m <= n] with NOTHING behind them."""
    return torch.cat([code, code.new_full((len(code), n - code.shape[1]), NOTHING)], 1)


def with_ties(code: Tensor) -> Tensor:
    """The last code that has the same logit."""
    return code | COLUMN_MASK

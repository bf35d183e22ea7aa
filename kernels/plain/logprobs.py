"""Log-probabilities of the sampled token, its rank, and the top n.

raw: log-softmax of the untouched logits over all columns of the vocabulary (NaN left out); mask, overlay and
filters play no part. processed: of the kept, renormalised distribution; a greedy row has no temperature and no
filters, so it is the softmax at T = 1 over its allowed adjusted logits. Rank: 1 + how many are strictly more likely.
Top n: logit descending, column ascending. With a +inf in the row the lowest such column has 0, all others -inf.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.plain import weights
from kernels.plain.keep import Filters, Kept, keep
from kernels.plain.live import LiveRow, take
from kernels.plain.masks import Columns, RowMasks
from kernels.plain.rows import SampleResult
from kernels.plain.weights import F32, F64

_LN2 = float(np.log(2.0))


@dataclass(slots=True)
class Table:
    """One row: columns ascending, the logits that order them, their log-probabilities (float64)."""

    columns: Columns
    x: F32
    logprob: F64

    def of(self, column: int) -> tuple[float, int]:
        """(log-probability, rank); a column outside the table is less likely than all of it."""
        at = int(np.searchsorted(self.columns, column))
        if at == self.columns.size or self.columns[at] != column:
            return -np.inf, self.columns.size + 1
        return float(self.logprob[at]), 1 + int((self.x > self.x[at]).sum())

    def top(self, n: int) -> tuple[Columns, F64]:
        if n == 0:
            return self.columns[:0], self.logprob[:0]
        best = np.arange(self.x.size)
        if n < self.x.size:
            best = np.flatnonzero(self.x >= np.partition(self.x, self.x.size - n)[self.x.size - n])
        order = best[np.argsort(-self.x[best], kind="stable")[:n]]
        return self.columns[order], self.logprob[order]


@dataclass(slots=True)
class LogprobOutput:
    """The four outputs of R rows as they fill up; rows without a token keep -inf, rank 0 and id -1."""

    mode: Literal["raw", "processed"]
    logprob: F32
    rank: NDArray[np.int32]
    top_ids: NDArray[np.int32]
    top_logprobs: F32

    @classmethod
    def of(cls, mode: Literal["raw", "processed"], rows: int, n: int) -> "LogprobOutput":
        return cls(
            mode,
            np.full(rows, -np.inf, np.float32),
            np.zeros(rows, np.int32),
            np.full((rows, n), -1, np.int32),
            np.full((rows, n), -np.inf, np.float32),
        )

    def fill(self, i: int, logits: Tensor, live: LiveRow, column: int, masks: RowMasks) -> None:
        if live.kept is None:
            return
        table = _raw(logits, masks) if self.mode == "raw" else _processed(live.columns, live.x, live.kept)
        self.logprob[i], self.rank[i] = table.of(column)
        columns, values = table.top(self.top_ids.shape[1])
        self.top_ids[i, : columns.size], self.top_logprobs[i, : columns.size] = masks.tokens(columns), values

    def attach(self, result: SampleResult) -> None:
        result.logprob, result.rank = torch.from_numpy(self.logprob), torch.from_numpy(self.rank)
        result.top_ids, result.top_logprobs = torch.from_numpy(self.top_ids), torch.from_numpy(self.top_logprobs)


def _raw(logits: Tensor, masks: RowMasks) -> Table:
    columns = masks.vocabulary
    x = take(logits, columns)
    usable = ~np.isnan(x)
    columns, x = columns[usable], x[usable]
    best = int(np.argmax(x))
    if np.isinf(x[best]):
        return Table(columns, x, _certain(x.size, best))
    shifted = x.astype(np.float64) - float(x[best])
    return Table(columns, x, shifted - np.log(np.exp(shifted).sum()))


def _processed(columns: Columns, x: F32, kept: Kept) -> Table:
    if np.isposinf(kept.xmax):
        return Table(kept.columns, np.zeros(1, np.float32), np.zeros(1))
    if kept.temperature == 0:
        kept = keep(columns, x, Filters(temperature=1.0))
    x = x[np.searchsorted(columns, kept.columns)]
    exponent = weights.exponents(x, np.float32(kept.xmax), np.float32(kept.temperature)).astype(np.float64)
    return Table(kept.columns, x, exponent * _LN2 - np.log(kept.total / weights.UNIT))


def _certain(size: int, best: int) -> F64:
    table = np.full(size, -np.inf)
    table[best] = 0.0
    return table

"""The kept set of a row and the draw from it.

Total order of a row: adjusted fp32 logit before temperature descending (-0 equals +0), column ascending. Every filter
keeps a prefix of it, so the set is known by its length: min_p, then top_k, then top_p on the mass that is left.
The draw walks the kept columns in ascending order, not in that order.
"""

from dataclasses import dataclass

import numpy as np

from kernels.plain import weights
from kernels.plain.masks import Columns
from kernels.plain.weights import F32, UNIT, Masses


@dataclass(frozen=True, slots=True)
class Filters:
    """One row's parameters, as in `SampleRows`; `keep_ties`: top_k and top_p keep all that equal their last."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    keep_ties: bool = False

    @property
    def greedy(self) -> bool:
        return not self.temperature > 0 or self.top_k == 1 or self.top_p <= 0

    @property
    def neutral(self) -> bool:
        return self.top_k <= 0 and not self.top_p < 1 and not self.min_p > 0


@dataclass(frozen=True, slots=True)
class Kept:
    """Kept columns ascending, their masses and the sum; `threshold` and `tie_column` say the same (RowDescriptor)."""

    columns: Columns
    masses: Masses
    total: int
    threshold: float
    tie_column: int
    xmax: float
    temperature: float


def keep(columns: Columns, x: F32, filters: Filters) -> Kept:
    """The kept set of a live row: allowed columns ascending and their adjusted logits, no NaN, none -inf, not empty."""
    best = int(np.argmax(x))
    if filters.greedy or np.isposinf(x[best]):
        return one_hot(int(columns[best]), float(x[best]))
    xmax, temperature = x[best], np.float32(filters.temperature)
    threshold, tie_column = -np.inf, -1
    if not filters.neutral:
        threshold, num_kept = _prefix(x, xmax, filters)
        columns, x, tie_column = _cut(columns, x, threshold, num_kept)
    mass = weights.masses(x, xmax, temperature)
    return Kept(columns, mass, weights.total_mass(mass), float(threshold), tie_column, float(xmax), float(temperature))


def one_hot(column: int, x: float) -> Kept:
    return Kept(np.array([column]), np.array([UNIT], dtype=np.uint64), UNIT, x, column, x, 0.0)


def draw(kept: Kept, bits: int) -> int:
    """First kept column, ascending, whose running mass exceeds the share of the total that 64 random bits point at."""
    return int(draw_many(kept, np.array([bits], dtype=np.uint64))[0])


def draw_many(kept: Kept, bits: Masses) -> Columns:
    """`draw` for many bits."""
    targets = weights.high64_many(bits, kept.total)
    return kept.columns[np.searchsorted(np.cumsum(kept.masses), targets, side="right")]


def _prefix(x: F32, xmax: np.float32, filters: Filters) -> tuple[float, int]:
    """The last kept logit and how many are kept."""
    if filters.min_p > 0:
        x = x[x >= weights.min_p_threshold(xmax, np.float32(filters.temperature), np.float32(filters.min_p))]
    if 0 < filters.top_k < x.size:
        if filters.keep_ties:
            x = x[x >= np.partition(x, x.size - filters.top_k)[x.size - filters.top_k]]
        else:
            x = np.partition(x, x.size - filters.top_k)[x.size - filters.top_k :]
    if not filters.top_p < 1:
        return float(x.min()), x.size
    x = np.sort(x)[::-1]
    running = np.cumsum(weights.masses(x, xmax, np.float32(filters.temperature)))
    wanted = weights.share(filters.top_p, int(running[-1]))
    num_kept = int(np.searchsorted(running, np.uint64(wanted), side="left")) + 1
    if filters.keep_ties:
        num_kept = int(np.searchsorted(-x, -x[num_kept - 1], side="right"))
    return float(x[num_kept - 1]), num_kept


def _cut(columns: Columns, x: F32, threshold: float, num_kept: int) -> tuple[Columns, F32, int]:
    """The first `num_kept` in the total order: all above the threshold, then the lowest columns at it."""
    limit = np.float32(threshold)
    at_least = np.flatnonzero(x >= limit)
    ties = at_least[x[at_least] == limit]
    kept_ties = ties[: ties.size - (at_least.size - num_kept)]
    last_tie = kept_ties[-1]
    chosen = at_least[(x[at_least] > limit) | (at_least <= last_tie)]
    return columns[chosen], x[chosen], int(columns[last_tie])

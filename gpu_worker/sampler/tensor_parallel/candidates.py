"""Rows that a few candidates of each rank settle: top_k up to the length of a list, top_p where the nucleus lies inside it.

Every rank holds the same merged list and works out the same cut and the same draw; nothing more is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.sampler.tensor_parallel import order, weights
from gpu_worker.sampler.tensor_parallel.part import RowFacts
from gpu_worker.sampler.tensor_parallel.plan import RowPlan


@dataclass(frozen=True, slots=True)
class ListResult:
    """``column`` int64 [R]: the drawn column; ``cut`` [R]: last kept code; ``total`` [R]: kept mass; ``settled`` bool [R]: the list
    held all that is kept; elsewhere the other three mean nothing."""

    column: Tensor
    cut: Tensor
    total: Tensor
    settled: Tensor


@dataclass(frozen=True, slots=True)
class CandidateList:
    """Codes [R, L] of the merged candidates, ascending; ``end`` [R]: up to this code no column of the row is missing."""

    code: Tensor
    end: Tensor

    @classmethod
    def merge(cls, gathered: Tensor) -> CandidateList:
        """From [ranks, R, C], each rank's own first C columns: beyond the first list that was full, columns may be missing."""
        ranks, rows, count = gathered.shape
        end = gathered[:, :, -1].amin(0)
        return cls(gathered.permute(1, 0, 2).reshape(rows, ranks * count).sort(1).values, end)

    def settle(self, facts: RowFacts, plan: RowPlan, mass_above: Tensor | None, *, keep_ties: bool) -> ListResult:
        """``mass_above`` [R]: mass of the whole row after min_p, for rows with top_p and no top_k."""
        x = order.value(self.code)
        usable = (self.code != order.NOTHING) & (x >= facts.least.unsqueeze(1))
        limit = self._top_k(plan, keep_ties)
        inside = usable & (self.code <= limit.unsqueeze(1))
        mass = weights.masses(x, facts.xmax.unsqueeze(1), plan.scale.unsqueeze(1)) * inside
        total = mass.sum(1)
        if mass_above is not None:
            total = torch.where(plan.top_k > 0, total, mass_above)
        nucleus, found = self._top_p(mass, weights.share(plan.mantissa, plan.exponent, total), keep_ties)
        has_p = plan.mantissa > 0
        cut = torch.where(has_p, torch.minimum(nucleus, limit), limit)
        kept = inside & (self.code <= cut.unsqueeze(1))
        column, total = _draw(self.code, mass * kept, kept, plan.bits)
        return ListResult(column, torch.minimum(cut, facts.least_cut()), total, self._settled(limit, cut, has_p, found, keep_ties))

    def _top_k(self, plan: RowPlan, keep_ties: bool) -> Tensor:
        at = (plan.top_k - 1).clamp(0, self.code.shape[1] - 1).unsqueeze(1)
        last = self.code.gather(1, at).squeeze(1)
        return torch.where(plan.top_k > 0, order.with_ties(last) if keep_ties else last, order.NOTHING)

    def _top_p(self, mass: Tensor, wanted: Tensor, keep_ties: bool) -> tuple[Tensor, Tensor]:
        """Where the running mass first reaches the share, and whether it does within the list."""
        at = (mass.cumsum(1) < wanted.unsqueeze(1)).sum(1)
        found = at < mass.shape[1]
        last = self.code.gather(1, at.clamp(max=mass.shape[1] - 1).unsqueeze(1)).squeeze(1)
        return (order.with_ties(last) if keep_ties else last), found

    def _settled(self, limit: Tensor, cut: Tensor, has_p: Tensor, found: Tensor, keep_ties: bool) -> Tensor:
        whole = self.end == order.NOTHING
        reached = whole | (cut <= self.end)
        if keep_ties:  # an equal logit may stand behind the end; a share of a mass that misses some is no share
            reached = whole | ((cut < self.end) & ((limit < self.end) | (limit == order.NOTHING)))
        return reached & (found | ~has_p)


def _draw(code: Tensor, mass: Tensor, kept: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
    """First kept column, ascending, whose running mass exceeds the share that the bits point at; and the kept mass."""
    by_column = torch.where(kept, order.column(code), order.NOTHING).sort(1)
    running = mass.gather(1, by_column.indices).cumsum(1)
    total = running[:, -1]
    at = (running <= weights.high64(bits, total).unsqueeze(1)).sum(1, keepdim=True).clamp(max=code.shape[1] - 1)
    return by_column.values.gather(1, at).squeeze(1), total

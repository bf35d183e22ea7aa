"""The cut of a row whose kept set no list holds: each rank sorts its own part once, then all narrow one interval of codes together.

A round asks 63 places at once: how many columns, or how much mass, lie up to there over all ranks; 64 bits of code take 9 rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.sampler.tensor_parallel import order, weights
from gpu_worker.sampler.tensor_parallel.group import Group
from gpu_worker.sampler.tensor_parallel.part import Part, RowFacts
from gpu_worker.sampler.tensor_parallel.plan import RowPlan

_WAYS = 64
_KEY_LOW, _KEY_HIGH = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class SortedPart:
    """Usable columns of R rows in the total order: ``code`` [R, width] ascending, ``running`` mass [R, width]; ``last`` [R]: codes
    above it do not count (min_p)."""

    code: Tensor
    running: Tensor
    last: Tensor
    group: Group

    @classmethod
    def of(cls, part: Part, mass: Tensor, last: Tensor, group: Group) -> SortedPart:
        by_code = part.codes().sort(1)
        return cls(by_code.values, mass.gather(1, by_code.indices).cumsum(1), last.clamp(max=order.NOTHING - 1), group)

    def count(self, upto: Tensor) -> Tensor:
        """[R, n]: columns of all ranks up to these codes."""
        return self.group.total(self._index(upto))

    def mass(self, upto: Tensor) -> Tensor:
        """[R, n]: mass of all ranks up to these codes."""
        index = self._index(upto)
        found = self.running.gather(1, (index - 1).clamp(min=0))
        return self.group.total(torch.where(index > 0, found, 0))

    def narrowed(self, last: Tensor) -> SortedPart:
        return SortedPart(self.code, self.running, torch.minimum(self.last, last), self.group)

    def _index(self, upto: Tensor) -> Tensor:
        return torch.searchsorted(self.code, torch.minimum(upto, self.last.unsqueeze(1)).contiguous(), right=True)


def find_cut(part: Part, mass: Tensor, facts: RowFacts, plan: RowPlan, group: Group, columns: int, *, keep_ties: bool) -> Tensor:
    """[R]: the last kept code of rows with top_k, top_p or both; plan and facts are those of the part's rows."""
    ordered = SortedPart.of(part, mass, facts.least_cut(), group)
    if bool((plan.top_k > 0).any()):
        cut = _smallest_code(ordered.count, plan.top_k, columns)
        cut = order.with_ties(cut) if keep_ties else cut
        ordered = ordered.narrowed(torch.where(plan.top_k > 0, cut, order.NOTHING))
    whole = ordered.mass(ordered.last.unsqueeze(1)).squeeze(1)
    cut = _smallest_code(ordered.mass, weights.share(plan.mantissa, plan.exponent, whole), columns)
    cut = order.with_ties(cut) if keep_ties else cut
    return torch.where(plan.mantissa > 0, torch.minimum(cut, ordered.last), ordered.last)


def _smallest_code(upto: Callable[[Tensor], Tensor], wanted: Tensor, columns: int) -> Tensor:
    """[R]: the smallest code up to which at least ``wanted`` lies; the largest one where there is not so much."""
    low, high = torch.full_like(wanted, _KEY_LOW), torch.full_like(wanted, _KEY_HIGH)
    key = _smallest(lambda keys: upto(order.with_ties(keys << 32)), wanted, low, high, _KEY_HIGH - _KEY_LOW)
    base = (key << 32).unsqueeze(1)
    column = _smallest(lambda c: upto(base | c), wanted, torch.zeros_like(key), torch.full_like(key, columns - 1), columns)
    return base.squeeze(1) | column


def _smallest(upto: Callable[[Tensor], Tensor], wanted: Tensor, low: Tensor, high: Tensor, widest: int) -> Tensor:
    """The smallest value in low .. high at which ``upto`` reaches ``wanted``; high is taken to reach it."""
    steps = torch.arange(1, _WAYS, device=wanted.device)
    while widest > 0:
        step = ((high - low + _WAYS) // _WAYS).unsqueeze(1)
        places = torch.minimum(low.unsqueeze(1) + step * steps - 1, high.unsqueeze(1))
        below = (upto(places) < wanted.unsqueeze(1)).sum(1)
        low = torch.minimum(low + step.squeeze(1) * below, high)
        high = torch.minimum(low + step.squeeze(1) - 1, high)
        widest //= _WAYS
    return low

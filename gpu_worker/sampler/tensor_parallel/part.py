"""This rank's part of a batch after mask and overlay, and what all ranks know of its rows before any filter."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from gpu_worker.sampler.tensor_parallel import order, weights
from gpu_worker.sampler.tensor_parallel.group import Group
from gpu_worker.sampler.tensor_parallel.plan import RowPlan
from kernels.reference import RowStatus, SampleStatus


@dataclass(frozen=True, slots=True)
class Part:
    """``x`` fp32 [R, width >= 1]: adjusted logits, -inf where not usable; ``column`` int64 [width]: columns of the whole row."""

    x: Tensor
    column: Tensor

    @classmethod
    def of(cls, x: Tensor, allowed: Tensor, column: Tensor) -> tuple[Part, Tensor]:
        """The part and, per row, whether an allowed logit is NaN. A slice of no columns becomes one banned column."""
        if x.shape[1] == 0:
            return cls(x.new_full((len(x), 1), -torch.inf), column.new_full((1,), -1)), x.new_zeros(len(x), dtype=torch.bool)
        unknown = x.isnan() & allowed
        return cls(torch.where(allowed & ~unknown, x, -torch.inf), column), unknown.any(1)

    def best(self) -> Tensor:
        """Code of each row's first column in the total order, NOTHING where none is usable."""
        at = self.x.argmax(1, keepdim=True)  # the first of equals
        x = self.x.gather(1, at).squeeze(1)
        return torch.where(x > -torch.inf, order.codes(x, self.column[at.squeeze(1)]), order.NOTHING)

    def codes(self) -> Tensor:
        """[R, width], NOTHING where not usable."""
        return torch.where(self.x > -torch.inf, order.codes(self.x, self.column), order.NOTHING)

    def first(self, n: int) -> Tensor:
        """The codes of each row's first n columns in the total order, ascending, padded NOTHING."""
        codes = self.codes()
        found = codes.topk(min(n, codes.shape[1]), dim=1, largest=False, sorted=True).values
        return order.padded(found, n)

    def take(self, rows: Tensor) -> Part:
        return Part(self.x[rows], self.column)


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What every rank knows of R rows after one maximum: ``status`` int64 [R] (SampleStatus), ``best`` [R]: code of the first
    column of the whole row (NOTHING: dead); ``xmax`` fp32 [R]: its logit, 0 where not finite; ``least`` fp32 [R]: lowest logit
    that min_p keeps; ``one_hot`` bool [R]: greedy rows and rows with +inf, whose token is the best column; ``live`` bool [R]."""

    status: Tensor
    best: Tensor
    xmax: Tensor
    least: Tensor
    one_hot: Tensor
    live: Tensor

    @classmethod
    def agree(cls, part: Part, has_nan: Tensor, row_status: Tensor, launch: int, plan: RowPlan, group: Group) -> RowFacts:
        """One rank's HOLD holds the row on all of them; ranks that are not at the same launch hold every row that is guided."""
        held = (row_status != RowStatus.UNGUIDED) & (row_status != RowStatus.GUIDED)
        flags = held.long() * SampleStatus.HELD | has_nan.long() * SampleStatus.NAN
        launches = torch.tensor([launch, -launch], device=flags.device).unsqueeze(1).expand(2, len(flags))
        said = torch.stack([~part.best(), flags & SampleStatus.HELD, flags & SampleStatus.NAN, *launches])
        best, held_bit, nan_bit, last, first = group.maximum(said)
        best = ~best
        held = (held_bit != 0) | ((last != -first) & (row_status != RowStatus.UNGUIDED))
        return cls._of(best, held, nan_bit, plan)

    @classmethod
    def _of(cls, best: Tensor, held: Tensor, nan_bit: Tensor, plan: RowPlan) -> RowFacts:
        dead = best == order.NOTHING
        xmax = order.value(best)
        infinite = ~dead & (xmax == torch.inf)
        status = nan_bit | dead.long() * SampleStatus.DEAD | infinite.long() * SampleStatus.POS_INF
        xmax = torch.where(dead | infinite, 0.0, xmax)
        least = weights.min_p_threshold(xmax, plan.temperature, plan.log_min_p)
        status = torch.where(held, int(SampleStatus.HELD), status)
        return cls(status, best, xmax, least, plan.greedy | infinite, ~held & ~dead)

    def take(self, rows: Tensor) -> RowFacts:
        return RowFacts(*(getattr(self, field.name)[rows] for field in fields(self)))

    def least_cut(self) -> Tensor:
        """[R]: the last code that min_p lets through."""
        return order.with_ties(order.keys(self.least) << 32)

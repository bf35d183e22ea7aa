"""Log-probabilities of rows whose columns lie on several ranks; the meaning is that of the reference's.

Sums are integers in two words (2^-44, then 2^-88), so that they are the same for any number of ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpu_worker.sampler.tensor_parallel import order, weights
from gpu_worker.sampler.tensor_parallel.group import Group
from gpu_worker.sampler.tensor_parallel.part import Part, RowFacts
from gpu_worker.sampler.tensor_parallel.plan import RowPlan

LogprobMode = Literal["raw", "processed"]
_UNIT = float(1 << weights.UNIT_BITS)
_LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """logprob fp32 [R], rank int32 [R], top columns int64 [R, n] padded -1, top_logprobs fp32 [R, n] padded -inf."""

    logprob: Tensor
    rank: Tensor
    top_columns: Tensor
    top_logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Table:
    """What the log-probabilities of R rows are made of: ``x`` fp32 [R, width] orders them, ``code`` [R, width] names their columns
    (NOTHING: not in the table), ``weight`` int64 [R, 2]: this rank's share of the sum, in two words."""

    x: Tensor
    code: Tensor
    weight: Tensor
    column: Tensor

    def tell(self, column: Tensor, count: int, group: Group) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Sum [R, 2], logit of the token [R], how many stand before it [R], the first ``count`` codes [R, count]."""
        key = torch.where(self.column == column.unsqueeze(1), order.keys(self.x), 0).sum(1, keepdim=True)
        *words, key = group.total(torch.cat([self.weight, key], 1)).unbind(1)
        x = order.value(key << 32)
        before = ((self.x > x.unsqueeze(1)) & (self.code != order.NOTHING)).sum(1, keepdim=True)
        first = self.code.topk(min(count, self.code.shape[1]), dim=1, largest=False).values
        told = group.gather(torch.cat([before, order.padded(first, count)], 1))
        merged = told[:, :, 1:].permute(1, 0, 2).reshape(len(x), -1).sort(1).values[:, :count]
        return torch.stack(words, 1), x, told[:, :, 0].sum(0), merged


def raw(logits: Tensor, known: Tensor, column: Tensor, token: Tensor, n: int, live: Tensor, group: Group) -> Logprobs:
    """Of the untouched logits fp32 [R, width] over the columns ``known`` [width] (those of the vocabulary); NaN is left out."""
    usable = known & ~logits.isnan()
    x = torch.where(usable, logits, -torch.inf)
    code = torch.where(usable, order.codes(logits, column), order.NOTHING)
    if code.shape[1] == 0:
        x, column = x.new_full((len(x), 1), -torch.inf), column.new_full((1,), -1)
        code = column.new_full((len(x), 1), order.NOTHING)
    best = ~group.maximum(~code.amin(1))
    xmax = order.value(best).double()
    certain = torch.isinf(xmax) | (best == order.NOTHING)
    power = torch.exp(x.double() - torch.where(certain, 0.0, xmax).unsqueeze(1)) * _UNIT
    whole = power.floor()
    weight = torch.stack([whole.long().sum(1), ((power - whole) * _UNIT).long().sum(1)], 1)
    words, x_token, before, top = Table(x, code, weight, column).tell(token, n, group)
    log_sum = ((words[:, 0].double() + words[:, 1].double() / _UNIT) / _UNIT).log()

    def of(logit: Tensor, is_best: Tensor) -> Tensor:
        sure, maximum, shift = (_like(v, logit) for v in (certain, xmax, log_sum))
        return torch.where(sure, torch.where(is_best, 0.0, -torch.inf).double(), logit.double() - maximum - shift).float()

    logprob = of(x_token, token == order.column(best))
    return _finish(logprob, before, top, of(order.value(top), top == best.unsqueeze(1)), live)


def processed(part: Part, cut: Tensor, token: Tensor, n: int, facts: RowFacts, plan: RowPlan, group: Group) -> Logprobs:
    """Of the kept, renormalised distribution, ``cut`` [R] its last code; greedy rows: the softmax at T = 1 over what they allow."""
    infinite = facts.one_hot & ~plan.greedy | (order.value(facts.best) == torch.inf)
    cut = torch.where(infinite, facts.best, torch.where(plan.greedy, order.NOTHING - 1, cut))
    scale = torch.where(plan.greedy, 1.4426950408889634, plan.scale)
    code = part.codes()
    code = torch.where(code <= cut.unsqueeze(1), code, order.NOTHING)
    mass = weights.masses(part.x, facts.xmax.unsqueeze(1), scale.unsqueeze(1)) * (code != order.NOTHING)
    weight = torch.stack([mass.sum(1), torch.zeros_like(cut)], 1)
    words, x_token, before, top = Table(part.x, code, weight, part.column).tell(token, n, group)
    log_sum = (words[:, 0].double() / _UNIT).log()

    def of(logit: Tensor) -> Tensor:
        sure, xmax, shift, rate = (_like(v, logit) for v in (infinite, facts.xmax, log_sum, scale))
        exponent = weights.exponents(torch.where(sure, 0.0, logit), xmax, rate).double()
        return torch.where(sure, 0.0, exponent * _LN2 - shift).float()

    return _finish(of(x_token), before, top, of(order.value(top)), facts.live)


def _like(row: Tensor, value: Tensor) -> Tensor:
    return row if value.ndim == 1 else row.unsqueeze(1)


def _finish(logprob: Tensor, before: Tensor, top: Tensor, top_logprobs: Tensor, live: Tensor) -> Logprobs:
    there = (top != order.NOTHING) & live.unsqueeze(1)
    return Logprobs(
        torch.where(live, logprob, -torch.inf),
        torch.where(live, 1 + before, 0).int(),
        torch.where(there, order.column(top), -1),
        torch.where(there, top_logprobs, -torch.inf),
    )

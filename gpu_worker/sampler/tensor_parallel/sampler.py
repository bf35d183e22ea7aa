"""The fused sampler over ranks: mask, filters and draw of rows whose logits lie on several devices, each in its own slice.

Ranks exchange maxima, integer masses and candidates, never logits; tokens, statuses and log-probabilities are bitwise those of
`kernels.reference.sample` on the rows put together, for any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.sampler.tensor_parallel import logprobs as tables
from gpu_worker.sampler.tensor_parallel import order, weights
from gpu_worker.sampler.tensor_parallel.candidates import CandidateList, ListResult
from gpu_worker.sampler.tensor_parallel.group import Group
from gpu_worker.sampler.tensor_parallel.logprobs import LogprobMode, Logprobs
from gpu_worker.sampler.tensor_parallel.part import Part, RowFacts
from gpu_worker.sampler.tensor_parallel.plan import RowPlan
from gpu_worker.sampler.tensor_parallel.search import find_cut
from gpu_worker.sampler.tensor_parallel.vocabulary_slice import VocabularySlice
from gpu_worker.sampler.tensor_parallel.whole_draw import draw_whole
from kernels.reference import RowStatus, SampleResult, SampleRows


@dataclass(frozen=True, slots=True)
class _Drawn:
    """column int64 [R] and the last kept code [R] of rows that are not one-hot."""

    column: Tensor
    cut: Tensor


class TensorParallelSampler:
    """One rank's sampler; all ranks call it for the same rows in the same order.

    ``logits`` [R, slice.width] on the slice's device; ``rows`` on the host; ``bitmask`` int32 [N, words],
    ``row_index`` and ``row_status`` int32 [R] on the device. A row that holds on one rank holds on all; where ranks differ in
    ``launch``, every guided row holds. Raises ValueError for shapes that do not fit. The logits are never written.
    """

    def __init__(self, group: Group, part: VocabularySlice) -> None:
        self.group = group
        self.slice = part

    def sample(
        self, logits: Tensor, rows: SampleRows, *, bitmask: Tensor | None = None, row_index: Tensor | None = None,
        row_status: Tensor | None = None, keep_ties: bool = False,
        logprobs: LogprobMode | None = None, num_logprobs: int = 0, launch: int = 0, plan: RowPlan | None = None,
    ) -> SampleResult:  # fmt: skip
        """Token, status and, if asked for, log-probabilities of every row, the same on all ranks."""
        status = self._checked(logits, rows, bitmask, row_status)
        plan = plan or RowPlan.of(rows, self.slice.columns, logits.device, keep_ties=keep_ties)
        raw, allowed = logits.float(), self.slice.allowed(bitmask, row_index, status)
        part, has_nan = Part.of(raw, allowed, self.slice.column)
        facts = RowFacts.agree(part, has_nan, status, launch, plan, self.group)
        drawn = self._draw(part, facts, plan, keep_ties)
        column = torch.where(facts.one_hot, order.column(facts.best), drawn.column)
        result = SampleResult(self._token(column, facts.live), facts.status.int())
        if logprobs == "raw":
            known = self.slice.inside
            told = tables.raw(raw, known, self.slice.column, column, num_logprobs, facts.live, self.group)
            self._attach(result, told)
        elif logprobs == "processed":
            self._attach(result, tables.processed(part, drawn.cut, column, num_logprobs, facts, plan, self.group))
        return result

    def _checked(self, logits: Tensor, rows: SampleRows, bitmask: Tensor | None, row_status: Tensor | None) -> Tensor:
        if logits.shape != (len(rows), self.slice.width):
            raise ValueError(f"logits must be [{len(rows)}, {self.slice.width}], not {list(logits.shape)}")
        if bitmask is not None and (bitmask.dtype != torch.int32 or bitmask.shape[1] * 32 < self.slice.vocab_size):
            need = -(-self.slice.vocab_size // 32)
            raise ValueError(f"bitmask must be int32[N, >={need}], not {bitmask.dtype}{list(bitmask.shape)}")
        if row_status is not None:
            return row_status[: len(rows)]
        default = RowStatus.UNGUIDED if bitmask is None else RowStatus.GUIDED
        return torch.full((len(rows),), int(default), dtype=torch.int32, device=logits.device)

    def _token(self, column: Tensor, live: Tensor) -> Tensor:
        return torch.where(live, self.slice.token(torch.where(live, column, 0)), -1).int()

    def _attach(self, result: SampleResult, told: Logprobs) -> None:
        there = told.top_columns >= 0
        result.logprob, result.rank, result.top_logprobs = told.logprob, told.rank, told.top_logprobs
        result.top_ids = torch.where(there, self.slice.token(told.top_columns.clamp(min=0)), -1).int()

    def _draw(self, part: Part, facts: RowFacts, plan: RowPlan, keep_ties: bool) -> _Drawn:
        """Lists first; then the rows that need their whole width, by themselves."""
        drawn = _Drawn(torch.zeros_like(facts.best), torch.full_like(facts.best, order.NOTHING - 1))
        whole = plan.whole
        if plan.candidates:
            found = self._by_list(part, facts, plan, keep_ties)
            drawn = _Drawn(found.column, found.cut)
            if plan.may_spill:
                settled = (found.settled | facts.one_hot | ~facts.live).cpu().numpy()
                whole = whole | (plan.listed & ~settled)
        if whole.any():
            drawn = self._by_width(part, facts, plan, whole, drawn, keep_ties)
        return drawn

    def _by_list(self, part: Part, facts: RowFacts, plan: RowPlan, keep_ties: bool) -> ListResult:
        first = part.first(plan.candidates)
        if not plan.weighed.any():
            return CandidateList.merge(self.group.gather(first)).settle(facts, plan, None, keep_ties=keep_ties)
        least = part.x >= facts.least.unsqueeze(1)
        mass = weights.masses(part.x, facts.xmax.unsqueeze(1), plan.scale.unsqueeze(1))
        told = self.group.gather(torch.cat([first, (mass * least).sum(1, keepdim=True)], 1))
        listed = CandidateList.merge(told[:, :, :-1])
        return listed.settle(facts, plan, told[:, :, -1].sum(0), keep_ties=keep_ties)

    def _by_width(
        self, part: Part, facts: RowFacts, plan: RowPlan, chosen: NDArray[np.bool_], drawn: _Drawn, keep_ties: bool
    ) -> _Drawn:  # fmt: skip
        """``drawn`` with the chosen rows in place, worked out from the masses of all their columns."""
        every = bool(chosen.all())
        rows = torch.from_numpy(np.flatnonzero(chosen)).to(part.x.device)
        if not every:
            part, facts, plan = part.take(rows), facts.take(rows), plan.take(rows, chosen)
        mass = weights.masses(part.x, facts.xmax.unsqueeze(1), plan.scale.unsqueeze(1))
        cut = facts.least_cut()
        if plan.filtered.any():
            searched = find_cut(part, mass, facts, plan, self.group, self.slice.columns, keep_ties=keep_ties)
            cut = torch.where(plan.mantissa + plan.top_k > 0, searched, cut)
        column, _ = draw_whole(mass * (part.codes() <= cut.unsqueeze(1)), part.column, plan.bits, self.group)
        if every:
            return _Drawn(column, cut)
        return _Drawn(drawn.column.index_copy(0, rows, column), drawn.cut.index_copy(0, rows, cut))

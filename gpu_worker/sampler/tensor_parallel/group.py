"""The ranks that share a row, and the only four things they say to each other: maxima, sums, lists, rank 0's numbers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class Group:
    """Collectives on int64 tensors; integers, so no result depends on the order in which ranks are combined.

    All ranks call the same ones in the same order with the same shapes. ``sent_bytes`` and ``calls`` count what this rank handed
    over. Without a process group it is one rank alone and every call returns its argument. Device tensors of a group that speaks by
    the host (gloo) go by the host. Raises what torch.distributed raises
    (a lost rank, a time-out).
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        self._group = process_group
        self.rank = 0 if process_group is None else dist.get_rank(process_group)
        self.size = 1 if process_group is None else dist.get_world_size(process_group)
        self._by_host = process_group is not None and dist.get_backend(process_group) == "gloo"
        self.sent_bytes = 0
        self.calls = 0

    def maximum(self, values: Tensor) -> Tensor:
        """Elementwise maximum over ranks; the argument may change."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def total(self, values: Tensor) -> Tensor:
        """Elementwise sum over ranks; the argument may change."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def gather(self, values: Tensor) -> Tensor:
        """[ranks, ...]: what each rank holds."""
        self._count(values)
        if self._group is None:
            return values.unsqueeze(0)
        flat = self._spoken(values.contiguous().view(-1))
        out = torch.empty(self.size * flat.numel(), dtype=values.dtype, device=flat.device)
        dist.all_gather_into_tensor(out, flat, group=self._group)
        return out.view(self.size, *values.shape).to(values.device)

    def from_first(self, values: Tensor) -> Tensor:
        """Rank 0's values; the argument may change."""
        self._count(values)
        if self._group is not None:
            said = self._spoken(values)
            dist.broadcast(said, dist.get_global_rank(self._group, 0), group=self._group)
            values = said.to(values.device)
        return values

    def _reduce(self, values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        self._count(values)
        if self._group is not None:
            said = self._spoken(values)
            dist.all_reduce(said, operation, group=self._group)
            values = said.to(values.device)
        return values

    def _spoken(self, values: Tensor) -> Tensor:
        return values.cpu() if self._by_host else values

    def _count(self, values: Tensor) -> None:
        self.calls += 1
        self.sent_bytes += values.numel() * values.element_size()

"""What rank 0 seals of a step and the other ranks receive: parameters, seeds and actions, 72 bytes a row, in one broadcast."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.sampler.tensor_parallel.group import Group
from kernels.reference import SampleRows

_ROWS = (("top_k", torch.int32), ("seed", torch.int64), ("offset", torch.int64), ("purpose", torch.int32),
         ("temperature", torch.float32), ("top_p", torch.float32), ("min_p", torch.float32))  # fmt: skip


@dataclass(frozen=True, slots=True)
class SealedRows:
    """``launch``: the step's number; ``rows``: parameters, the seeds (entropy included) drawn by rank 0; ``status`` int32 [R]
    (RowStatus); ``epoch`` int64 [R]: the slots' owners. All on the host."""

    launch: int
    rows: SampleRows
    status: Tensor
    epoch: Tensor

    def send(self, group: Group, device: torch.device | None = None) -> SealedRows:
        """By rank 0; ``device`` is where the group's broadcasts run. Returns itself."""
        values = [self.status, self.epoch, *(_integers(getattr(self.rows, name)) for name, _ in _ROWS)]
        packed = torch.stack([v.long() for v in values])
        head = torch.full((len(values), 1), self.launch)
        group.from_first(torch.cat([head, packed], 1).to(device or head.device))
        return self

    @classmethod
    def receive(cls, group: Group, rows: int, device: torch.device | None = None) -> SealedRows:
        """By every other rank, for the same number of rows."""
        space = torch.zeros((2 + len(_ROWS), 1 + rows), dtype=torch.int64, device=device)
        packed = group.from_first(space).cpu()
        status, epoch, *values = packed[:, 1:]
        fields = {name: _restored(value, dtype) for value, (name, dtype) in zip(values, _ROWS, strict=True)}
        return cls(int(packed[0, 0]), SampleRows(**fields), status.int(), epoch.clone())


def _integers(value: Tensor) -> Tensor:
    return value.view(torch.int32) if value.dtype == torch.float32 else value


def _restored(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.int().view(torch.float32) if dtype == torch.float32 else value.to(dtype)

"""Small integer lists to the device without waiting for it: pinned buffers used in turn.

A copy from pageable memory would wait for the stream, and the stream may be waiting for a flag that only the caller can raise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

RING = 64


class Staging:
    """``put`` copies up to ``size`` int64 values on the current stream. On the CPU it is a plain tensor."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._device, self._next = device, 0
        self._pinned: list[tuple[torch.Tensor, torch.cuda.Event]] = []
        if device.type == "cuda":
            self._pinned = [(torch.empty(size, dtype=torch.int64, pin_memory=True), torch.cuda.Event()) for _ in range(RING)]

    def put(self, values: Sequence[int]) -> torch.Tensor:
        """int64 [len(values)] on the device."""
        if not self._pinned:
            return torch.tensor(values, dtype=torch.int64, device=self._device)
        buffer, copied = self._pinned[self._next]
        self._next = (self._next + 1) % RING
        copied.synchronize()  # RING puts ago: long done
        staged = buffer[: len(values)]
        staged.numpy()[:] = values
        target = torch.empty(len(values), dtype=torch.int64, device=self._device)
        target.copy_(staged, non_blocking=True)
        copied.record()
        return target

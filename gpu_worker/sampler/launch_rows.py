"""LaunchRows: parameters and mask rows of a launch, written on the host and brought to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.reference import SampleRows

_LONG = ("seed", "offset")
_SHORT = {
    "temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32, "purpose": torch.int32,
    "status": torch.int32,
}  # fmt: skip


class LaunchRows:
    """Up to ``most`` rows with masks of ``words`` int32 each. What was brought is read by launches of the current stream; it may be
    written again when they have ended."""

    def __init__(self, most: int, words: int, device: torch.device) -> None:
        size = most * (8 * len(_LONG) + 4 * len(_SHORT) + 4 * words)
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._there = self._host if device.type == "cpu" else torch.zeros(size, dtype=torch.uint8, device=device)
        self._written, self._read = _views(self._host, most, words), _views(self._there, most, words)

    def write(self, rows: SampleRows, chosen: Sequence[int]) -> None:
        """The parameters of the chosen rows, in their order."""
        index = torch.tensor(chosen, dtype=torch.int64)
        for name in (*_LONG, *_SHORT):
            if name != "status":
                self._written[name][: len(chosen)] = getattr(rows, name)[index]

    @property
    def masks(self) -> Tensor:
        """int32 [most, words] on the host."""
        return self._written["masks"]

    @property
    def statuses(self) -> Tensor:
        """int32 [most] on the host: kernels.reference.RowStatus."""
        return self._written["status"]

    def bring(self, count: int) -> tuple[SampleRows, Tensor, Tensor]:
        """Parameters, statuses and masks of the first ``count`` rows on the device."""
        if self._there is not self._host:
            self._there.copy_(self._host, non_blocking=True)
        read = {name: view[:count] for name, view in self._read.items()}
        return SampleRows(**{name: read[name] for name in (*_LONG, *_SHORT) if name != "status"}), read["status"], read["masks"]


def _views(memory: Tensor, most: int, words: int) -> dict[str, Tensor]:
    views, at = {}, 0
    for name, dtype in [*((name, torch.int64) for name in _LONG), *_SHORT.items(), ("masks", torch.int32)]:
        size = most * dtype.itemsize * (words if name == "masks" else 1)
        views[name] = memory[at : at + size].view(dtype)
        at += size
    views["masks"] = views["masks"].view(most, words)
    return views

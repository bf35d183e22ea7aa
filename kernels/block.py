"""Named arrays in one piece of host memory that the device reads and writes, or keeps a copy of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 128
Fields = Mapping[str, tuple[DTypeLike, Sequence[int]]]


class Block:
    """``fields`` name -> (dtype, shape). ``views`` are NumPy arrays over the host's memory, so that filling them is no tensor work.

    Page-locked memory is read by the device where it lies. Without it (``pinned`` False) the device has a copy, which ``upload``
    and ``download`` bring up to date: they wait for the device, so they are for a device that waits for nobody. On the CPU both are
    one.
    """

    def __init__(self, fields: Fields, device: torch.device, *, pinned: bool = True) -> None:
        offsets, size = self.layout(fields)
        on_gpu = device.type == "cuda"
        self.host = torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu and pinned)
        self._copy = torch.zeros(size, dtype=torch.uint8, device=device) if on_gpu and not pinned else None
        self._offsets = offsets
        memory = self.host.numpy()
        self.views: dict[str, NDArray[Any]] = {
            name: memory[at : at + int(np.prod(fields[name][1])) * np.dtype(fields[name][0]).itemsize]
            .view(fields[name][0])
            .reshape(tuple(fields[name][1]))
            for name, at in offsets.items()
        }

    @staticmethod
    def layout(fields: Fields) -> tuple[dict[str, int], int]:
        """Where each array begins, and the bytes of all."""
        offsets, size = {}, 0
        for name, (dtype, shape) in fields.items():
            offsets[name] = size
            size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        return offsets, size

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.views[name]

    def address(self, name: str) -> int:
        """Where the device finds an array."""
        return (self.host if self._copy is None else self._copy).data_ptr() + self._offsets[name]

    def addresses(self, names: Sequence[str]) -> list[int]:
        return [self.address(name) for name in names]

    def offset(self, name: str) -> int:
        """Bytes from the first array to this one."""
        return self._offsets[name]

    def upload(self) -> None:
        """The device's copy becomes the host's, on the current stream."""
        if self._copy is not None:
            self._copy.copy_(self.host)

    def download(self) -> None:
        """The host's memory becomes the device's copy; waits for the current stream."""
        if self._copy is not None:
            self.host.copy_(self._copy)

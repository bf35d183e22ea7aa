"""What a GPU launch is given of its rows: the device twin of kernels.reference.SampleInputs, which keeps host copies."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.reference import Overlay, Penalties, SampleRows


@dataclass(slots=True)
class GpuInputs:
    """Logits [R, columns] on the device with parameters, masks and overlay as in `SampleInputs`; checked at launch."""

    logits: Tensor
    rows: SampleRows
    vocab_size: int
    bitmask: Tensor | None = None
    row_index: Tensor | None = None
    row_status: Tensor | None = None
    d2t: Tensor | None = None
    bit_offset: int = 0
    overlay: Overlay | None = None
    keep_ties: bool = False


@dataclass(slots=True)
class CountedPenalties(Penalties):
    """Penalties whose counts have an index: ``counted`` int32 [S, ceil(V/32)], bit 1 = count above 0. Without it every count is
    read."""

    counted: Tensor | None = None

"""Mask into logits, in place, on the GPU: the launcher of cuda/bitmask.cu; meaning: kernels.reference.apply_bitmask."""

from __future__ import annotations

import ctypes

from torch import Tensor

from kernels.build import Variant
from kernels.launch import I32, I64, TILE_COLUMNS, MaskArgs, P, check_logits, launch, mask_args, pointer, stream_of

_THREADS = 256
_FEW = 32  # rows; below, one vector a thread
_VECTOR = {0: 8, 1: 8, 2: 4}  # logits in 16 bytes


class _Args(ctypes.Structure):
    _fields_ = [("logits", P), ("stride", I64), ("mask", MaskArgs), ("tiles", I32), ("pad", I32)]


def variants() -> list[Variant]:
    return [_variant(dtype, few) for dtype in TILE_COLUMNS for few in (False, True)]


def apply_bitmask(
    logits: Tensor,
    bitmask: Tensor,
    row_index: Tensor | None,
    row_status: Tensor | None,
    vocab_size: int,
    bit_offset: int = 0,
    d2t: Tensor | None = None,
) -> None:
    """In place: exactly -inf in every column that is not allowed; unguided and held rows are not touched."""
    dtype = check_logits(logits)
    rows, width = logits.shape
    mask = mask_args(logits, vocab_size, bitmask, row_index, row_status, bit_offset, d2t)
    tiles = -(-width // TILE_COLUMNS[dtype])
    args = _Args(pointer(logits), logits.stride(0), mask, tiles, 0)
    if rows and width:
        few = rows < _FEW
        blocks = -(-width // (_VECTOR[dtype] * _THREADS)) if few else -(-tiles // (_THREADS // 32))
        launch(_variant(dtype, few), args, grid=(blocks, rows), block=_THREADS, stream=stream_of(logits))


def _variant(dtype: int, few: bool) -> Variant:
    return Variant.of("bitmask.cu", "apply_bitmask", DTYPE=dtype, NT=_THREADS, FEW_ROWS=int(few))

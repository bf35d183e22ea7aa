"""p(token) and rows of probabilities from row descriptors: the launcher of cuda/probability.cu."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.build import Variant
from kernels.inputs import GpuInputs
from kernels.launch import DTYPES, I32, I64, MaskArgs, P, check_logits, launch, mask_args, pointer, stream_of
from kernels.overlay import OverlayArgs, overlay_args
from kernels.reference import RowDescriptor

_THREADS = 256


class SourceArgs(ctypes.Structure):
    """Source of value.cuh: rows of logits with everything that says which may be used and how they are changed."""

    _fields_ = [("logits", P), ("stride", I64), ("mask", MaskArgs), ("overlay", OverlayArgs)]


class DescriptorArgs(ctypes.Structure):
    """DescriptorArgs of value.cuh; all null: there is none."""

    _fields_ = [(name, P) for name in ("xmax", "threshold", "tie_column", "mass", "temperature")]


class _Args(ctypes.Structure):
    _fields_ = [
        ("source", SourceArgs),
        ("descriptor", DescriptorArgs),
        ("tokens", P),
        ("out", P),
        ("out_stride", I64),
        ("n", I32),
        ("pad", I32),
    ]


def variants() -> list[Variant]:
    return [_variant(dtype) for dtype in DTYPES.values()]


def source_args(logits: Tensor, inputs: GpuInputs) -> SourceArgs:
    check_logits(logits)
    mask = mask_args(logits, inputs.vocab_size, inputs.bitmask, inputs.row_index, inputs.row_status, inputs.bit_offset, inputs.d2t)
    return SourceArgs(pointer(logits), logits.stride(0), mask, overlay_args(inputs.overlay, logits.shape[0]))


def descriptor_args(d: RowDescriptor | None) -> DescriptorArgs:
    return (
        DescriptorArgs()
        if d is None
        else DescriptorArgs(*(pointer(t) for t in (d.xmax, d.threshold, d.tie_column, d.mass, d.temperature)))
    )


def probability_into(descriptor: RowDescriptor, inputs: GpuInputs, tokens: Tensor, out: Tensor) -> None:
    """f32[R, n] of target ids i32[R, n]; 0 for a banned, unknown (-1) or filtered token and in dead and held rows."""
    if tokens.dtype != torch.int32 or tokens.shape != out.shape or not tokens.is_contiguous():
        raise ValueError(f"tokens must be contiguous int32{list(out.shape)}, not {tokens.dtype}{list(tokens.shape)}")
    _launch(descriptor, inputs, tokens, out)


def probabilities(descriptor: RowDescriptor, inputs: GpuInputs, out: Tensor) -> None:
    """Every column's probability, f32[R, columns]."""
    if out.shape != inputs.logits.shape:
        raise ValueError(f"out must be {list(inputs.logits.shape)}, not {list(out.shape)}")
    _launch(descriptor, inputs, None, out)


def _launch(descriptor: RowDescriptor, inputs: GpuInputs, tokens: Tensor | None, out: Tensor) -> None:
    if out.dtype != torch.float32 or not out.is_cuda or out.stride(1) != 1:
        raise ValueError(f"out must be CUDA float32 with contiguous rows, not {out.device} {out.dtype}")
    rows, n = out.shape
    args = _Args(
        source_args(inputs.logits, inputs), descriptor_args(descriptor), pointer(tokens), pointer(out), out.stride(0), n, 0
    )
    if rows and n:
        launch(_variant(DTYPES[inputs.logits.dtype]), args, grid=(-(-n // _THREADS), rows), block=_THREADS, stream=stream_of(out))


def _variant(dtype: int) -> Variant:
    return Variant.of("probability.cu", "probability", DTYPE=dtype, NT=_THREADS, OVERLAY=1)

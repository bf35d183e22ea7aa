"""Log-probability and rank of sampled columns and the top n of their rows: the launcher of cuda/logprobs.cu."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kernels.build import Variant
from kernels.inputs import GpuInputs
from kernels.launch import DTYPES, I32, P, check_logits, check_vector, launch, pointer, stream_of
from kernels.probability import DescriptorArgs, SourceArgs, descriptor_args, source_args
from kernels.reference import RowDescriptor
from kernels.sample import SMEM_FIXED, SMEM_OVERLAY, THREADS, shared_bytes

MAX_TOP = 256


class _Args(ctypes.Structure):
    _fields_ = [
        ("source", SourceArgs),
        ("descriptor", DescriptorArgs),
        *((name, P) for name in ("column", "logprob", "rank", "top_ids", "top_logprobs")),
        ("n", I32),
        ("pad", I32),
    ]


@dataclass(slots=True)
class LogprobTensors:
    """Device tensors that a launch fills: logprob f32[R], rank i32[R], top_ids i32[R, n], top_logprobs f32[R, n]."""

    logprob: Tensor
    rank: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    @classmethod
    def empty(cls, rows: int, n: int, device: torch.device | str) -> LogprobTensors:
        return cls(
            torch.empty(rows, device=device),
            torch.empty(rows, dtype=torch.int32, device=device),
            torch.empty((rows, n), dtype=torch.int32, device=device),
            torch.empty((rows, n), device=device),
        )


def variants() -> list[Variant]:
    return [_variant(dtype, overlay) for dtype in DTYPES.values() for overlay in (False, True)]


def logprobs_into(
    out: LogprobTensors, inputs: GpuInputs, column: Tensor, mode: Literal["raw", "processed"], descriptor: RowDescriptor | None
) -> None:
    """Of `column` i32[R] (-1: none), as the sampler wrote it; `processed` needs the launch's descriptor."""
    dtype, (rows, width) = check_logits(inputs.logits), inputs.logits.shape
    if out.top_ids.shape[1] > MAX_TOP or (mode == "processed") != (descriptor is not None):
        raise ValueError(f"at most {MAX_TOP} top log-probabilities; a descriptor goes with `processed` and only with it")
    check_vector("column", column, torch.int32, rows)
    if mode == "raw":
        inputs = replace(inputs, bitmask=None, row_status=None, overlay=None)
    overlay = inputs.overlay is not None
    args = _Args(
        source_args(inputs.logits, inputs),
        descriptor_args(descriptor),
        pointer(column),
        pointer(out.logprob),
        pointer(out.rank),
        pointer(out.top_ids),
        pointer(out.top_logprobs),
        out.top_ids.shape[1],
        0,
    )
    if rows:
        launch(
            _variant(dtype, overlay),
            args,
            grid=(rows, 1),
            block=THREADS,
            stream=stream_of(column),
            shared_bytes=shared_bytes(dtype, width, 1, overlay),
        )


def _variant(dtype: int, overlay: bool) -> Variant:
    return Variant.of(
        "logprobs.cu",
        "logprobs",
        DTYPE=dtype,
        NT=THREADS,
        OVERLAY=int(overlay),
        SMEM_FIXED=SMEM_FIXED + (SMEM_OVERLAY if overlay else 0),
    )

"""Integer weights of given logits on the GPU, as the sampler computes them; meaning: kernels.plain.weights.masses."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.build import Variant
from kernels.launch import I64, P, launch, pointer, stream_of

_THREADS = 256


class _Args(ctypes.Structure):
    _fields_ = [("x", P), ("mass", P), ("n", I64), ("xmax", ctypes.c_float), ("temperature", ctypes.c_float)]


def variants() -> list[Variant]:
    return [Variant.of("weights.cu", "weights", DTYPE=2, NT=_THREADS)]


def masses(x: Tensor, xmax: float, temperature: float) -> Tensor:
    """i64[n], in units of 2^-44, of logits f32[n] on the device."""
    if x.dtype != torch.float32 or not x.is_cuda or not x.is_contiguous():
        raise ValueError(f"x must be contiguous CUDA float32, not {x.device} {x.dtype}")
    out = torch.empty(x.shape, dtype=torch.int64, device=x.device)
    if x.numel():
        args = _Args(pointer(x), pointer(out), x.numel(), xmax, temperature)
        launch(variants()[0], args, grid=(-(-x.numel() // _THREADS), 1), block=_THREADS, stream=stream_of(x))
    return out

"""The fused sampler on the GPU: the launcher of cuda/sample.cu; meaning: kernels.reference.sample."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.build import Variant
from kernels.launch import (
    DTYPES,
    I32,
    I64,
    TILE_COLUMNS,
    MaskArgs,
    P,
    check_logits,
    check_vector,
    launch,
    mask_args,
    pointer,
    stream_of,
)
from kernels.overlay import OverlayArgs, overlay_args
from kernels.reference import Overlay, RowDescriptor, SampleRows

THREADS = 512
SMEM_FIXED = 53888
"""Bytes of the kernel's fixed state in shared memory; a static_assert in sample.cu holds it."""
SMEM_OVERLAY = 16640
CLUSTERS = (1, 2, 4, 8)


class RowArgs(ctypes.Structure):
    """RowArgs of sampler.cuh."""

    _fields_ = [(name, P) for name in ("temperature", "top_k", "top_p", "min_p", "seed", "offset", "purpose")]


class _Args(ctypes.Structure):
    _fields_ = [
        ("logits", P),
        ("stride", I64),
        ("mask", MaskArgs),
        ("rows", RowArgs),
        ("overlay", OverlayArgs),
        *((name, P) for name in ("token", "status", "xmax", "threshold", "tie_column", "mass", "temperature", "column")),
        ("keep_ties", I32),
        ("pad", I32),
    ]


@dataclass(slots=True)
class SampleOutput:
    """Device tensors a launch writes, made once and used again: token, status, column i32[R]; descriptor if wanted."""

    token: Tensor
    status: Tensor
    column: Tensor
    descriptor: RowDescriptor | None = None

    @classmethod
    def empty(cls, rows: int, device: torch.device | str, *, descriptor: bool = False) -> SampleOutput:
        token, status, column, tie = torch.empty((4, rows), dtype=torch.int32, device=device)
        if not descriptor:
            return cls(token, status, column)
        xmax, threshold, temperature = torch.empty((3, rows), dtype=torch.float32, device=device)
        mass = torch.empty(rows, dtype=torch.int64, device=device)
        return cls(token, status, column, RowDescriptor(xmax, threshold, tie, mass, temperature))


def variant(dtype: int, cluster: int, overlay: bool, greedy_only: bool) -> Variant:
    fixed = SMEM_FIXED + (SMEM_OVERLAY if overlay else 0)
    return Variant.of(
        "sample.cu",
        "sample",
        DTYPE=dtype,
        NT=THREADS,
        C=cluster,
        OVERLAY=int(overlay),
        GREEDY_ONLY=int(greedy_only),
        MIN_CTAS=3 if greedy_only else 2,
        SMEM_FIXED=fixed,
    )


def variants() -> list[Variant]:
    kinds = ((False, False), (True, False), (False, True))  # a greedy launch with an overlay is a general one
    return [variant(d, c, overlay, greedy) for d in DTYPES.values() for c in CLUSTERS for overlay, greedy in kinds]


def cluster_size(rows: int, tiles: int) -> int:
    """CTAs a row: enough to fill the device with few rows, never more than there are tiles to share."""
    wanted = 8 if rows <= 4 else 4 if rows <= 24 else 2 if rows <= 80 else 1
    while wanted > 1 and wanted > tiles:
        wanted //= 2
    return wanted


def shared_bytes(dtype: int, width: int, cluster: int, overlay: bool) -> int:
    tiles = -(-width // TILE_COLUMNS[dtype])
    mask = -(-tiles // cluster) * TILE_COLUMNS[dtype] // 8
    return SMEM_FIXED + mask + (SMEM_OVERLAY + mask if overlay else 0)


def sample_into(
    out: SampleOutput,
    logits: Tensor,
    rows: SampleRows,
    *,
    vocab_size: int,
    bitmask: Tensor | None = None,
    row_index: Tensor | None = None,
    row_status: Tensor | None = None,
    d2t: Tensor | None = None,
    bit_offset: int = 0,
    overlay: Overlay | None = None,
    keep_ties: bool = False,
    greedy_only: bool = False,
    cluster: int | None = None,
) -> None:
    """One launch; nothing is allocated, so it may be captured. `greedy_only`: the caller knows that every row is."""
    dtype, (count, width) = check_logits(logits), logits.shape
    if len(rows) != count:
        raise ValueError(f"{len(rows)} rows of parameters for {count} rows of logits")
    size = cluster or cluster_size(count, -(-width // TILE_COLUMNS[dtype]))
    args = _Args(
        pointer(logits),
        logits.stride(0),
        mask_args(logits, vocab_size, bitmask, row_index, row_status, bit_offset, d2t),
        row_args(rows, count),
        overlay_args(overlay, count),
        pointer(check_vector("token", out.token, torch.int32, count)),
        pointer(check_vector("status", out.status, torch.int32, count)),
        *_descriptor(out.descriptor),
        pointer(out.column),
        int(keep_ties),
        0,
    )
    if count:
        launch(
            variant(dtype, size, overlay is not None, greedy_only and overlay is None),
            args,
            grid=(count, 1),
            block=THREADS,
            stream=stream_of(logits),
            cluster=size,
            shared_bytes=shared_bytes(dtype, width, size, overlay is not None),
        )


def row_args(rows: SampleRows, count: int) -> RowArgs:
    kinds = {
        "temperature": torch.float32,
        "top_k": torch.int32,
        "top_p": torch.float32,
        "min_p": torch.float32,
        "seed": torch.int64,
        "offset": torch.int64,
        "purpose": torch.int32,
    }
    return RowArgs(*(pointer(check_vector(n, getattr(rows, n), d, count)) for n, d in kinds.items()))


def _descriptor(d: RowDescriptor | None) -> list[int | None]:
    if d is None:
        return [None] * 5
    return [pointer(t) for t in (d.xmax, d.threshold, d.tie_column, d.mass, d.temperature)]

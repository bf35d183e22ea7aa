"""What launchers share: argument blocks as the device sees them, tensor checks, one launch call."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from kernels.build import Variant, check, load

DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
"""The DTYPE macro of each dtype of logits."""

TILE_COLUMNS = {0: 1024, 1: 1024, 2: 512}
P, I32, I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


class MaskArgs(ctypes.Structure):
    """MaskArgs of row.cuh."""

    _fields_ = [
        ("words", P),
        ("index", P),
        ("status", P),
        ("d2t", P),
        ("stride", I64),
        ("rows", I32),
        ("vocab_size", I32),
        ("width", I32),
        ("bit_offset", I32),
    ]


def pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def check_logits(logits: Tensor) -> int:
    """DTYPE of logits [R, columns] that a kernel can read in place."""
    if logits.ndim != 2 or logits.dtype not in DTYPES or not logits.is_cuda or logits.stride(1) != 1:
        raise ValueError(
            f"logits must be CUDA fp32, fp16 or bf16 [R, columns] with contiguous rows, "
            f"not {logits.device} {logits.dtype}{list(logits.shape)}"
        )
    if logits.shape[1] > 1 << 18:
        raise ValueError(f"at most {1 << 18} columns, not {logits.shape[1]}")
    return DTYPES[logits.dtype]


def check_vector(name: str, value: Tensor, dtype: torch.dtype, rows: int) -> Tensor:
    if value.dtype != dtype or value.ndim != 1 or value.numel() < rows or not value.is_cuda or not value.is_contiguous():
        raise ValueError(f"{name} must be contiguous CUDA {dtype}[>={rows}], not {value.device} {value.dtype}{list(value.shape)}")
    return value


def mask_args(
    logits: Tensor,
    vocab_size: int,
    bitmask: Tensor | None,
    row_index: Tensor | None,
    row_status: Tensor | None,
    bit_offset: int,
    d2t: Tensor | None,
) -> MaskArgs:
    """Checks and packs what says which columns of each row are allowed."""
    rows, width = logits.shape
    if vocab_size <= 0 or bit_offset < 0:
        raise ValueError(f"vocab_size must be > 0 and bit_offset >= 0, not {vocab_size}, {bit_offset}")
    if bitmask is not None and (
        bitmask.dtype != torch.int32
        or bitmask.ndim != 2
        or not bitmask.is_cuda
        or bitmask.shape[1] < -(-vocab_size // 32)
        or bitmask.stride(1) != 1
    ):
        raise ValueError(
            f"bitmask must be CUDA int32[N, >={-(-vocab_size // 32)}] with contiguous rows, not "
            f"{bitmask.device} {bitmask.dtype}{list(bitmask.shape)}"
        )
    for name, vector in (("row_index", row_index), ("row_status", row_status)):
        if vector is not None:
            check_vector(name, vector, torch.int32, rows)
    if d2t is not None and check_vector("d2t", d2t, torch.int32, width).numel() != width:
        raise ValueError(f"d2t must have {width} entries, not {d2t.numel()}")
    return MaskArgs(
        pointer(bitmask),
        pointer(row_index),
        pointer(row_status),
        pointer(d2t),
        0 if bitmask is None else bitmask.stride(0),
        0 if bitmask is None else bitmask.shape[0],
        vocab_size,
        width,
        bit_offset,
    )


def stream_of(tensor: Tensor) -> int:
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def launch(
    variant: Variant,
    args: ctypes.Structure,
    *,
    grid: tuple[int, int],
    block: int,
    stream: int,
    shared_bytes: int = 0,
    cluster: int = 1,
) -> None:
    """One kernel on a stream; allocates nothing on the device, so it may be captured into a graph."""
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid[0] * cluster, grid[1], 1
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes, config.hStream = shared_bytes, driver.CUstream(stream)
    if cluster > 1:
        config.attrs, config.numAttrs = [_cluster_attribute(cluster)], 1
    slots = (ctypes.c_void_p * 1)(ctypes.addressof(args))
    function = driver.CUfunction(load(variant))
    check(driver.cuLaunchKernelEx(config, function, ctypes.addressof(slots), 0))


def _cluster_attribute(size: int) -> Any:
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    value = driver.CUlaunchAttributeValue()
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = size, 1, 1
    attribute.value = value
    return attribute
